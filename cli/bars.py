"""Shows how far something long is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from redrafter_mlx.cli.render import console, note

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_BETWEEN_NOTES = 30


class Bar(Protocol):
    """How far something long is."""

    def show(self, done: int, total: int, words: str) -> None:
        """Show how much is done, how much it is in all, and a few words beside it."""

    def note(self, text: str) -> None:
        """Show a line that stays."""


@contextmanager
def bar(text: str) -> Iterator[Bar]:
    """Show how far something long is: a bar on a terminal, else a quiet line now and then.

    Args:
        text: What is being done.
    """
    if not sys.stderr.isatty():
        yield _QuietBar(text)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(), transient=True) as progress:
        progress.add_task(text, total=None, words="")
        yield _TerminalBar(progress)


@contextmanager
def resumable(how: str) -> Iterator[None]:
    """Say behind Ctrl-C how what it broke off goes on."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"Broken off; go on with {how}")
        raise


class _TerminalBar:
    """A bar of rich's; what stays is printed above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def show(self, done: int, total: int, words: str) -> None:
        task = self._progress.task_ids[0]
        self._progress.update(task, completed=done, total=total, words=words)

    def note(self, text: str) -> None:
        note(text, self._progress.console)


class _QuietBar:
    """A line every half minute, with the time left."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._started = self._noted = time.monotonic()
        self._first: int | None = None

    def show(self, done: int, total: int, words: str) -> None:
        self._first = done if self._first is None else self._first
        now = time.monotonic()
        if now - self._noted < SECONDS_BETWEEN_NOTES:
            return
        self._noted = now
        left = ""
        if done > self._first:
            seconds = (now - self._started) / (done - self._first) * max(total - done, 0)
            left = f", {seconds / 60:.0f} min left"
        self.note(f"{self._text}: {done} of {total}, {words}{left}")

    def note(self, text: str) -> None:
        note(text)
