"""Finds what a PyTorch zip file stores, as places in the mapped file.

PyTorch stores its entries uncompressed, so that they can be looked at where they lie.
The checksums are not compared: PyTorch does not, and may be told to write none.

Source:
    pytorch/pytorch, caffe2/serialize/inline_container.h, and torch/serialization.py.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from redrafter_mlx.convert.cursor import FileCursor
from redrafter_mlx.errors import CheckpointError

MAX_PICKLE_BYTES = 8 << 20  # it only names the tensors: 100 to 200 bytes each
_LOCAL_HEADER = 0x04034B50
_LEGACY_PICKLE = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # torch.serialization.MAGIC_NUMBER
_UNREADABLE = (
    zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, OSError,
    struct.error, IndexError, EOFError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry's data lie in the file, in bytes."""

    begin: int
    num_bytes: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.begin + self.num_bytes


class TorchZip:
    """A PyTorch zip file, mapped.

    Attributes:
        path: The file.
        data: All of it.
        pickle: The bytes of data.pkl, which names the tensors.
        storages: Where the bytes of each storage lie, by its key.
    """

    def __init__(self, path: Path) -> None:
        """Map the file and check every entry.

        Raises:
            CheckpointError: It cannot be read, is truncated or damaged, or is no zip file
                as PyTorch writes it on a little-endian machine.
        """
        cursor = FileCursor(path)
        self.path, self.data = path, cursor.data
        try:
            places = _find_entries(cursor)
            folder = _find_folder(cursor, places)
            _check_byte_order(cursor, places.get(f"{folder}byteorder"))
            self.pickle = _read_pickle(cursor, places[f"{folder}data.pkl"])
        except CheckpointError:
            self.close()
            raise
        prefix = f"{folder}data/"
        self.storages = {
            name.removeprefix(prefix): place
            for name, place in places.items()
            if name.startswith(prefix)
        }

    def close(self) -> None:
        """Unmap the file."""
        # An error on its way out may still hold a view of the file; it unmaps when it goes.
        with suppress(BufferError):
            self.data.close()


def _find_entries(cursor: FileCursor) -> dict[str, Place]:
    _refuse_other_formats(cursor)
    places = cursor.unique(
        (info.filename, _find_data(cursor, info))
        for info in _read_directory(cursor)
        if not info.filename.endswith("/")
    )
    end = 0
    for name, place in sorted(places.items(), key=lambda item: item[1].begin):
        if place.begin < end:
            raise cursor.fail(f"the entry {name!r:.80} overlaps another")
        end = place.end
    return places


def _refuse_other_formats(cursor: FileCursor) -> None:
    data = cursor.data
    if data[:2] == b"PK":
        return
    if data[: len(_LEGACY_PICKLE)] == _LEGACY_PICKLE or data[257:262] == b"ustar":
        raise CheckpointError(
            f"{cursor.path} has the format of PyTorch before 1.6; save it again in a newer one: "
            "torch.save(torch.load(old_path, weights_only=True), new_path)."
        )
    raise CheckpointError(
        f"{cursor.path} is neither safetensors, nor a PyTorch file of 1.6 or later, nor GGUF; "
        "check that it is the right one and whole."
    )


def _read_directory(cursor: FileCursor) -> Iterator[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(cast(IO[bytes], cursor.data)) as file:
            infos = file.infolist()
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise cursor.fail(f"its directory cannot be read ({reason:.80})") from error
    yield from infos


def _find_data(cursor: FileCursor, info: zipfile.ZipInfo) -> Place:
    """Check one entry and return where its data begin, after a header of its own."""
    what = f"the entry {info.filename!r:.80}"
    if ".." in PurePosixPath(info.filename).parts or info.filename.startswith("/"):
        raise CheckpointError(f"{cursor.path}: {what} lies outside of it; do not trust this file.")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise CheckpointError(
            f"{cursor.path}: {what} is compressed or encrypted, which PyTorch does not do; "
            "save it again with torch.save."
        )
    if info.compress_size != info.file_size or info.header_offset < 0:
        raise cursor.fail(f"{what} takes {info.compress_size} bytes and holds {info.file_size}")
    cursor.position = info.header_offset
    if cursor.unpack("<I", what) != _LOCAL_HEADER:
        raise cursor.fail(f"{what} does not begin at byte {info.header_offset}")
    cursor.skip(22, what)
    num_bytes = cursor.unpack("<H", what) + cursor.unpack("<H", what)  # its name, its padding
    cursor.skip(num_bytes, what)
    return Place(cursor.skip(info.file_size, what), info.file_size)


def _find_folder(cursor: FileCursor, places: dict[str, Place]) -> str:
    """Return the prefix of every name, which ends in a slash."""
    found = [name for name in places if PurePosixPath(name).name == "data.pkl"]
    if len(found) != 1 or found[0].count("/") != 1:
        raise CheckpointError(
            f"{cursor.path} is a zip file with {len(found)} data.pkl, not what torch.save "
            "writes; check that it is the right one."
        )
    return found[0].removesuffix("data.pkl")


def _check_byte_order(cursor: FileCursor, place: Place | None) -> None:
    if place is None:  # PyTorch before 2.1
        return
    order = cursor.data[place.begin : min(place.end, place.begin + 16)]
    if order != b"little":
        raise CheckpointError(
            f"{cursor.path} has the byte order {order!r}, not b'little'; save it again on a "
            "little-endian machine."
        )


def _read_pickle(cursor: FileCursor, place: Place) -> bytes:
    if place.num_bytes > MAX_PICKLE_BYTES:
        raise CheckpointError(
            f"{cursor.path} names its tensors in {place.num_bytes} bytes, more than the "
            f"{MAX_PICKLE_BYTES} read here; save the state_dict() alone."
        )
    return cursor.data[place.begin : place.end]
