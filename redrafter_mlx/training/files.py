"""Files that appear whole or not at all, whenever the process is killed."""

from __future__ import annotations

import fcntl
import glob
import json
import secrets
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.folders import sync

# What np.load raises on a damaged archive and on other files.
LOAD_ERRORS = (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, through to the disk, and move it there in one step.

    Several processes may write the same file: the last one to end wins. What a killed one
    left behind goes with the next write.

    Raises:
        CheckpointError: Nothing can be written there.
    """
    partial = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        with partial.open("xb") as file:
            with suppress(OSError):  # not on every file system
                fcntl.flock(file, fcntl.LOCK_EX)
            write(file)
            file.flush()
            sync(file.fileno())
            partial.replace(path)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror or error}); make room or choose another "
            "place."
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def write_object(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object whole or not at all."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def _remove_leftovers(path: Path) -> None:
    """Remove the partial files of processes that are no more.

    A living one locks its file before it writes to it.
    """
    for partial in path.parent.glob(f"{glob.escape(path.name)}.partial-*"):
        with suppress(OSError), partial.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if partial.stat().st_size > 0:
                partial.unlink()


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an uncompressed ``.npz`` whole or not at all."""
    write_whole(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def read_arrays(path: Path, names: tuple[str, ...]) -> list[npt.NDArray[Any]]:
    """Read arrays of an ``.npz``.

    Raises:
        CheckpointError: The file is missing or damaged, or lacks one of them.
    """
    try:
        # Opened here, for np.load leaves the file open where it is no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except LOAD_ERRORS as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise CheckpointError(
            f"{path} is no .npz with {', '.join(names)} ({reason}); make it again."
        ) from error
