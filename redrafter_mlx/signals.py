"""Signals that end a process, turned into an exception where something must be tidied up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_tidily() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise SystemExit within, where they would end the process.

    The exit code is a shell's, 128 and the signal's number. Once one has come, both are
    ignored until the block has ended: a closing terminal sends several. Signals that are
    handled or ignored already stay as they are, and so do all outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for other in taken:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    try:
        for number in taken:
            signal.signal(number, end)
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
