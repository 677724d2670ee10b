"""Versions of the program and of what its answers depend on."""

from __future__ import annotations

import platform
from importlib import metadata

from redrafter_mlx import __version__

PARTS = ("mlx", "mlx-lm", "transformers")


def versions() -> dict[str, str | None]:
    """Return the versions of the program, its parts and Python; None where one is missing."""
    parts = {name: _version_of(name) for name in PARTS}
    return {"redrafter-mlx": __version__, **parts, "python": platform.python_version()}


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
