"""Every option of the commands changes something: none is read and then forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import typer.main

from redrafter_mlx.bench import session
from redrafter_mlx.cli import bench
from redrafter_mlx.cli.main import app
from redrafter_mlx.weights import load_tensors, read_json, save_tensors
from tests.cli.conftest import Run
from tests.cli.fakes import FakeConversation, FakeLibrary
from tests.cli.tiny_source import write_drafter
from tests.tiny_vicuna import write_tiny_vicuna

# What stands behind each option, and what it needs beside it.
MODEL = {
    "--model": ("m",), "--drafter": (".",), "--no-drafter": (), "--dtype": ("float16",),
    "--quantize": ("4",), "--group-size": ("32", "--quantize", "4"), "--revision": ("v2",),
}  # fmt: skip
ANSWER = {
    "--system": ("Be brief",), "--thinking": (), "--max-tokens": ("2",), "--temp": ("0.8",),
    "--top-p": ("0.9",), "--top-k": ("40",), "--min-p": ("0.05",), "--seed": ("3",),
    "--stop": ("END",), "--beam-width": ("3",), "--beam-length": ("5",),
    "--no-lookup": (), "--lookup-only": (), "--no-adapt": (), "--stats": (),
}  # fmt: skip
PROMPT = {"--prompt": ("Ho",), "--raw": (), "--json": (), "--compare": ()}
# What they do is tested elsewhere: test_program.py, test_convert.py and test_convert_target.py.
ELSEWHERE = {"--help", "--version", "--debug"}
EFFECTS: dict[str, dict[str, tuple[str, ...]]] = {
    "generate": PROMPT | MODEL | ANSWER,
    "chat": MODEL | ANSWER,
    "convert": {
        "--out": ("other",), "--dtype": ("float32",), "--quantize": ("4",),
        "--group-size": ("32", "--quantize", "4"), "--draft-length": ("3",),
        "--draft-vocab": ("9", "--from", "ids.npz"), "--to": ("pytorch",),
    },
    "bench": MODEL | {
        "--suite": ("paper",), "--turns": ("2",), "--limit": ("2",), "--trials": ("5",),
        "--beam-width": ("3",), "--beam-length": ("5",), "--max-tokens": ("9",),
        "--temp": ("0.8",), "--top-p": ("0.9",), "--seed": ("3",), "--no-lookup": (),
        "--out": ("other",), "--resume": (),
    },
}  # fmt: skip
OTHERS = {
    "convert": {"--target", "--revision", "--from"},
    "bench": {"--questions", "--compare", "--predict"},  # test_bench.py
}
# What a command is given where the option under test is another.
USUAL: dict[str, tuple[str, ...]] = {"generate": ("--prompt", "Hi"), "bench": ("--out", "out")}
CASES = [(command, option) for command, options in EFFECTS.items() for option in options]

Trace = Callable[[str, tuple[str, ...]], Any]


@pytest.fixture
def trace(
    run: Run,
    library: FakeLibrary,
    conversations: list[FakeConversation],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Trace:
    """Return what gives all that a command line does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").touch()
    begun: list[Any] = []
    monkeypatch.setattr(session, "begin", lambda model, *given: begun.append(given))
    monkeypatch.setattr(bench, "_run", lambda *_: None)

    def trace(command: str, options: tuple[str, ...]) -> Any:
        library.loads.clear()
        library.runs.clear()
        conversations.clear()
        begun.clear()
        usual = USUAL.get(command, ())
        usual = () if usual[:1] and usual[0] in options else usual
        result = run(command, *usual, *options, stdin="Hi\n")
        assert result.exit_code == 0, result.stderr
        asked = [(one.system, one.thinking, one.config) for one in conversations]
        return [*library.loads], [*library.runs], asked, [*begun], result.stdout

    return trace


def test_no_option_is_left_out() -> None:
    commands: Any = typer.main.get_command(app)
    for command, effects in EFFECTS.items():
        options = {
            parameter.opts[0]
            for parameter in commands.commands[command].params
            if parameter.opts[0].startswith("--")
        }
        assert options - ELSEWHERE - OTHERS.get(command, set()) == effects.keys(), command


@pytest.mark.parametrize(("command", "option"), [case for case in CASES if case[0] != "convert"])
def test_an_option_changes_what_the_library_is_asked(
    trace: Trace, command: str, option: str
) -> None:
    value, needed = EFFECTS[command][option][:1], EFFECTS[command][option][1:]
    if option in ("--top-p", "--top-k", "--min-p", "--seed"):
        needed = ("--temp", "0.7")
    assert trace(command, (option, *value, *needed)) != trace(command, needed)


def write_wide_drafter(folder: Path) -> None:
    """Write one in float32, which alone is cast."""
    tensors = load_tensors(write_drafter(folder))
    save_tensors(
        folder / "model.safetensors", {name: t.astype(mx.float32) for name, t in tensors.items()}
    )


@pytest.mark.parametrize("option", EFFECTS["convert"])
@pytest.mark.parametrize("kind", ["drafter", "target"])
def test_an_option_changes_what_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, kind: str
) -> None:
    if kind == "target" and option.startswith(("--draft", "--to")):
        pytest.skip("wrong usage: see test_convert_target.py")
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "source"
    if kind == "drafter":
        write_wide_drafter(source)
    else:
        write_tiny_vicuna(source)
    one, none = np.array([20]), np.array([0])
    np.savez(tmp_path / "ids.npz", tokens=np.arange(20), lengths=one, prompt_lengths=none)
    value, needed = EFFECTS["convert"][option][:1], EFFECTS["convert"][option][1:]
    needed = () if option == "--draft-vocab" else needed
    value = EFFECTS["convert"][option] if option == "--draft-vocab" else value

    def written(*options: str) -> Any:
        out = () if "--out" in options else ("--out", "out")
        assert run("convert", str(source), *out, *options).exit_code == 0
        folder = (tmp_path / "out") if out else tmp_path / "other"
        config = read_json(folder / "config.json")
        found = folder.name, config, sorted(p.stat().st_size for p in folder.iterdir())
        folder.rename(tmp_path / f"done-{len(list(tmp_path.iterdir()))}")
        return found

    assert written(option, *value, *needed) != written(*needed)
