"""A limit on the time of a measurement."""

from __future__ import annotations

import time


class TimeLimit:
    """Time that may be spent; what would not end within it is not begun."""

    def __init__(self, seconds: float) -> None:
        """Start the clock."""
        self._ends_at = time.perf_counter() + seconds

    @property
    def seconds_left(self) -> float:
        """What is left of it, negative once it is over."""
        return self._ends_at - time.perf_counter()

    def allows(self, seconds: float) -> bool:
        """Whether work of so many seconds would end in time."""
        return seconds <= self.seconds_left

    def share(self, fraction: float) -> TimeLimit:
        """Return a limit of this part of what is left."""
        return TimeLimit(fraction * self.seconds_left)
