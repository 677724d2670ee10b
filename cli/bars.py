"""Shows how far something long is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redrafter_mlx.cli.render import console, note

SECONDS_BETWEEN_NOTES = 30


@contextmanager
def bar(text: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """Show how far something long is: a bar on a terminal, else a quiet line now and then.

    Args:
        text: What is being done.
        total: What ``done`` reaches at the end, ``None`` where nobody knows.

    Yields:
        What takes how much is done, and a few words beside it.
    """
    if not sys.stderr.isatty():
        yield _quiet_bar(text, total)
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
        task = progress.add_task(text, total=total, words="")
        yield lambda done, words: progress.update(task, completed=done, words=words)


def _quiet_bar(text: str, total: int | None) -> Callable[[int, str], None]:
    """Return what notes the progress every half minute, with the time left."""
    started = noted = time.monotonic()
    first: int | None = None

    def show(done: int, words: str) -> None:
        nonlocal noted, first
        first = done if first is None else first
        now = time.monotonic()
        if now - noted < SECONDS_BETWEEN_NOTES:
            return
        noted = now
        left = ""
        if total is not None and done > first:
            seconds = (now - started) / (done - first) * max(total - done, 0)
            left = f", {seconds / 60:.0f} min left"
        note(f"{text}: {done}{f' of {total}' if total is not None else ''}, {words}{left}")

    return show
