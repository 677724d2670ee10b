"""What the pickle of a PyTorch file may name, and what this package makes of it.

Source:
    torch/_tensor.py, Tensor.__reduce_ex__, and torch/_utils.py for tensors;
    torch/serialization.py, persistent_id, for storages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

MAX_DIMENSIONS = 8
MAX_SIZE = 2**31 - 1  # MLX keeps a shape in int32


@dataclass(frozen=True, slots=True)
class ItemType:
    """What a storage holds: the name of its dtype, and the bytes of an item."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of items in the file.

    Attributes:
        key: Its name among the file's storages.
        item: What it holds.
        num_items: How many.
    """

    key: str
    item: ItemType
    num_items: int


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor that looks into a storage, which holds every place that it reaches.

    Attributes:
        storage: Where its items are.
        offset: The item that its first entry is.
        shape: Its sizes.
        strides: Items from one entry to the next, per axis; 0 repeats one.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Maker:
    """What stands for a function that a pickle may call; it raises ValueError."""

    make: Callable[[Any], Any]


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _are_counts(values: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(values, tuple) and all(map(_is_count, values))


def _make_tensor(arguments: tuple[Any, ...]) -> TensorView:
    """Return what ``torch._utils._rebuild_tensor_v2`` would look at."""
    if not 6 <= len(arguments) <= 7:
        raise ValueError(f"a tensor is made of {len(arguments)} values")
    storage, offset, shape, strides, *_ = arguments
    if not isinstance(storage, Storage) or not _is_count(offset):
        raise ValueError("a tensor has no storage or no offset")
    if not _are_counts(shape) or not _are_counts(strides) or len(shape) != len(strides):
        raise ValueError("a tensor's sizes and strides do not go together")
    if len(shape) > MAX_DIMENSIONS or max(shape, default=0) > MAX_SIZE:
        raise ValueError(f"a tensor has the sizes {shape!s:.80}")
    # The stride of an axis of one entry is never used and may be anything.
    strides = tuple(stride * (size > 1) for size, stride in zip(shape, strides, strict=True))
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.num_items:
        raise ValueError(f"a tensor reaches item {last} of the {storage.num_items} stored")
    return TensorView(storage, offset, shape, strides)


def _make_parameter(arguments: tuple[Any, ...]) -> TensorView:
    if len(arguments) != 3 or not isinstance(arguments[0], TensorView):
        raise ValueError("a parameter is made of no tensor")
    return arguments[0]


def _make_ordered_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    if arguments:
        raise ValueError("an OrderedDict is made of values")
    return {}


def _make_size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    if len(arguments) != 1 or not _are_counts(arguments[0]):
        raise ValueError("a torch.Size is made of no sizes")
    return arguments[0]


def _make_storage(reference: Any) -> Storage:
    """Return what a persistent id names; its location, a device, does not matter."""
    match reference:
        case ("storage", ItemType() as item, str(key), str(), num_items) if _is_count(num_items):
            return Storage(key, item, num_items)
    raise ValueError("is a reference to no storage")


STORAGE = Maker(_make_storage)

# All that a file may name. A name that is not here is refused before it is used.
GLOBALS: dict[tuple[str, str], ItemType | Maker] = {
    ("torch._utils", "_rebuild_tensor_v2"): Maker(_make_tensor),
    ("torch._utils", "_rebuild_parameter"): Maker(_make_parameter),
    ("collections", "OrderedDict"): Maker(_make_ordered_dict),
    ("torch", "Size"): Maker(_make_size),
    ("torch", "DoubleStorage"): ItemType("float64", 8),
    ("torch", "FloatStorage"): ItemType("float32", 4),
    ("torch", "HalfStorage"): ItemType("float16", 2),
    ("torch", "BFloat16Storage"): ItemType("bfloat16", 2),
    ("torch", "LongStorage"): ItemType("int64", 8),
    ("torch", "IntStorage"): ItemType("int32", 4),
    ("torch", "ShortStorage"): ItemType("int16", 2),
    ("torch", "CharStorage"): ItemType("int8", 1),
    ("torch", "ByteStorage"): ItemType("uint8", 1),
    ("torch", "BoolStorage"): ItemType("bool", 1),
}
