"""Ctrl-C while an answer runs: a wish to stop, not an exception."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

WAITING = b"\nThe prompt is being read; the answer stops then. Ctrl-C again leaves.\n"


@dataclass(slots=True)
class Interrupt:
    """Whether the user wants the answer to stop.

    Attributes:
        is_requested: Set by the first Ctrl-C; to be looked at between tokens, where
            nothing is half done.
        is_waiting: Whether no token has come yet, so that the wish takes a while.
    """

    is_requested: bool = False
    is_waiting: bool = True

    def handle(self, signal_number: int, frame: FrameType | None) -> None:
        """Note the first Ctrl-C; the second one raises KeyboardInterrupt."""
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        if self.is_waiting and sys.stderr.isatty():
            # sys.stderr is not reentrant, and a handler may run in the midst of a write.
            os.write(sys.stderr.fileno(), WAITING)


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C within into ``is_requested``; only on the main thread."""
    interrupt = Interrupt()
    previous = signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)
