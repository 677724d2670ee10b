"""Bounds-checked steps through a memory-mapped file."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from redrafter_mlx.errors import CheckpointError


def shown(value: Any) -> str:
    """Return a value from a file in one short line; numpy breaks the lines of an array."""
    return " ".join(repr(value).split())[:60]


class FileCursor:
    """A place in a file that only steps forward and cannot leave it.

    Attributes:
        path: The file.
        data: All of it, mapped.
        position: The next byte to read.

    Raises:
        CheckpointError: From every method: there is less in the file than it claims.
    """

    def __init__(self, path: Path) -> None:
        """Map the file."""
        self.path = path
        self.data = _map(path)
        self.position = 0

    @property
    def num_left(self) -> int:
        """Bytes from here to the end of the file."""
        return len(self.data) - self.position

    def fail(self, what: str) -> CheckpointError:
        """Return the error to raise where the file does not hold what it claims."""
        return CheckpointError(f"{self.path} is truncated or damaged: {what}; get it again.")

    def skip(self, num_bytes: int, what: str) -> int:
        """Step over the bytes and return where they begin."""
        if num_bytes > self.num_left:
            raise self.fail(f"{what} takes {num_bytes} bytes and {self.num_left} are left")
        begin, self.position = self.position, self.position + num_bytes
        return begin

    def unpack(self, code: str, what: str) -> int:
        """Read one whole number, ``code`` as in struct."""
        begin = self.skip(struct.calcsize(code), what)
        return int(struct.unpack_from(code, self.data, begin)[0])

    def count(self, least_bytes: int, what: str) -> int:
        """Read a 64-bit count of things that take ``least_bytes`` or more each."""
        count = self.unpack("<Q", what)
        if count * least_bytes > self.num_left:
            raise self.fail(f"{what} is {count} and {self.num_left} bytes are left")
        return count

    def string(self, what: str) -> str:
        """Read a 64-bit length and as many bytes of UTF-8."""
        length = self.count(1, f"the length of {what}")
        begin = self.skip(length, what)
        try:
            return self.data[begin : begin + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} at byte {begin} is not UTF-8") from error

    def numbers(self, dtype: np.dtype[Any], count: int, what: str) -> npt.NDArray[Any]:
        """Return a view of the next ``count`` numbers."""
        begin = self.skip(dtype.itemsize * count, what)
        return np.frombuffer(self.data, dtype, count, begin)

    def aligned(self, alignment: Any) -> int:
        """Return the next multiple of ``alignment``, where the data begin."""
        if type(alignment) is not int or not 0 < alignment <= len(self.data):
            raise self.fail(f"general.alignment is {shown(alignment)}")
        return -(-self.position // alignment) * alignment

    def unique(self, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Return a dict of the pairs, none of which may have another's name."""
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name in values:
                raise self.fail(f"{name!r:.120} is there twice")
            values[name] = value
        return values


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file cannot be mapped
        raise CheckpointError(f"{path} is empty; get the file again.") from error
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); check the path."
        ) from error
