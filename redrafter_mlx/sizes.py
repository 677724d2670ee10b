"""Numbers of bytes: as a user reads them, and what the machine has."""

from __future__ import annotations

import os


def readable_size(num_bytes: float) -> str:
    """Return a size in decimal units: "98 MB", "13.5 GB"."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def total_memory_bytes() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
