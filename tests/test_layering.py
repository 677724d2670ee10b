"""Hold the rules of the package's structure, and show that each rule bites."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "redrafter_mlx"

# From the ground up; a name stands for a module, or for every module of a folder that is
# not named itself. Imports run down, or along a floor where that makes no cycle.
FLOORS = (
    ("errors", "config", "sizes", "file_errors", "json_files", "signals"),
    (
        "folders",
        "weights",
        "safetensors_writer",
        "prompts",
        "decoding.stats",
        "decoding.tree",
        "decoding.lookup",
        "decoding.sampling",
        "decoding.pace",
        "decoding.planner",
        "decoding.anatomy",
        "decoding.time_limit",
        "models.kv_cache",
    ),
    ("convert", "models"),
    ("decoding.beam", "decoding.profile", "loading"),
    (
        "decoding.margin",
        "decoding.prefill",
        "decoding.round",
        "decoding.wired",
        "decoding.decode",
        "decoding.samples",
        "decoding.measuring",
    ),
    ("text", "segments", "generation"),
    ("conversation", "decoding.tuning", "training"),
    ("__init__",),
    ("bench",),
    ("cli", "__main__"),
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}

FOLDERS_AT_THE_ROOT = frozenset({"cli", "convert", "bench"})
SLOW_TO_IMPORT = frozenset(
    {"mlx_lm", "transformers", "tokenizers", "huggingface_hub", "rich", "torch", "matplotlib"}
)
WITHOUT_MLX = ("errors", "config", "sizes", "prompts", "decoding.stats", "decoding.lookup")
MAX_FUNCTION_LINES = 50
MAX_FILE_LINES = 300

# A folder of somebody's machine, which a project's file should not name.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users)/\w")


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: ``name`` is taken from ``target``, which begins with a dot if relative."""

    target: str
    name: str | None
    line: int
    is_at_top: bool

    @property
    def root(self) -> str:
        return self.target.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Module:
    """One file; ``name`` is dotted and leaves out the package: ``decoding.beam``, ``__init__``."""

    name: str
    file: str
    source: str
    tree: ast.Module

    @property
    def imports(self) -> list[Import]:
        return list(imports_in(self.tree.body, is_at_top=True))

    def at(self, line: int, problem: str) -> str:
        return f"{self.file}:{line}: {problem}"


def imports_in(nodes: Iterable[ast.AST], *, is_at_top: bool) -> Iterator[Import]:
    """Yield every import; one is at the top if it runs when its module is imported."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno, is_at_top)
        elif isinstance(node, ast.ImportFrom):
            target = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(target, alias.name, node.lineno, is_at_top)
        else:
            runs_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            yield from imports_in(
                ast.iter_child_nodes(node),
                is_at_top=is_at_top and not runs_later and not is_for_types,
            )


def read_modules(package: Path) -> list[Module]:
    """Read every file of the package once, through its links too."""
    modules: dict[Path, Module] = {}
    for folder, folders, files in os.walk(package, followlinks=True):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for path in (Path(folder, file) for file in sorted(files) if file.endswith(".py")):
            source = path.read_text(encoding="utf-8")
            inside = path.relative_to(package)
            name = ".".join(inside.with_suffix("").parts)
            modules.setdefault(path.resolve(), Module(name, str(inside), source, ast.parse(source)))
    return list(modules.values())


def floor_of(name: str) -> int | None:
    """Return the floor that a module stands on, ``None`` where it was given none."""
    while name and name not in FLOOR_OF:
        name = name.rpartition(".")[0]
    return FLOOR_OF.get(name)


def is_folder_file(module: Module) -> bool:
    return module.name.endswith(".__init__")


def imported_modules(module: Module, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each module of the package that a module imports."""
    for entry in module.imports:
        if entry.root != PACKAGE:
            continue
        target = entry.target.removeprefix(PACKAGE).removeprefix(".")
        inner = ".".join(part for part in (target, entry.name) if part)
        yield entry.line, inner if inner in names else target or "__init__"


def check_floors(modules: list[Module]) -> Iterator[str]:
    """Every module has a floor and imports nothing from above it."""
    names = frozenset(module.name for module in modules)
    for module in modules:
        floor = floor_of(module.name)
        if is_folder_file(module):
            floor = 0
        if floor is None:
            yield module.at(1, f"place {module.name} on a floor of FLOORS in {Path(__file__).name}")
            continue
        for line, target in imported_modules(module, names):
            target_floor = floor_of(target)
            if target_floor is None:
                yield module.at(line, f"{target} is no module with a floor")
            elif target_floor > floor:
                yield module.at(line, f"{module.name} imports {target} from a floor above it")


