"""Where the time of a round goes, by evaluating between its parts."""

from __future__ import annotations

import time
from typing import Any

import mlx.core as mx

from redrafter_mlx.decoding.stats import DecodeStats


class Stopwatch:
    """Times the parts of one round; one that is not running does nothing.

    What a part leaves on the device is evaluated before its time is taken, so a timed round
    is a little slower than others: nothing overlaps in it.
    """

    def __init__(self, stats: DecodeStats, *, is_running: bool) -> None:
        """Start a round."""
        self._stats = stats
        self._is_running = is_running
        self._last = time.perf_counter()

    def lap(self, part: str, *arrays: Any) -> None:
        """Evaluate what a part built, and count its time."""
        if not self._is_running:
            return
        mx.eval(arrays)
        now = time.perf_counter()
        self._stats.record_part(part, now - self._last)
        self._last = now

    def skip(self) -> None:
        """Leave out what has passed since the last part ended."""
        self._last = time.perf_counter()

    def stop(self) -> None:
        """End the round."""
        if self._is_running:
            self._stats.num_timed_rounds += 1
