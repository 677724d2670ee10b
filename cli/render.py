"""Everything that is shown: answers and results on stdout, all else on stderr.

No text of a model or a user is read as markup, and none of its control characters reaches
a terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from redrafter_mlx import __version__
from redrafter_mlx.cli.wrap import WordWrapper

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from redrafter_mlx.decoding.stats import DecodeStats

# C0 but the tab and the new line, DEL, and C1: an escape sequence needs one of them.
CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


# How a stats line calls an answer that --max-tokens or the end of the context ended.
CUT = "cut short"


class AnswerWriter:
    """Writes an answer to stdout, piece by piece; its block ends the answer's last line.

    Into a pipe or a file go the very characters; for a terminal, control characters are
    left out and lines are broken between words. An error before the first piece leaves
    stdout empty.
    """

    def __init__(self) -> None:
        """Start an answer."""
        self._last = ""
        self._wrapper: WordWrapper | None = None
        if sys.stdout.isatty():
            self._wrapper = WordWrapper(shutil.get_terminal_size().columns)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Show what is held back and end the last line where the text has not."""
        if self._wrapper:
            self._show(self._wrapper.finish())
        if self._last != "\n" and (self._last or kind is None):
            _write_out("\n")

    def write(self, text: str) -> None:
        """Show a piece at once."""
        self._show(self._wrapper.push(without_controls(text)) if self._wrapper else text)

    def _show(self, text: str) -> None:
        if text:
            self._last = text[-1]
            _write_out(text)


def without_controls(text: str) -> str:
    """Return the text without control characters, tabs and new lines excepted."""
    return text.translate(CONTROLS)


def one_line(text: str) -> str:
    """Return the text as one line that a terminal shows as it is."""
    return without_controls(" ".join(text.split()))


def line(text: str) -> None:
    """Show a line on stdout."""
    _write_out(without_controls(text) + "\n")


def json_object(values: Mapping[str, Any]) -> None:
    """Show one JSON object on one line of stdout, in ASCII whatever the locale."""
    _write_out(json.dumps(values, allow_nan=False) + "\n")


def version() -> None:
    """Show the program's version."""
    line(f"redrafter-mlx {__version__}")


def note(text: str) -> None:
    """Show a quiet line (or a quiet block) on stderr."""
    from rich.text import Text

    _console().print(Text(without_controls(text), style="dim"))


def error(message: str) -> None:
    """Show what went wrong, in one line on stderr."""
    sys.stderr.write(one_line(f"redrafter-mlx: {message}") + "\n")


def traceback(failure: Exception) -> None:
    """Show where an error comes from, on stderr."""
    from traceback import format_exception

    sys.stderr.write("".join(format_exception(failure)))


def table(rows: Mapping[str, Mapping[str, str]]) -> None:
    """Show a table on stderr: a name and its values a row, the same columns in each."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False)
    shown.add_column("")
    for column in next(iter(rows.values())):
        shown.add_column(column, justify="right")
    for name, values in rows.items():
        shown.add_row(*(Text(without_controls(cell)) for cell in (name, *values.values())))
    _console().print(shown)


def stats_line(stats: DecodeStats, ending: str | None = None) -> None:
    """Show an answer's figures in one quiet line, and why it ended where it was cut."""
    parts = [
        counted(stats.emitted_tokens, "token"),
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"{stats.tokens_per_round:.2f} tokens/round",
        f"first after {stats.prefill_seconds:.2f} s",
    ]
    note(" · ".join([*parts, ending] if ending else parts))


def counted(number: int, noun: str) -> str:
    """Return "1 token", "2 tokens"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Activity:
    """A line on a terminal's stderr while something takes its time, or a bar of its bytes.

    Where stderr is no terminal, only ``note`` shows anything.
    """

    def __init__(self, text: str) -> None:
        """Name what takes its time."""
        self._text = one_line(text)[: shutil.get_terminal_size().columns - 1]
        self._is_terminal = sys.stderr.isatty()
        self._is_shown = False
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        """Show the line."""
        if self._is_terminal:
            _write_err(self._text)
            self._is_shown = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Wipe off what is still there."""
        self._clear()

    def note(self, text: str) -> None:
        """Show a quiet line that stays, in the place of what was there."""
        self._clear()
        note(text)

    def progress(self, done: int, total: int) -> None:
        """Show how many bytes are done, how fast they come and how long the rest takes."""
        if not self._is_terminal:
            return
        if self._bar is None:
            self._clear()
            self._bar = _byte_bar()
            self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def _clear(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._is_shown:
            _write_err("\r" + " " * len(self._text) + "\r")
            self._is_shown = False


def progress(text: str) -> Activity:
    """Return the block in which a line tells what takes its time."""
    return Activity(text)


def confirm(question: str) -> bool:
    """Ask on stderr; return whether the answer on stdin is yes."""
    _write_err(f"{one_line(question)} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _byte_bar() -> Progress:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=_console(), transient=True)


class PromptProgress:
    """Shows on a terminal's stderr how much of a long prompt is read, then wipes it off."""

    PATIENCE_SECONDS = 1.0

    def __init__(self) -> None:
        """Start to wait."""
        self._started_at = time.monotonic()
        self._shown = ""

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Wipe it off."""
        self.clear()

    def show(self, num_read: int, num_tokens: int) -> None:
        """Show the share that is read, where it has lasted long enough."""
        if sys.stderr.isatty() and time.monotonic() - self._started_at >= self.PATIENCE_SECONDS:
            self._shown = f"Reading the prompt: {100 * num_read // num_tokens} %"
            _write_err("\r" + self._shown)

    def clear(self) -> None:
        """Wipe it off before something else is shown."""
        if self._shown:
            _write_err("\r" + " " * len(self._shown) + "\r")
        self._shown = ""


def _console() -> Console:
    from rich.console import Console

    is_plain = bool(os.environ.get("NO_COLOR")) or not sys.stderr.isatty()
    return Console(
        stderr=True,
        force_terminal=False if is_plain else None,
        color_system=None if is_plain else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def _write_out(text: str) -> None:
    # A character that the locale's encoding lacks must not end the program.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _write_err(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
