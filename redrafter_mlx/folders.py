"""Folders that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.file_errors import refusing, unwritable

_LEFTOVER_SECONDS = 24 * 3600


@contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """Give a folder to fill that takes its real name only when the block ends well.

    The folder to fill is a sibling, ``NAME.partial-xxxxxxxx``, written through to the disk
    and then renamed in one step. It is removed on any exception; one that a killed process
    left behind bears another name than the real folder, so nobody takes it for that, and
    goes with the next new folder of the name that is made a day later.

    Raises:
        CheckpointError: ``path`` exists already and is not an empty folder, somebody else
            made it meanwhile, or nothing can be written there.
    """
    path = Path(path).resolve()
    _remove_leftovers(path)
    require_free(path)
    partial = partial_name(path)
    try:
        with refusing(unwritable, partial):
            partial.mkdir(parents=True)
        yield partial
        with refusing(unwritable, path):
            _sync_folder(partial)
            partial.rename(path)  # the system refuses a target that is not an empty folder
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def partial_name(path: Path) -> Path:
    """Return a free sibling's name by which ``new_folder`` knows a folder as left over."""
    return path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")


def require_free(path: Path | str) -> None:
    """Refuse a folder that exists and is not empty, as ``new_folder`` does, before slow work."""
    if os.path.exists(path):
        with suppress(OSError):
            if not os.listdir(path):
                return
        raise CheckpointError(
            f"{path} exists and is not an empty folder; choose another or remove it."
        )


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left, but not the folder that one may still fill."""
    pattern = f"{glob.escape(path.name)}.partial-{'[0-9a-f]' * 8}"
    for partial in path.parent.glob(pattern):
        with suppress(OSError):
            if time.time() - partial.lstat().st_mtime > _LEFTOVER_SECONDS:
                shutil.rmtree(partial)


def _sync_folder(folder: Path) -> None:
    """Wait until all of a folder is on the disk: else a rename can get there first."""
    for parent, _, names in os.walk(folder):
        for name in (*names, ""):
            _sync(os.path.join(parent, name))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        if sys.platform == "darwin":  # where fsync leaves the data in the drive's cache
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not on this file system
            raise
    finally:
        os.close(handle)
