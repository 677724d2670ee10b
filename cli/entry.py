"""The console script: makes sure of the process before anything of weight is imported."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line."""
    # Until the commands can answer for it, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    open_standard_streams()
    from redrafter_mlx.cli import main as command_line

    signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line.main()


def open_standard_streams() -> None:
    """Open the null device for each of the streams 0 to 2 that the caller closed.

    Else the next file that is opened gets its number: MLX takes a file 0 for a failure.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number  # the lowest free one
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
