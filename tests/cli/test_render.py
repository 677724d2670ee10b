"""What is shown, and how."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from redrafter_mlx.cli import render


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Make stdout and stderr one terminal."""
    stream = Terminal()
    with redirect_stdout(stream), redirect_stderr(stream):
        yield stream


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a usual terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def test_no_control_character_reaches_a_terminal() -> None:
    with terminal() as shown, render.AnswerWriter() as writer:
        for code in range(0x180):
            writer.write(chr(code))
    codes = [*range(0x20, 0x7F), *range(0xA0, 0x180)]
    assert shown.getvalue() == "\t\n" + "".join(map(chr, codes)) + "\n"


def test_control_character_at_the_end_is_no_line_end() -> None:
    with terminal() as shown, render.AnswerWriter() as writer:
        writer.write("a\n")
        writer.write("\x07")
    assert shown.getvalue() == "a\n"


def test_error_before_the_first_piece_shows_no_line() -> None:
    with terminal() as shown, pytest.raises(ValueError), render.AnswerWriter():
        raise ValueError
    assert shown.getvalue() == ""


def test_error_in_the_midst_of_an_answer_ends_the_line() -> None:
    with terminal() as shown, pytest.raises(ValueError), render.AnswerWriter() as writer:
        writer.write("a")
        raise ValueError
    assert shown.getvalue() == "a\n"


def test_note_is_dim_on_a_terminal() -> None:
    with terminal() as shown:
        render.note("a [bold]b[/bold] :smile: 12 \x1b[31m")
    assert shown.getvalue() == "\x1b[2ma [bold]b[/bold] :smile: 12 [31m\x1b[0m\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_note_without_colour(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with terminal() as shown:
        render.note("quiet")
        render.table({"a": {"x": "1"}})
    assert "\x1b" not in shown.getvalue()
    assert shown.getvalue().startswith("quiet\n")


def test_long_line_is_not_cut() -> None:
    with terminal() as shown:
        render.note("word " * 100)
    assert shown.getvalue().count("\n") == 1


def test_progress_is_wiped_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "11")
    with terminal() as shown:
        with render.progress("Loading a\nlong name"):
            assert shown.getvalue() == "Loading a "
        assert shown.getvalue() == "Loading a \r" + " " * 10 + "\r"


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress("Loading"):
        pass
    assert capsys.readouterr() == ("", "")


def test_character_that_the_locale_lacks() -> None:
    raw = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(raw, encoding="ascii")) as stream:
        with render.AnswerWriter() as writer:
            writer.write("é!")
        assert raw.getvalue() == b"?!\n"
        stream.detach()
