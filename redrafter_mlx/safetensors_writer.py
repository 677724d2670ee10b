"""Writes a model's safetensors piece by piece, so that no tensor need be in memory.

Shapes and dtypes are known before the values: the header comes first, and each piece goes to
its place behind it.

Source:
    https://github.com/huggingface/safetensors, section "Format"; mlx_lm/utils.py, save_model,
    for the names of the files, the metadata and the index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import mlx.core as mx
import numpy.typing as npt

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import INDEX_FILE, write_json

MAX_SHARD_BYTES = 5_000_000_000
_CODES = {
    mx.bool_: "BOOL", mx.uint8: "U8", mx.uint16: "U16", mx.uint32: "U32", mx.uint64: "U64",
    mx.int8: "I8", mx.int16: "I16", mx.int32: "I32", mx.int64: "I64",
    mx.float16: "F16", mx.bfloat16: "BF16", mx.float32: "F32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What a file says of a tensor before its values."""

    dtype: mx.Dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.size


@dataclass(slots=True)
class _Place:
    """Where the next bytes of a tensor go, and where its last one ends."""

    file: IO[bytes]
    next_byte: int
    end: int


class ModelWriter:
    """Writes ``model.safetensors``, or shards of it, into a folder; a context manager.

    Raises:
        CheckpointError: From every method: a file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        entries: Mapping[str, TensorEntry],
        max_shard_bytes: int | None = None,
    ) -> None:
        """Take what will be written; shards are filled in the order of ``entries``."""
        self._folder = folder
        self._entries = dict(entries)
        limit = MAX_SHARD_BYTES if max_shard_bytes is None else max_shard_bytes
        self._shards = _split(self._entries, limit)
        self._places: dict[str, _Place] = {}
        self._files = ExitStack()

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.num_bytes for entry in self._entries.values())

    def __enter__(self) -> Self:
        """Write the headers."""
        try:
            for name, names in self._shards.items():
                file = self._files.enter_context((self._folder / name).open("wb"))
                self._start(file, names)
        except OSError as error:
            self._files.close()
            raise self._unwritable(error) from error
        return self

    def __exit__(self, *failure: object) -> None:
        """Close the files."""
        try:
            self._files.close()
        except OSError as error:
            if failure[0] is None:
                raise self._unwritable(error) from error

    def write(self, name: str, data: npt.NDArray[Any]) -> None:
        """Write the next bytes of a tensor, contiguous and little-endian."""
        place = self._places[name]
        try:
            place.file.seek(place.next_byte)
            place.file.write(data.data)
        except OSError as error:
            raise self._unwritable(error) from error
        place.next_byte += data.nbytes
        assert place.next_byte <= place.end, name

    def finish(self, num_parameters: int) -> None:
        """Write the index, when every tensor has all its bytes."""
        missing = [name for name, place in self._places.items() if place.next_byte != place.end]
        assert not missing, missing
        files = {name: file for file, names in self._shards.items() for name in names}
        index = {
            "metadata": {"total_size": self.num_bytes, "total_parameters": num_parameters},
            "weight_map": dict(sorted(files.items())),
        }
        write_json(self._folder / INDEX_FILE, index)

    def _start(self, file: IO[bytes], names: list[str]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
        end = 0
        # Wide items first: each tensor begins at a multiple of its item's size.
        names = sorted(names, key=lambda name: (-self._entries[name].dtype.size, name))
        for name in names:
            entry, begin = self._entries[name], end
            end += entry.num_bytes
            header[name] = {
                "dtype": _CODES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        file.write(len(text).to_bytes(8, "little") + text)
        start = 8 + len(text)
        for name in names:
            begin, end = header[name]["data_offsets"]
            self._places[name] = _Place(file, start + begin, start + end)

    def _unwritable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self._folder} cannot be written ({error.strerror}); choose another place."
        )


def _split(entries: Mapping[str, TensorEntry], max_shard_bytes: int) -> dict[str, list[str]]:
    """Return the names in each file; a larger tensor has a file of its own."""
    shards: list[list[str]] = [[]]
    num_bytes = 0
    for name, entry in entries.items():
        if shards[-1] and num_bytes + entry.num_bytes > max_shard_bytes:
            shards.append([])
            num_bytes = 0
        shards[-1].append(name)
        num_bytes += entry.num_bytes
    return dict(zip(_file_names(len(shards)), shards, strict=True))


def _file_names(num_shards: int) -> Iterator[str]:
    if num_shards == 1:
        yield "model.safetensors"
        return
    for number in range(1, num_shards + 1):
        yield f"model-{number:05d}-of-{num_shards:05d}.safetensors"
