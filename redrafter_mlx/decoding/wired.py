"""Metal's wired limit, raised while answers are generated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import mlx.core as mx

from redrafter_mlx.loading.memory import recommended_bytes


class WiredLimit:
    """Keeps the weights in memory while somebody decodes; the system would page them out.

    The limit belongs to the process, so decodes that overlap share it: the first one raises
    it to what the device recommends and the last one sets back what it was, in whatever
    order and on whatever thread they end.
    """

    def __init__(self) -> None:
        """Start with nobody decoding."""
        # Re-entrant: an abandoned decode may be collected while this thread holds the lock.
        self._lock = threading.RLock()
        self._users: set[object] = set()
        self._previous: list[int] = []

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the limit within; without effect on a device that recommends none."""
        user = object()
        try:
            self._enter(user)
            yield
        finally:
            self._leave(user)

    def _enter(self, user: object) -> None:
        with self._lock:
            self._users.add(user)
            limit = recommended_bytes()
            if limit is None or self._previous:
                return
            with suppress(RuntimeError, ValueError):  # slower without, but no reason to fail
                # In one step that Ctrl-C cannot part: else nobody knew what to set back.
                self._previous.extend(map(mx.set_wired_limit, (limit,)))

    def _leave(self, user: object) -> None:
        with self._lock:
            self._users.discard(user)
            if self._users or not self._previous:
                return
            try:
                mx.synchronize()  # the limit must not change in the midst of an evaluation
            finally:
                mx.set_wired_limit(self._previous.pop())


WIRED_LIMIT = WiredLimit()
