"""Hold what the package depends on, exports, and packs into its wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import redrafter_mlx

ROOT = Path(__file__).resolve().parents[1]

DEPENDENCIES = {
    "mlx>=0.32.2; sys_platform == 'darwin'",
    "mlx[cpu]>=0.32.2; sys_platform == 'linux'",
    "mlx-lm>=0.32.2",
    "huggingface_hub",
    "sentencepiece",
    "numpy",
    "typer>=0.29",
    "rich",
}
IN_THE_WHEEL = {
    "redrafter_mlx/py.typed",
    "redrafter_mlx/cli/main.py",
    "redrafter_mlx/convert/gguf.py",
    "redrafter_mlx/bench/__init__.py",
    "redrafter_mlx/bench/data/README.md",
    "redrafter_mlx/bench/data/apple_mlx.csv",
    "redrafter_mlx/drafters/smollm2-135m/config.json",
    "redrafter_mlx/drafters/smollm2-135m/model.safetensors",
    "redrafter_mlx/prompt_data/bench.toml",
    "redrafter_mlx/prompt_data/tune.toml",
    "redrafter_mlx/prompt_data/copy/story.txt",
    "redrafter_mlx/prompt_data/training/english.toml",
}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """Return the table [project] of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def test_depends_on_what_was_agreed_and_no_more(project: dict[str, Any]) -> None:
    assert sorted(project["dependencies"]) == sorted(DEPENDENCIES)
    assert project["requires-python"] == ">=3.11,<3.14"


def test_folders_at_the_root_are_linked_into_the_package() -> None:
    for name in ("cli", "convert", "bench"):
        link = ROOT / "redrafter_mlx" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..", name)


def test_exports_what_all_names() -> None:
    exported = {name: getattr(redrafter_mlx, name) for name in redrafter_mlx.__all__}
    assert redrafter_mlx._MODULE_OF.keys() == exported.keys()
    assert not any(isinstance(value, ModuleType) for value in exported.values())
    others = (
        vars(redrafter_mlx).keys() - exported.keys() - {"Any", "TYPE_CHECKING", "import_module"}
    )
    for name in others:
        assert name.startswith("_") or isinstance(vars(redrafter_mlx)[name], ModuleType), name


def test_wheel_holds_the_package_and_nothing_beside_it(
    tmp_path: Path, project: dict[str, Any]
) -> None:
    source = tmp_path / "source"  # a build writes into its source
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True)

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert IN_THE_WHEEL - names == set()
    assert {name.partition("/")[0] for name in names} == {
        "redrafter_mlx",
        f"redrafter_mlx-{project['version']}.dist-info",
    }
