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


def readable_size(num_bytes: float) -> str:
    """Return a size in decimal units: "98 MB", "13.5 GB"."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
