"""One tensor of a model on its way from the source to the output, a run of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.config import Quantization
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.safetensors_writer import TensorEntry

Rows = npt.NDArray[Any]

RUN_BYTES = 32 << 20
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_MLX_BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
_LARGEST = {
    mx.float16: 65504.0,
    mx.bfloat16: 2.0**127 * (2 - 2**-7),
    mx.float32: float(np.finfo(np.float32).max),
}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor that is not read yet.

    Attributes:
        name: Its name in the source.
        dtype: That of its numbers.
        shape: Its sizes.
        runs: Reads it from the start, some rows at a time; bfloat16 as uint16. A run is good
            until the next one is asked for.
    """

    name: str
    dtype: mx.Dtype
    shape: tuple[int, ...]
    runs: Callable[[], Iterator[Rows]]

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return mx.issubdtype(self.dtype, mx.floating)


@dataclass(frozen=True, slots=True)
class TensorJob:
    """What becomes of one tensor of the source.

    Attributes:
        entries: The tensors that it becomes, by name.
        pieces: Makes them from the start: the next bytes of each of them.
    """

    entries: Mapping[str, TensorEntry]
    pieces: Callable[[], Iterator[Mapping[str, Rows]]]


def row_runs(num_rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield runs of rows that cover them all, each of 32 MiB or of one row."""
    step = max(1, RUN_BYTES // max(1, row_bytes))
    for begin in range(0, num_rows, step):
        yield slice(begin, min(begin + step, num_rows))


def copy_job(tensor: SourceTensor, name: str) -> TensorJob:
    """Return the job that writes a tensor as it is."""
    entry = TensorEntry(tensor.dtype, tensor.shape)
    return TensorJob({name: entry}, lambda: ({name: _contiguous(run)} for run in tensor.runs()))


def float_job(
    tensor: SourceTensor, name: str, dtype: mx.Dtype, quantization: Quantization | None = None
) -> TensorJob:
    """Return the job that casts a floating tensor, and quantises it.

    Its pieces raise CheckpointError where the tensor holds NaN, infinity or what ``dtype``
    cannot hold.
    """
    if quantization is None:
        entries = {name: TensorEntry(dtype, tensor.shape)}
    else:
        entries = _packed_entries(name, dtype, tensor.shape, quantization)
    return TensorJob(entries, lambda: _float_pieces(tensor, name, dtype, quantization))


def is_divisible(shape: tuple[int, ...], quantization: Quantization) -> bool:
    """Return whether MLX can quantise a weight of this shape."""
    return len(shape) == 2 and shape[-1] % quantization.group_size == 0


def bits_of(array: mx.array) -> Rows:
    """Return an array's bits as whole numbers, without a copy."""
    return np.array(array.view(_MLX_BITS[array.dtype.size]), copy=False)


def number_type(dtype: mx.Dtype) -> np.dtype[Any]:
    """Return NumPy's dtype for numbers in a file; for bfloat16, which it lacks, uint16."""
    if dtype == mx.bfloat16:
        return np.dtype("<u2")
    return np.dtype(str(dtype).removeprefix("mlx.core.").removesuffix("_")).newbyteorder("<")


def have_equal_rows(one: SourceTensor, other: SourceTensor) -> bool:
    """Return whether two tensors hold the same bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    pairs = zip(one.runs(), other.runs(), strict=True)
    return all(np.array_equal(first, second) for first, second in pairs)


def _float_pieces(
    tensor: SourceTensor, name: str, dtype: mx.Dtype, quantization: Quantization | None
) -> Iterator[Mapping[str, Rows]]:
    runs = map(_contiguous, tensor.runs())
    for run in runs:
        largest = _largest_magnitude(run, tensor.dtype)
        if not largest <= _LARGEST[dtype]:
            raise _too_large(tensor, dtype, largest, runs)
        if dtype == tensor.dtype and quantization is None:
            yield {name: run}
            continue
        array = _to_mlx(run, tensor.dtype).astype(dtype)
        yield {name: bits_of(array)} if quantization is None else _pack(name, array, quantization)


def _too_large(
    tensor: SourceTensor, dtype: mx.Dtype, largest: float, rest: Iterator[Rows]
) -> CheckpointError:
    magnitudes = [largest, *(_largest_magnitude(run, tensor.dtype) for run in rest)]
    if not all(map(math.isfinite, magnitudes)):
        return CheckpointError(
            f"The tensor {tensor.name!r:.120} holds NaN or infinity; get another file of the model."
        )
    wide = "float32" if dtype == mx.bfloat16 else "bfloat16"
    return CheckpointError(
        f"The tensor {tensor.name!r:.120} holds {max(magnitudes):g}, too large for "
        f"{str(dtype).removeprefix('mlx.core.')}; convert with --dtype {wide}."
    )


def _largest_magnitude(run: Rows, dtype: mx.Dtype) -> float:
    """Return the largest absolute value, infinity or NaN where there is one.

    Without the sign, the bits of floating-point numbers are in the order of their values.
    """
    bits = run.view(_BITS[run.dtype.itemsize])
    if not bits.size:
        return 0.0
    largest = np.bitwise_and(bits, np.iinfo(bits.dtype).max >> 1).max()
    if dtype == mx.bfloat16:
        return float((largest.astype(np.uint32) << 16).view(np.float32))
    return float(largest.view(np.float16 if dtype == mx.float16 else np.float32))


def _to_mlx(run: Rows, dtype: mx.Dtype) -> mx.array:
    array = mx.array(run)
    return array.view(dtype) if dtype == mx.bfloat16 else array


def _contiguous(run: Rows) -> Rows:
    return np.ascontiguousarray(run)


def packed_names(name: str) -> tuple[str, str, str]:
    """Return the names of a quantised weight, its scales and its biases."""
    module = name.removesuffix(".weight")
    return name, f"{module}.scales", f"{module}.biases"


def _packed_entries(
    name: str, dtype: mx.Dtype, shape: tuple[int, ...], quantization: Quantization
) -> dict[str, TensorEntry]:
    rows, columns = shape
    packed = TensorEntry(mx.uint32, (rows, columns * quantization.bits // 32))
    group = TensorEntry(dtype, (rows, columns // quantization.group_size))
    return dict(zip(packed_names(name), (packed, group, group), strict=True))


def _pack(name: str, rows: mx.array, quantization: Quantization) -> Mapping[str, Rows]:
    parts = mx.quantize(rows, quantization.group_size, quantization.bits)
    return dict(zip(packed_names(name), map(bits_of, parts), strict=True))