def check_cycles(modules: list[Module]) -> Iterator[str]:
    """No module imports itself by way of others."""
    names = frozenset(module.name for module in modules)
    graph = {
        module.name: {target for _, target in imported_modules(module, names)} for module in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"imports run in a circle: {' -> '.join(error.args[1])}"


def check_folder_files(modules: list[Module]) -> Iterator[str]:
    """A folder's own file imports nothing, since it runs before each module of the folder."""
    for module in modules:
        if is_folder_file(module):
            for entry in module.imports:
                yield module.at(entry.line, f"imports {entry.target}; leave the file empty")


def check_import_names(modules: list[Module]) -> Iterator[str]:
    """Imports are absolute, and a module has one name."""
    for module in modules:
        for entry in module.imports:
            if entry.target.startswith("."):
                yield module.at(entry.line, "relative import; begin with redrafter_mlx")
            elif entry.root in FOLDERS_AT_THE_ROOT:
                yield module.at(entry.line, f"import {PACKAGE}.{entry.target} instead")


def check_heavy_imports(modules: list[Module]) -> Iterator[str]:
    """What is slow to import is imported where it is needed; the ground floor needs no MLX."""
    for module in modules:
        is_command = module.name == "__main__" or module.name.startswith("cli.")
        for entry in module.imports:
            if entry.is_at_top and entry.root in SLOW_TO_IMPORT:
                yield module.at(entry.line, f"import {entry.root} inside the function")
            elif entry.root == "mlx" and module.name in WITHOUT_MLX:
                yield module.at(entry.line, f"{module.name} must not need mlx")
            elif entry.root == "mlx" and entry.is_at_top and is_command:
                yield module.at(entry.line, "import mlx inside the function")


def check_print(modules: list[Module]) -> Iterator[str]:
    """Only cli/render.py prints."""
    for module in modules:
        for node in ast.walk(module.tree):
            if module.name == "cli.render" or not isinstance(node, ast.Name):
                continue
            if node.id == "print":
                yield module.at(node.lineno, "print belongs in cli/render.py")


def check_kernels(modules: list[Module]) -> Iterator[str]:
    """No kernel of our own: a wrong one hangs the GPU or reads freed memory, MLX's are tested."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in ("metal_kernel", "cuda_kernel"):
                yield module.at(node.lineno, "a kernel of our own; compose MLX's operations")


def check_sizes(modules: list[Module]) -> Iterator[str]:
    """Functions and files stay short."""
    for module in modules:
        lines = len(module.source.splitlines())
        if lines > MAX_FILE_LINES:
            yield module.at(1, f"{lines} lines; split a file over {MAX_FILE_LINES}")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    problem = f"{node.name} has {lines} lines; at most {MAX_FUNCTION_LINES}"
                    yield module.at(node.lineno, problem)


Rule = Callable[[list[Module]], Iterator[str]]
RULES: tuple[Rule, ...] = (
    check_floors,
    check_cycles,
    check_folder_files,
    check_import_names,
    check_heavy_imports,
    check_print,
    check_kernels,
    check_sizes,
)


def find_machine_paths(texts: Mapping[str, str]) -> list[str]:
    """Return the files that name a folder of the machine they were written on."""
    return [file for file, text in texts.items() if MACHINE_PATH.search(text)]


def project_texts() -> dict[str, str]:
    """Read what git tracks or would track; skip where there is no git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    files = [file for file in os.fsdecode(listed).split("\0") if (ROOT / file).is_file()]
    return {file: (ROOT / file).read_bytes().decode("utf-8", "ignore") for file in files}


@pytest.fixture(scope="module")
def package() -> list[Module]:
    return read_modules(ROOT / PACKAGE)


def test_package_is_read_whole(package: list[Module]) -> None:
    assert {"errors", "cli.__init__", "convert.__init__", "bench.__init__"} <= {
        module.name for module in package
    }


@pytest.mark.parametrize("rule", RULES)
def test_package_keeps_the_rule(package: list[Module], rule: Rule) -> None:
    assert list(rule(package)) == []


def test_project_names_no_path_of_a_machine() -> None:
    texts = project_texts()
    assert "pyproject.toml" in texts
    assert find_machine_paths(texts) == []


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES

BREACHES: tuple[tuple[Rule, str, str, str], ...] = (
    (check_floors, "weights", "import redrafter_mlx.loading.hub", "weights imports loading.hub"),
    (check_floors, "weights", "from redrafter_mlx.loading import hub", "imports loading.hub"),
    (check_floors, "weights", "from redrafter_mlx.loading.hub import f", "imports loading.hub"),
    (check_floors, "weights", "def f():\n    from redrafter_mlx import text", "imports text"),
    (check_floors, "weights", "from redrafter_mlx import load", "imports __init__ from"),
    (check_floors, "models.kv_cache", "import redrafter_mlx.models.decoder", "models.decoder"),
    (check_floors, "decoding.novelty", "", "place decoding.novelty on a floor of FLOORS"),
    (check_floors, "weights", "import redrafter_mlx.decoding", "decoding is no module"),
    (check_cycles, "text", "from redrafter_mlx import generation", "-> text -> generation"),
    (check_folder_files, "models.__init__", "from redrafter_mlx import errors", "leave the file"),
    (check_import_names, "text", "from .errors import ConfigError", "relative import"),
    (check_import_names, "text", "import cli.main", "import redrafter_mlx.cli.main instead"),
    (check_import_names, "text", "from convert import gguf", "import redrafter_mlx.convert"),
    (check_heavy_imports, "text", "import transformers", "import transformers inside"),
    (check_heavy_imports, "text", "try:\n    import mlx_lm\nfinally:\n    pass", "mlx_lm inside"),
    (check_heavy_imports, "decoding.stats", "def f():\n    import mlx.core", "must not need mlx"),
    (check_heavy_imports, "cli.main", "import mlx.core as mx", "import mlx inside"),
    (check_print, "text", "print('x')", "print belongs in cli/render.py"),
    (check_kernels, "weights", "def f(mx):\n    mx.fast.metal_kernel()", "a kernel of our own"),
    (check_sizes, "text", LONG_FUNCTION, "f has 51 lines; at most 50"),
    (check_sizes, "text", "x = 1\n" * (MAX_FILE_LINES + 1), "301 lines"),
)
SOUND = {
    "__init__": "def f():\n    from redrafter_mlx import generation\n",
    "errors": "",
    "config": "from redrafter_mlx.errors import ConfigError\n",
    "weights": "import mlx.core as mx\nfrom redrafter_mlx import config\n",
    "decoding.__init__": "",
    "decoding.stats": "",
    "models.__init__": "",
    "models.kv_cache": "import redrafter_mlx.errors\n",
    "models.decoder": "from redrafter_mlx.models import kv_cache\n",
    "loading.__init__": "",
    "loading.hub": "def f():\n    import huggingface_hub\n",
    "text": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers\n",
    "generation": "from redrafter_mlx import text\n",
    "cli.__init__": "",
    "cli.main": "def f():\n    import rich\n    from redrafter_mlx import load\n",
    "cli.render": LONG_FUNCTION.removesuffix("    x = 1\n") + "print('x')\n",
}


def plant(root: Path, sources: Mapping[str, str]) -> Path:
    """Write a package as the project lays it out, cli/ outside with a link to it."""
    package = root / PACKAGE
    (root / "cli").mkdir()
    package.mkdir()
    (package / "cli").symlink_to("../cli", target_is_directory=True)
    for name, source in sources.items():
        path = package.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return package


def test_sound_package_breaks_no_rule(tmp_path: Path) -> None:
    modules = read_modules(plant(tmp_path, SOUND))
    assert sorted(module.name for module in modules) == sorted(SOUND)
    assert [problem for rule in RULES for problem in rule(modules)] == []


@pytest.mark.parametrize(("rule", "name", "source", "problem"), BREACHES)
def test_breach_is_reported_once(
    tmp_path: Path, rule: Rule, name: str, source: str, problem: str
) -> None:
    found = list(rule(read_modules(plant(tmp_path, {**SOUND, name: source}))))
    assert len(found) == 1
    assert problem in found[0]


def test_machine_path_is_reported() -> None:
    machine = "/" + "home" + "/"
    texts = {"a": f"see {machine}x", "b": f"https://site{machine}x", "c": f"..{machine}x"}
    assert find_machine_paths(texts) == ["a"]
