"""What the system says of a file, as one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redrafter_mlx.errors import CheckpointError


@contextmanager
def refusing(
    refusal: Callable[[Path | str, Exception], CheckpointError], path: Path | str
) -> Iterator[None]:
    """Turn what the system or MLX raises into a refusal."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise refusal(path, error) from error


def unreadable(path: Path | str, error: Exception) -> CheckpointError:
    """Return the refusal of a file that cannot be read."""
    return CheckpointError(f"{path} cannot be read ({_reason(error)}); check the path.")


def unwritable(path: Path | str, error: Exception) -> CheckpointError:
    """Return the refusal of a place that cannot be written."""
    return CheckpointError(f"{path} cannot be written ({_reason(error)}); choose another place.")


def _reason(error: Exception) -> str:
    """Return what went wrong in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())
