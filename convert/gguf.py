"""A bounds-checked reader of GGUF files, versions 2 and 3, little-endian.

The file is memory-mapped. Every count, length, offset and product is checked against the
size of the file before it is used, so a hostile or truncated file ends in one sentence.

Source:
    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and ggml-common.h for the
    layout of the blocks.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from redrafter_mlx.convert.cursor import FileCursor, shown
from redrafter_mlx.errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_MAX_COUNT = 2**31 - 1  # MLX keeps a shape in int32

# Value type -> numpy type; 8 is a string and 9 an array.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True)
class BlockType:
    """How a tensor type lays out a row: blocks of ``num_weights`` weights each."""

    name: str
    num_weights: int
    dtype: np.dtype[Any]


# d: the scale, m: the minimum, q: the quants of a block; see gguf_tensors.py.
_BLOCK_TYPES = {
    0: BlockType("F32", 1, np.dtype("<f4")),
    1: BlockType("F16", 1, np.dtype("<f2")),
    2: BlockType("Q4_0", 32, np.dtype([("d", "<f2"), ("q", "u1", 16)])),
    3: BlockType("Q4_1", 32, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])),
    8: BlockType("Q8_0", 32, np.dtype([("d", "<f2"), ("q", "i1", 32)])),
    30: BlockType("BF16", 1, np.dtype("<u2")),
}
_OTHER_TYPES = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K",
    14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
    27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as it lies in the file.

    Attributes:
        name: Its name in llama.cpp's scheme, ``blk.0.attn_q.weight``.
        kind: Name of its type, ``Q4_1``.
        shape: Sizes, the row length last (a file lists it first).
        blocks: ``shape`` with the last size divided by the weights of a block; numbers, or
            records with the fields ``d``, ``m`` and ``q``. It looks into the file.
        data: All of the file, mapped.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    blocks: npt.NDArray[Any]
    data: mmap.mmap


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF file holds.

    Attributes:
        path: The file.
        metadata: Numbers, strings, lists of strings and arrays of numbers, by key.
        tensors: The tensors by name.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        return self._value(key, str, "a string", default)

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        return self._value(key, bool, "true or false", default)

    def strings(self, key: str) -> list[str]:
        """Return a list of strings."""
        return self._value(key, list, "a list of strings", None)

    def whole_numbers(self, key: str) -> npt.NDArray[np.integer[Any]]:
        """Return an array of whole numbers, empty where the key is missing."""
        value = self.metadata.get(key, np.zeros(0, np.int32))
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._wrong(key, "an array of whole numbers")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 1 to 2^31 - 1."""
        value: int = self._value(key, int, "a whole number", default)
        if not 1 <= value <= _MAX_COUNT:
            raise self._wrong(key, f"a whole number from 1 to {_MAX_COUNT}")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number, whole or not."""
        value = self.metadata.get(key, default)
        if type(value) not in (int, float):
            raise self._wrong(key, "a number")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a float32 that is finite and more than 0, with the fewest digits that tell it."""
        value: float = self._value(key, float, "a number", default)
        if not (math.isfinite(value) and value > 0.0):
            raise self._wrong(key, "a finite number above 0")
        return float(str(np.float32(value)))

    def _value(self, key: str, kind: type, what: str, default: Any) -> Any:
        value = self.metadata.get(key, default)
        if type(value) is not kind:
            raise self._wrong(key, what)
        return value

    def _wrong(self, key: str, what: str) -> CheckpointError:
        found = shown(self.metadata[key]) if key in self.metadata else "missing"
        return CheckpointError(f"{self.path}: {key} is {found}, not {what}; get another file.")


