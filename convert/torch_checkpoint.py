"""Tensors from a PyTorch file, without PyTorch and without running what the file says.

    with open_torch("pytorch_model.bin") as file:
        embeddings = file.tensors["model.embed_tokens.weight"].load()

Opening a file reads what it names; a tensor's bytes are read when they are asked for.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.convert.torch_pickle import read_pickle
from redrafter_mlx.convert.torch_views import TensorView
from redrafter_mlx.convert.torch_zip import TorchZip
from redrafter_mlx.errors import CheckpointError

# Where trainers put the state_dict among other things, in the order of search.
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
_MAX_WRAPPERS = 8
_MAX_NAME = 1024
_MAX_SHARING = 4  # tied weights share a storage; more than this is a bomb
_SMALL_BYTES = 64 << 20
_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a dtype lies in the file (``stored``), is copied (``copied``) and ends up."""

    stored: str
    copied: mx.Dtype
    dtype: mx.Dtype


_LAYOUTS = {
    "float64": _Layout("<f8", mx.float32, mx.float32),
    "float32": _Layout("<f4", mx.float32, mx.float32),
    "float16": _Layout("<f2", mx.float16, mx.float16),
    "bfloat16": _Layout("<u2", mx.uint16, mx.bfloat16),  # NumPy has none
    "int64": _Layout("<i8", mx.int64, mx.int64),
    "int32": _Layout("<i4", mx.int32, mx.int32),
    "int16": _Layout("<i2", mx.int16, mx.int16),
    "int8": _Layout("i1", mx.int8, mx.int8),
    "uint8": _Layout("u1", mx.uint8, mx.uint8),
    "bool": _Layout("u1", mx.bool_, mx.bool_),
}


