"""Exit codes, one-line errors, help and version."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from redrafter_mlx import errors
from redrafter_mlx.cli.program import explain
from tests.cli.conftest import Run
from tests.cli.fakes import FakeLibrary

HEAVY = ("mlx", "mlx_lm", "transformers", "numpy", "rich", "huggingface_hub")


def is_one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith("\n")


def test_help_needs_nothing_heavy() -> None:
    """Help answers at once: it imports none of what takes its time."""
    code = (
        "import sys\n"
        "from redrafter_mlx.cli.main import app\n"
        "try:\n    app(['generate', '--help'], prog_name='redrafter-mlx')\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        f"print('heavy:', sorted(sys.modules.keys() & set({HEAVY!r})))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stderr == ""
    assert "--beam-width" in done.stdout
    assert done.stdout.endswith("heavy: []\n")


def test_help_names_every_command(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("generate", "chat", "convert", "--version"))
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["chat", "generate", "convert"])
def test_the_hub_has_its_name(run: Run, command: str) -> None:
    text = " ".join(run(command, "--help").stdout.split())
    assert "the Hub" in text and "the hub" not in text


def test_no_command_shows_help_and_fails(run: Run) -> None:
    result = run()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Commands:" in result.stderr


@pytest.mark.parametrize("args", [["--version"], ["generate", "--version"], ["chat", "--version"]])
def test_version(run: Run, args: list[str]) -> None:
    result = run(*args)
    assert result.exit_code == 0
    assert result.stdout.startswith("redrafter-mlx ")
    assert is_one_line(result.stdout)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["generate", "-p", "x", "--model", ""], "'--model': it is empty; give a name"),
        (
            ["generate", "-p", "x", "--drafter", ""],
            "'--drafter': it is empty; name a file or",
        ),
        (["chat", "--model", " "], "'--model': it is empty"),
        (["tune", "--model", ""], "'--model': it is empty"),
        (["nope"], "No such command 'nope'"),
        (["--nope"], "No such option: --nope"),
        (["generate"], "--prompt"),
        (["generate", "--nope"], "No such option: --nope"),
        (["generate", "--prompt"], "--prompt"),
        (["generate", "-p", "x", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "-p", "x", "--temp", "warm"], "--temp"),
        (["generate", "-p", "x", "--seed", "1.5"], "--seed"),
        (["generate", "-p", "x", "--dtype", "float64"], "'float64' is not one of auto"),
        (["generate", "-p", "x", "--drafter", "d", "--no-drafter"], "contradicts --drafter"),
        (["generate", "-p", "x", "--raw", "--system", "s"], "no system prompt"),
        (
            ["generate", "-p", "x", "--compare", "--no-drafter", "--no-lookup"],
            "nothing to compare without a draft; leave out --no-drafter or --no-lookup",
        ),
        (["generate", "-p", "x", "--compare", "--beam-length", "1"], "nothing to compare"),
        (["generate", "x"], "x"),
        (["chat", "--dtype", "int8"], "'int8' is not one of auto"),
        (["chat", "--drafter", "d", "--no-drafter"], "contradicts --drafter"),
        (["convert"], "SOURCE"),
        (["convert", "a"], "--out"),
        (["convert", "", "--out", "b"], "'SOURCE': it is empty; give a name"),
        (["convert", "a", "--out", ""], "'--out': it is empty; name a file or a folder"),
        (["convert", "a", "--out", "b", "--draft-length", "0"], "--draft-length is 0; choose"),
        (["convert", "a", "--out", "b", "--draft-vocab", "0"], "--draft-vocab is 0; choose"),
        (["convert", "a", "--out", "b", "--draft-vocab", "9", "--from", ""], "'--from': it is em"),
        (["convert", "a", "--out", "b", "--quantize", "5"], "5 is neither 4 nor 8"),
        (
            ["convert", "a", "--out", "b", "--to", "pytorch", "--quantize", "4"],
            "--quantize: it has",
        ),
        (
            ["convert", "a", "--out", "b", "--to", "pytorch", "--dtype", "float16"],
            "--dtype: it has",
        ),
        (["tune", "--no-drafter"], "--no-drafter: there is no shape"),
        (["convert", "a", "--out", "b", "--group-size", "48"], "48 is none of 32, 64, 128"),
        (["convert", "a", "--out", "b", "--draft-vocab", "9"], "--target's own answers"),
        (["convert", "a", "--out", "b", "--from", "c.npz"], "goes with --draft-vocab"),
        (["convert", "a", "--out", "b", "--draft-vocab", "9", "--from", "c.txt"], "--target"),
    ],
)
def test_usage_error_is_one_line_and_exit_2(
    run: Run, library: FakeLibrary, args: list[str], complaint: str
) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert is_one_line(result.stderr)
    assert result.stderr.startswith("redrafter-mlx: ")
    assert result.stdout == ""
    assert library.loads == []


@pytest.mark.parametrize("command", [["generate", "-p", "x"], ["chat"]])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temp", "-1"),
        ("--temp", "nan"),
        ("--top-p", "1.5"),
        ("--top-p", "-0.1"),
        ("--top-k", "-1"),
        ("--min-p", "2"),
        ("--seed", "-1"),
        ("--max-tokens", "0"),
        ("--beam-width", "0"),
        ("--beam-width", "65"),
        ("--beam-length", "0"),
        ("--beam-length", "65"),
        ("--stop", ""),
        ("--system", "\udcff"),
    ],
)
def test_value_out_of_range_is_refused_before_loading(
    run: Run, library: FakeLibrary, command: list[str], option: str, value: str
) -> None:
    result = run(*command, option, value)
    assert result.exit_code == 2
    assert is_one_line(result.stderr)
    assert result.stdout == ""
    assert library.loads == []
    if option not in ("--stop", "--system"):
        assert result.stderr.startswith(f"redrafter-mlx: {option} is {value}")


@pytest.mark.parametrize(
    ("name", "fault"), [("none", "is no folder"), ("file", "is no folder"), (".", "has no config")]
)
def test_wrong_drafter_is_refused_before_loading(
    run: Run, library: FakeLibrary, tmp_path: Path, name: str, fault: str
) -> None:
    (tmp_path / "file").touch()
    result = run("chat", "--drafter", str(tmp_path / name))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"redrafter-mlx: The drafter {tmp_path / name} {fault}")
    assert result.stderr.count("\n") == 1
    assert library.loads == []


def test_error_is_one_line_whatever_is_in_it(
    run: Run, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, **options: object) -> None:
        raise errors.CheckpointError(f"There is no model {name}; name another.")

    monkeypatch.setattr("redrafter_mlx.loading.model.load", load)
    result = run("generate", "--prompt", "x", "--model", "a\nb\x1b[31m[bold]")
    assert result.exit_code == 1
    assert result.stderr == "redrafter-mlx: There is no model a b[31m[bold]; name another.\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    "args", [["--debug", "generate", "-p", "x"], ["generate", "-p", "x", "--debug"]]
)
def test_debug_shows_the_traceback(run: Run, library: FakeLibrary, args: list[str]) -> None:
    library.error = errors.PromptError("too long")
    result = run(*args)
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith("redrafter-mlx: too long\n")
    assert "Traceback" not in run("generate", "-p", "x").stderr


def test_unexpected_error_is_one_line(run: Run, library: FakeLibrary) -> None:
    library.error = KeyError("weight")
    result = run("generate", "-p", "x")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "redrafter-mlx: Internal error: KeyError: 'weight'; run with --debug for the traceback.\n"
    )


def test_ctrl_c_is_quiet_and_exit_130(run: Run, library: FakeLibrary) -> None:
    library.error = KeyboardInterrupt()  # type: ignore[assignment]
    result = run("generate", "-p", "x")
    assert result.exit_code == 130
    assert result.stdout == result.stderr == ""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/c/model"),
            "/c/model: No space left on device; free some space.",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "f"), "f: Permission denied; check"),
        (OSError("odd"), "odd."),
        (MemoryError(), "The memory is full; choose a smaller model"),
        (RuntimeError("[malloc] Unable to allocate 8 bytes."), "The memory is full"),
        (RuntimeError("odd"), "Internal error: RuntimeError: odd; run with --debug"),
    ],
)
def test_explanation_says_what_to_do(error: Exception, message: str) -> None:
    failure = explain(error)
    assert failure.message.startswith(message)
    assert failure.exit_code == 1


def test_closed_pipe_is_quiet() -> None:
    """``redrafter-mlx ... | head`` ends without a word."""
    code = (
        "import sys, redrafter_mlx.cli.render as render\n"
        "from redrafter_mlx.cli import main\n"
        "main.app.command('flood')(lambda: [render.line('x' * 1000) for _ in range(10000)])\n"
        "sys.argv = ['redrafter-mlx', 'flood']\n"
        "main.main()\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(10) == b"x" * 10
        process.stdout.close()
        assert process.wait(timeout=30) == 1
        assert process.stderr.read() == b""