def read_gguf(path: Path | str) -> GgufFile:
    """Read the metadata and find the tensors of a GGUF file.

    Raises:
        CheckpointError: The file is missing, truncated or damaged, of another version or
            byte order, or holds a tensor type other than F32, F16, BF16, Q8_0, Q4_0, Q4_1.
    """
    path = Path(path)
    cursor = FileCursor(path)
    num_tensors, num_entries = _read_header(cursor)
    metadata = cursor.unique(_read_entry(cursor) for _ in range(num_entries))
    places = [_read_place(cursor) for _ in range(num_tensors)]
    start = cursor.aligned(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    _refuse_overlaps(cursor, places)
    tensors = cursor.unique((place.name, _find_tensor(cursor, start, place)) for place in places)
    return GgufFile(path, metadata, tensors)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a file says about a tensor: ``offset`` counts from the start of the data."""

    name: str
    kind: BlockType
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) // self.kind.num_weights * self.kind.dtype.itemsize


def _read_header(cursor: FileCursor) -> tuple[int, int]:
    """Return the number of tensors and of metadata entries."""
    if cursor.data[:4] != _MAGIC:
        raise CheckpointError(f"{cursor.path} is not a GGUF file; check that it is the right one.")
    cursor.skip(4, "the magic number")
    version = cursor.unpack("<I", "the version")
    if version not in _VERSIONS:
        raise CheckpointError(
            f"{cursor.path} has GGUF version {version:#x}; only little-endian files of "
            "version 2 and 3 can be read, so get the model in one of these."
        )
    num_tensors = cursor.count(24, "the number of tensors")
    return num_tensors, cursor.count(13, "the number of metadata entries")


def _read_entry(cursor: FileCursor) -> tuple[str, Any]:
    key = cursor.string("a metadata key")
    return key, _read_value(cursor, cursor.unpack("<I", f"the type of {key!r:.80}"), key)


def _read_value(cursor: FileCursor, kind: int, key: str) -> Any:
    what = f"the value of {key!r:.80}"
    if kind == _STRING:
        return cursor.string(what)
    if kind == _ARRAY:
        return _read_array(cursor, what)
    if kind not in _NUMBERS:
        raise cursor.fail(f"{what} has the unknown type {kind}")
    return cursor.numbers(np.dtype(_NUMBERS[kind]), 1, what)[0].item()


def _read_array(cursor: FileCursor, what: str) -> list[str] | npt.NDArray[Any]:
    kind = cursor.unpack("<I", f"the type in {what}")
    if kind == _STRING:
        return [cursor.string(what) for _ in range(cursor.count(8, f"the length of {what}"))]
    if kind not in _NUMBERS:
        raise cursor.fail(f"{what} is an array of the type {kind}")
    dtype = np.dtype(_NUMBERS[kind])
    return cursor.numbers(dtype, cursor.count(dtype.itemsize, f"the length of {what}"), what)


def _read_place(cursor: FileCursor) -> _Place:
    name = cursor.string("a tensor's name")
    num_dimensions = cursor.unpack("<I", f"the number of sizes of {name!r:.80}")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.fail(f"{name!r:.80} has {num_dimensions} sizes")
    sizes = [cursor.unpack("<Q", f"a size of {name!r:.80}") for _ in range(num_dimensions)]
    kind = _block_type(cursor, name, cursor.unpack("<I", f"the type of {name!r:.80}"))
    if min(sizes) == 0 or sizes[0] % kind.num_weights:
        raise cursor.fail(f"{name!r:.80} is {kind.name} with the sizes {sizes}")
    return _Place(
        name, kind, tuple(sizes[::-1]), cursor.unpack("<Q", f"the offset of {name!r:.80}")
    )


def _block_type(cursor: FileCursor, name: str, code: int) -> BlockType:
    if code in _BLOCK_TYPES:
        return _BLOCK_TYPES[code]
    raise CheckpointError(
        f"{cursor.path} stores {name!r:.80} as {_OTHER_TYPES.get(code, f'type {code}')}; get a "
        "file of the model with F32, F16, BF16, Q8_0, Q4_0 and Q4_1 tensors only."
    )


def _refuse_overlaps(cursor: FileCursor, places: list[_Place]) -> None:
    end = 0
    for place in sorted(places, key=lambda place: place.offset):
        if place.offset < end:
            raise cursor.fail(f"{place.name!r:.80} overlaps another tensor")
        end = place.offset + place.num_bytes


def _find_tensor(cursor: FileCursor, start: int, place: _Place) -> GgufTensor:
    begin = start + place.offset
    if begin + place.num_bytes > len(cursor.data):
        raise cursor.fail(
            f"{place.name!r:.80} lies at byte {begin} with {place.num_bytes} bytes and the "
            f"file has {len(cursor.data)}"
        )
    blocks = np.frombuffer(
        cursor.data, place.kind.dtype, place.num_bytes // place.kind.dtype.itemsize, begin
    )
    *rows, length = place.shape
    shape = (*rows, length // place.kind.num_weights)
    return GgufTensor(place.name, place.kind.name, place.shape, blocks.reshape(shape), cursor.data)
