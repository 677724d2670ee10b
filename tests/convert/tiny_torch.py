"""PyTorch files written without PyTorch, sound ones and hostile ones."""

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

STORAGES = {
    mx.float32: "FloatStorage", mx.float16: "HalfStorage", mx.bfloat16: "BFloat16Storage",
    mx.int32: "IntStorage",
}  # fmt: skip
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
FLOAT_STORAGE = b"ctorch\nFloatStorage\n"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key: bytes, kind: bytes, num_items: bytes) -> bytes:
    return b"(" + text("storage") + kind + key + text("cpu") + num_items + b"tQ"


def tensor(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    offset: int = 0,
    num_items: int = 6,
    key: str = "0",
    kind: bytes = FLOAT_STORAGE,
) -> bytes:
    where = storage(text(key), kind, number(num_items))
    return REBUILD + b"(" + where + number(offset) + numbers(shape) + numbers(strides) + b"\x89}tR"


def mapping(items: Mapping[str, bytes]) -> bytes:
    return b"}(" + b"".join(text(name) + value for name, value in items.items()) + b"u"


def program(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."


def archive(path: Path, pickle: bytes, storages: Mapping[str, bytes], **others: bytes) -> Path:
    """Write the entries as torch.save does; ``others`` replaces or adds some."""
    entries = {"data.pkl": pickle, "byteorder": b"little", "version": b"3\n"} | others
    entries |= {f"data/{key}": data for key, data in storages.items()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in entries.items():
            file.writestr(f"archive/{name}", data)
    return path


def save_torch(path: Path, tensors: Mapping[str, mx.array]) -> Path:
    """Write a state_dict, each tensor with a storage of its own."""
    values, storages = {}, {}
    for key, (name, array) in enumerate(tensors.items()):
        strides = np.cumprod((1, *array.shape[:0:-1])).tolist()[::-1] if array.ndim else []
        kind = f"ctorch\n{STORAGES[array.dtype]}\n".encode()
        values[name] = tensor(
            array.shape, tuple(strides), num_items=array.size, key=str(key), kind=kind
        )
        storages[str(key)] = items_of(array).tobytes()
    return archive(path, program(mapping(values)), storages)


def items_of(array: mx.array) -> np.ndarray[Any, Any]:
    """Return the entries bit by bit: NumPy has no bfloat16, and no NaN equals itself."""
    size = array.dtype.size
    bits = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[size]
    return np.array(array if array.ndim == 0 else array.view(bits))
