"""Folders that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.file_errors import refusing, unwritable
from redrafter_mlx.signals import ending_tidily

_LEFTOVER_SECONDS = 24 * 3600  # on file systems without locks
_SECONDS_TO_LOCK = 2  # between making a folder and locking it


_PARTIAL = re.compile(r".+\.partial-[0-9a-f]{8}")


@contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """Give a folder to fill that takes its real name only when the block ends well.

    The folder to fill is a sibling, ``NAME.partial-xxxxxxxx``, written through to the disk
    and then renamed in one step. It is removed on any exception, SIGTERM and SIGHUP among
    them. One that a killed process left behind bears another name than the real folder, so
    nobody takes it for that, and goes with the next new folder of the name.

    Raises:
        CheckpointError: ``path`` exists already and is not an empty folder, somebody else
            made it meanwhile, or nothing can be written there.
    """
    path = Path(path).resolve()
    _remove_leftovers(path)
    require_free(path)
    partial = partial_name(path)
    with ending_tidily():
        try:
            with refusing(unwritable, path):
                partial.mkdir(parents=True)
            with _locked(partial):
                yield partial
                with refusing(unwritable, path):
                    _sync_folder(partial)
                    partial.rename(path)  # the system refuses a target that is not empty
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def partial_name(path: Path) -> Path:
    """Return a free sibling's name by which ``new_folder`` knows a folder as left over."""
    return path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")


def require_free(path: Path | str, advice: str = "choose another or remove it") -> None:
    """Refuse a folder that exists and is not empty, as ``new_folder`` does, before slow work.

    Args:
        path: Need not exist.
        advice: What to do if it is taken.
    """
    if os.path.exists(path):
        with suppress(OSError):
            if not os.listdir(path):
                return
        raise CheckpointError(f"{path} exists and is not an empty folder; {advice}.")


def is_leftover(folder: Path) -> bool:
    """Whether a folder is one that a killed process had begun to make."""
    return _PARTIAL.fullmatch(folder.name) is not None and not _may_have_a_maker(folder)


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left, but not the folder that one may still fill."""
    for partial in path.parent.glob(f"{glob.escape(path.name)}.partial-*"):
        if is_leftover(partial):
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(partial: Path) -> Iterator[None]:
    """Lock the folder to fill; the lock ends with the process, however it ends."""
    handle = os.open(partial, os.O_RDONLY)
    try:
        with suppress(OSError):  # not on every file system
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _may_have_a_maker(partial: Path) -> bool:
    """Whether a living process holds the lock; where nothing can be locked, age decides."""
    try:
        age_seconds = time.time() - partial.lstat().st_mtime
        handle = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:  # it is gone, or no folder
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return age_seconds < _LEFTOVER_SECONDS
    finally:
        os.close(handle)
    return age_seconds < _SECONDS_TO_LOCK


def _sync_folder(folder: Path) -> None:
    """Wait until all of a folder is on the disk: else a rename can get there first."""
    for parent, _, names in os.walk(folder):
        for name in (*names, ""):
            _sync(os.path.join(parent, name))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def sync(handle: int) -> None:
    """Wait until what was written to an open file is on the disk itself, where that is known."""
    try:
        os.fsync(handle)
        if sys.platform == "darwin":  # where fsync leaves the data in the drive's cache
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not on this file system
            raise