@dataclass(frozen=True, slots=True, eq=False)
class TorchTensor:
    """A tensor in an open file.

    Attributes:
        name: Its name in the state_dict, the dicts around it joined by dots.
        view: Where its entries are.
    """

    name: str
    view: TensorView
    _zip: TorchZip

    @property
    def dtype(self) -> mx.Dtype:
        """What ``load`` gives: the dtype in the file, but float32 for float64."""
        return _LAYOUTS[self.view.storage.item.name].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.view.shape

    @property
    def size(self) -> int:
        """The number of its entries."""
        return math.prod(self.view.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes that ``load`` takes."""
        return self.size * self.dtype.size

    def load(self) -> mx.array:
        """Read the tensor, bit for bit; float64 is rounded to float32.

        The peak is the tensor and 32 MB; for one that is not contiguous, the tensor and
        its storage.

        Raises:
            CheckpointError: A finite float64 would become infinite.
        """
        layout = _LAYOUTS[self.view.storage.item.name]
        array = mx.zeros(self.shape, layout.copied)
        if self.size:
            mx.eval(array)
            # NumPy looks at MLX's own memory, so that there is no second copy.
            self._copy_to(np.atleast_1d(np.array(array, copy=False)))
        return array if layout.copied == layout.dtype else array.view(layout.dtype)

    def rows(self, run: slice) -> npt.NDArray[Any]:
        """Return some rows: a view of the file, bfloat16 as uint16; float64 as float32.

        Raises:
            CheckpointError: See ``load``.
        """
        source = self._stored()[run]
        if source.dtype != np.float64:
            return source
        target = np.empty(source.shape, np.float32)
        self._copy_part(target, source)
        return target

    def _copy_to(self, target: npt.NDArray[Any]) -> None:
        source = self._stored()
        if not source.flags.c_contiguous:
            self._copy_part(target, source)
            return
        target, source = target.reshape(-1), source.reshape(-1)
        step = _CHUNK_BYTES // target.itemsize
        for begin in range(0, target.size, step):
            self._copy_part(target[begin : begin + step], source[begin : begin + step])

    def _stored(self) -> npt.NDArray[Any]:
        """Return a view of the mapped file; ``TensorView`` has its bounds checked."""
        storage = self.view.storage
        dtype = np.dtype(_LAYOUTS[storage.item.name].stored)
        begin = self._zip.storages[storage.key].begin
        items = np.frombuffer(self._zip.data, dtype, storage.num_items, begin)
        strides = [stride * dtype.itemsize for stride in self.view.strides]
        view = np.lib.stride_tricks.as_strided(
            items[self.view.offset :], self.shape, strides, writeable=False
        )
        return np.atleast_1d(view)

    def _copy_part(self, target: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(target, source, casting="unsafe")
        if source.dtype == np.float64:
            self._refuse_overflow(target, source)
        self.release()

    def _refuse_overflow(self, target: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
        lost = source[np.isinf(target) & np.isfinite(source)]
        if lost.size:
            raise CheckpointError(
                f"{self._zip.path}: {self.name!r:.80} holds {lost[0]:g} in float64, too large for "
                "float32; scale it down in PyTorch."
            )

    def release(self) -> None:
        """Give back the storage's pages, which count as the process's memory while mapped."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        place = self._zip.storages[self.view.storage.key]
        begin = place.begin - place.begin % mmap.PAGESIZE
        self._zip.data.madvise(mmap.MADV_DONTNEED, begin, place.end - begin)


class TorchFile:
    """An open PyTorch file.

    Attributes:
        path: The file.
        tensors: Its tensors by name, in the file's order. They need the file open.
    """

    def __init__(self, path: Path) -> None:
        """Open the file and check what it names; ``open_torch`` says what it raises."""
        self.path = path
        self._zip = TorchZip(path)
        try:
            self.tensors: Mapping[str, TorchTensor] = _find_tensors(self._zip)
        except CheckpointError:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file; arrays that were loaded stay."""
        self._zip.close()


def open_torch(path: Path | str) -> TorchFile:
    """Open a file that ``torch.save`` of PyTorch 1.6 or later wrote.

    It holds a state_dict: a dict of tensors or of dicts of them, whose names are joined by
    dots. Where a trainer put it beside other things, under a key of ``WRAPPERS``, the other
    things are left aside, like whatever in it is no tensor.

    Args:
        path: The file; its name may end in anything.

    Returns:
        The file, to be closed; best by a ``with`` statement.

    Raises:
        CheckpointError: The file is missing, truncated or damaged, of the older format,
            or names anything but tensors and plain values.
    """
    return TorchFile(Path(path))


def _find_tensors(file: TorchZip) -> dict[str, TorchTensor]:
    tensors: dict[str, TorchTensor] = {}
    for name, view in _flatten(_find_state(read_pickle(file.pickle, file.path)), file.path):
        if name in tensors:
            raise CheckpointError(f"{file.path} has {name!r:.120} twice; save it again.")
        _check_storage(file, name, view)
        tensors[name] = TorchTensor(name, view, file)
    if not tensors:
        raise CheckpointError(
            f"{file.path} holds no tensor with a name; save a model's state_dict()."
        )
    _check_sizes(file, tensors)
    return tensors


def _find_state(values: Any) -> Any:
    """Return the dict that holds the tensors, out of those that trainers put around it."""
    for _ in range(_MAX_WRAPPERS):
        if not isinstance(values, dict):
            break
        inner = next((values[key] for key in WRAPPERS if isinstance(values.get(key), dict)), None)
        if inner is None or any(isinstance(value, TensorView) for value in values.values()):
            break
        values = inner
    return values


def _flatten(values: Any, path: Path) -> Iterator[tuple[str, TensorView]]:
    """Yield every tensor in a dict of dicts; each dict once, for one may hold itself."""
    seen: set[int] = set()
    waiting: list[tuple[str | None, Any]] = [(None, values)]
    while waiting:
        prefix, value = waiting.pop()
        if isinstance(value, TensorView) and prefix is not None:
            yield prefix, value
        elif isinstance(value, dict):
            if id(value) in seen or len(prefix or "") > _MAX_NAME:
                raise CheckpointError(
                    f"{path} has a dict that is used twice or nested too deep; save the "
                    "state_dict() alone."
                )
            seen.add(id(value))
            waiting += [(_join(prefix, key), inner) for key, inner in reversed(value.items())]


def _join(prefix: str | None, key: Any) -> str:
    return str(key) if prefix is None else f"{prefix}.{key}"


def _check_storage(file: TorchZip, name: str, view: TensorView) -> None:
    storage = view.storage
    place = file.storages.get(storage.key)
    wanted = storage.num_items * storage.item.num_bytes
    if place is None or place.num_bytes != wanted:
        found = "are missing" if place is None else f"are {place.num_bytes}"
        raise CheckpointError(
            f"{file.path} is truncated or damaged: of {name!r:.120} the {wanted} bytes of storage "
            f"{storage.key!r:.40} {found}; get it again."
        )


def _check_sizes(file: TorchZip, tensors: Mapping[str, TorchTensor]) -> None:
    """Refuse a small file whose tensors repeat their entries without end."""
    num_bytes = sum(tensor.num_bytes for tensor in tensors.values())
    if num_bytes > max(_SMALL_BYTES, _MAX_SHARING * len(file.data)):
        raise CheckpointError(
            f"{file.path} is {len(file.data)} bytes long and claims {num_bytes} bytes of tensors; "
            "save it again with every tensor cloned."
        )
