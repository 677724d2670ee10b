"""Who is told about what takes its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _ignore(*_: object) -> None:
    """Take no notice."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Those who want to know of downloads and conversions; by default nobody.

    Attributes:
        note: Takes a line for the user.
        progress: Takes the bytes that are done, and all that there are.
    """

    note: Callable[[str], None] = _ignore
    progress: Callable[[int, int], None] = _ignore


SILENT = Watch()
