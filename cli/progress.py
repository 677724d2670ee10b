"""What is shown on a terminal's stderr while something takes its time, and wiped off then."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from redrafter_mlx.cli import render

if TYPE_CHECKING:
    from rich.progress import Progress


class Activity:
    """A line on a terminal's stderr while something takes its time, or a bar of its bytes.

    Where stderr is no terminal, only ``note`` shows anything.
    """

    def __init__(self, text: str) -> None:
        """Name what takes its time."""
        self._text = render.one_line(text)[: shutil.get_terminal_size().columns - 1]
        self._is_terminal = sys.stderr.isatty()
        self._is_shown = False
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        """Show the line."""
        if self._is_terminal:
            render.write_err(self._text)
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
        render.note(text)

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
            render.write_err("\r" + " " * len(self._text) + "\r")
            self._is_shown = False


def activity(text: str) -> Activity:
    """Return the block in which a line tells what takes its time."""
    return Activity(text)


def _byte_bar() -> Progress:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=render.console(), transient=True)


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
            render.write_err("\r" + self._shown)

    def clear(self) -> None:
        """Wipe it off before something else is shown."""
        if self._shown:
            render.write_err("\r" + " " * len(self._shown) + "\r")
        self._shown = ""


@contextmanager
def share_bar(text: str) -> Iterator[Callable[[float], None]]:
    """Give a function that shows the share that is done, from 0 to 1, on a terminal's stderr."""
    if not sys.stderr.isatty():
        yield lambda share: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=render.console(), transient=True) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda share: bar.update(task, completed=share)
