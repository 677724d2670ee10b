"""Ctrl-C in a chat on a terminal: a wish to stop an answer, not the program."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

WAITING = b"\nStopping when this part of the prompt is read; Ctrl-C again stops at once.\n"


@dataclass(slots=True)
class Interrupt:
    """Counts Ctrl-C; raises KeyboardInterrupt only where it is awaited, and there once.

    However often and however quickly the key is pressed, no other place is interrupted.

    Attributes:
        num_presses: How often it was pressed where it is awaited.
        raising_press: Which of them raises; 0 where none is awaited and all are ignored.
        is_waiting: Whether an answer has no token yet, so that a wish to stop takes a while.
    """

    num_presses: int = 0
    raising_press: int = 0
    is_waiting: bool = False

    @property
    def is_requested(self) -> bool:
        """Whether the user wants the answer to stop.

        To be looked at between tokens, where nothing is half done.
        """
        return self.num_presses > 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle Ctrl-C within; only on the main thread."""
        previous = signal.signal(signal.SIGINT, self.handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    @contextmanager
    def raising_at(self, press: int) -> Iterator[None]:
        """Await Ctrl-C within; put it inside a ``try``, since its end may raise, too."""
        self.num_presses, self.raising_press = 0, press
        try:
            yield
        finally:
            self.raising_press = 0

    def handle(self, signal_number: int, frame: FrameType | None) -> None:
        """Count, and raise KeyboardInterrupt if it is the time."""
        if not self.raising_press:
            return
        self.num_presses += 1
        if self.num_presses == self.raising_press:
            raise KeyboardInterrupt
        if self.is_waiting and self.num_presses == 1 and sys.stderr.isatty():
            # sys.stderr is not reentrant, and a handler may run in the midst of a write.
            os.write(sys.stderr.fileno(), WAITING)
