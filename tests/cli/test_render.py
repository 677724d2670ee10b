"""What is shown, and how."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from redrafter_mlx.cli import progress, render
from redrafter_mlx.decoding.stats import DecodeStats


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


def test_no_control_character_reaches_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
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
        with progress.activity("Loading a\nlong name"):
            assert shown.getvalue() == "Loading a "
        assert shown.getvalue() == "Loading a \r" + " " * 10 + "\r"


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.activity("Loading"):
        pass
    assert capsys.readouterr() == ("", "")


def test_answer_on_a_terminal_breaks_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "11")
    pieces = ["Hello", " there", ", you", " all", "\n", "```\n", "a  long line of code", "\n```"]
    with terminal() as shown, render.AnswerWriter() as writer:
        for piece in pieces:
            writer.write(piece)
    assert shown.getvalue() == "Hello\nthere, you\nall\n```\na  long line of code\n```\n"


def test_answer_that_breaks_off_shows_what_was_held_back() -> None:
    with terminal() as shown, pytest.raises(ValueError), render.AnswerWriter() as writer:
        writer.write("a wor")
        raise ValueError
    assert shown.getvalue() == "a wor\n"


def test_progress_of_a_prompt_waits_and_is_wiped_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: what is shown in the end is the answer alone, and a quick prompt shows nothing."""
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with terminal() as shown, progress.PromptProgress() as reading:
        reading.show(1, 3)
        reading.clear()
        assert shown.getvalue() == ""
        now += progress.PromptProgress.PATIENCE_SECONDS
        reading.show(2, 3)
        assert shown.getvalue() == "\rReading the prompt: 66 %"
        reading.clear()
        reading.clear()
        wiped = "\r" + " " * 24 + "\r"
        assert shown.getvalue() == "\rReading the prompt: 66 %" + wiped
        reading.show(3, 3)
    assert shown.getvalue().endswith("100 %\r" + " " * 25 + "\r")


def test_progress_of_a_prompt_is_for_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.PromptProgress, "PATIENCE_SECONDS", 0.0)
    with progress.PromptProgress() as reading:
        reading.show(1, 2)
    assert capsys.readouterr() == ("", "")


def test_character_that_the_locale_lacks() -> None:
    raw = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(raw, encoding="ascii")) as stream:
        with render.AnswerWriter() as writer:
            writer.write("é!")
        assert raw.getvalue() == b"?!\n"
        stream.detach()


def test_bytes_show_on_a_terminal_with_rate_and_time_left_and_leave_nothing() -> None:
    with terminal() as shown:
        with progress.activity("Loading") as activity:
            activity.progress(0, 8_000_000)
            activity.progress(3_000_000, 8_000_000)
            during = shown.getvalue()
            activity.progress(8_000_000, 8_000_000)
        after = shown.getvalue()
    assert during.startswith("Loading\r       \r")
    for part in ("0.0/8.0 MB", "8.0/8.0 MB", "B/s", "0:00:00"):
        assert part in after
    assert after.endswith("\x1b[2K"), "the bar's line is wiped off"


def test_a_note_takes_the_place_of_a_line_and_of_a_bar() -> None:
    with terminal() as shown, progress.activity("Loading") as activity:
        activity.note("one\x1b")
        activity.progress(1, 2)
        activity.note("two")
        bar_end = shown.getvalue()
    assert shown.getvalue().startswith("Loading\r       \r")
    assert "one" in bar_end and "two" in bar_end
    assert shown.getvalue() == bar_end, "nothing was left to wipe off"


def test_without_a_terminal_only_notes_are_shown() -> None:
    stream = io.StringIO()
    with redirect_stderr(stream), progress.activity("Loading") as activity:
        activity.progress(1, 2)
        activity.note("one")
        activity.progress(2, 2)
    assert stream.getvalue() == "one\n"


def test_parts_of_a_round_that_nobody_timed_are_said_to_be_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    render.stats_details(DecodeStats(emitted_tokens=2, num_rounds=1, num_plain_steps=1))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "ms of a round: none was timed, since nothing was drafted"
