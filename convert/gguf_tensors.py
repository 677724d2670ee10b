"""GGUF tensors as MLX arrays of the same values, bit for bit.

llama.cpp and MLX both quantise by groups of 32 with a scale and an offset in float16, so
the quants move over as they are:

    Q4_1  w = d q + m         MLX  w = scale q + bias   scale d, bias m
    Q4_0  w = d (q - 8)                                 scale d, bias -8 d
    Q8_0  w = d q, q signed         (q + 128 unsigned)  scale d, bias -128 d

Source:
    ggml-quants.c, dequantize_row_q4_0, _q4_1 and _q8_0; MLX, mx.quantize.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.convert.gguf import GgufTensor
from redrafter_mlx.convert.tensor_job import (
    Rows,
    SourceTensor,
    TensorJob,
    bits_of,
    packed_names,
    row_runs,
)
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.safetensors_writer import TensorEntry

GROUP_SIZE = 32
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
_FLOAT16_MAX = 65504.0

RowOrder = npt.NDArray[np.intp] | None


def is_quantized(tensor: GgufTensor) -> bool:
    """Return whether a tensor is stored in blocks of quants."""
    return tensor.kind in _BITS


def stored_bits(tensor: GgufTensor) -> int | None:
    """Return the bits per weight that MLX can keep; ``None`` for floating point.

    A scale whose bias float16 cannot hold makes the tensor one of float32.
    """
    bits = _BITS.get(tensor.kind)
    if bits is None or any(
        np.abs(_biases(tensor.kind, run)).max() > _FLOAT16_MAX for run in _runs(tensor)
    ):
        return None
    return bits


def stored_dtype(tensor: GgufTensor, bits: int | None, float_dtype: mx.Dtype) -> mx.Dtype:
    """Return the dtype of a tensor's numbers, or of its scales.

    Args:
        tensor: From the file.
        bits: What ``stored_bits`` gave.
        float_dtype: For what is stored in float32.
    """
    if tensor.kind == "F32":
        return float_dtype
    return mx.float16 if bits is not None else _FLOATS.get(tensor.kind, mx.float32)


def source_tensor(tensor: GgufTensor, rows: RowOrder = None) -> SourceTensor:
    """Return a tensor to be written in floating point.

    Args:
        tensor: From the file; a quantised one is multiplied out.
        rows: For each row of the result, the row of the file; ``None`` for the same order.
    """
    if tensor.kind in _FLOATS:
        dtype = _FLOATS[tensor.kind]
        return SourceTensor(tensor.name, dtype, tensor.shape, lambda: _runs(tensor, rows))
    return SourceTensor(
        tensor.name,
        mx.float32,
        tensor.shape,
        lambda: (_dequantize(tensor.kind, run) for run in _runs(tensor, rows)),
    )


def packed_job(
    tensor: GgufTensor, name: str, rows: RowOrder, bits: int, dtype: mx.Dtype
) -> TensorJob:
    """Return the job that keeps a quantised tensor's quants.

    Its pieces raise CheckpointError where a scale is not finite.

    Args:
        tensor: From the file.
        name: The weight's name in the output.
        rows: See ``source_tensor``.
        bits: What ``stored_bits`` gave.
        dtype: For scales and biases.
    """
    num_rows, num_columns = tensor.shape
    packed = TensorEntry(mx.uint32, (num_rows, num_columns * bits // 32))
    group = TensorEntry(dtype, (num_rows, num_columns // GROUP_SIZE))
    names = packed_names(name)

    def pieces() -> Iterator[Mapping[str, Rows]]:
        for run in _runs(tensor, rows):
            yield dict(zip(names, _packed_parts(tensor, run, dtype), strict=True))

    return TensorJob(dict(zip(names, (packed, group, group), strict=True)), pieces)


def _packed_parts(tensor: GgufTensor, run: Rows, dtype: mx.Dtype) -> tuple[Rows, Rows, Rows]:
    scales, biases = run["d"], _biases(tensor.kind, run)
    if not (np.isfinite(scales).all() and np.isfinite(biases).all()):
        raise CheckpointError(
            f"The tensor {tensor.name!r} holds NaN or infinity; get another file of the model."
        )
    quants = _pack(tensor.kind, run["q"])
    return quants, _half_as(scales, dtype), _half_as(biases, dtype)


def _half_as(values: Rows, dtype: mx.Dtype) -> Rows:
    """Return the bits in ``dtype`` of numbers that float16 holds exactly."""
    return bits_of(mx.array(values.astype(np.float16)).astype(dtype))


def choose_float_dtype(tensors: Iterable[GgufTensor]) -> mx.Dtype:
    """Return the narrowest dtype that holds every float32 tensor of a file exactly.

    llama.cpp widens the vectors of a model to float32. One dtype for all of them, and the
    one of the matrices if it will do, keeps an MLX model from computing in float32.
    """
    tensors = list(tensors)
    tests = {mx.float16: _fits_float16, mx.bfloat16: _fits_bfloat16}
    for run in (run for tensor in tensors if tensor.kind == "F32" for run in _runs(tensor)):
        tests = {dtype: test for dtype, test in tests.items() if test(run)}
        if not tests:
            return mx.float32
    has_bfloat16 = any(tensor.kind == "BF16" for tensor in tensors)
    first = mx.bfloat16 if has_bfloat16 else mx.float16
    return first if first in tests else next(iter(tests))


def _runs(tensor: GgufTensor, rows: RowOrder = None) -> Iterator[Rows]:
    """Yield the blocks of some rows at a time, and give back the file's pages behind each."""
    for run in row_runs(len(tensor.blocks), tensor.blocks[:1].nbytes):
        yield tensor.blocks[run] if rows is None else tensor.blocks[rows[run]]
        if hasattr(mmap, "MADV_DONTNEED"):
            tensor.data.madvise(mmap.MADV_DONTNEED)


def _fits_float16(values: npt.NDArray[Any]) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.all(values.astype(np.float16) == values))


def _fits_bfloat16(values: npt.NDArray[Any]) -> bool:
    """A bfloat16 is the upper half of a float32."""
    return not np.any(np.ascontiguousarray(values).view(np.uint32) & 0xFFFF)


def _biases(kind: str, blocks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return MLX's biases; d times a power of two is exact in float16 unless too large."""
    with np.errstate(invalid="ignore"):  # of a NaN that signals; the job refuses it
        if kind == "Q4_1":
            return blocks["m"].astype(np.float32)
        return blocks["d"].astype(np.float32) * np.float32(-8.0 if kind == "Q4_0" else -128.0)


def _pack(kind: str, quants: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return (rows, words) uint32, the first weight of a group in a word's lowest bits.

    Args:
        kind: Name of the type.
        quants: (rows, blocks, 16) uint8 or (rows, blocks, 32) int8.
    """
    values: npt.NDArray[Any] = _unsigned_quants(kind, quants)
    if kind != "Q8_0":
        values = values[..., 0::2] | values[..., 1::2] << 4
    return np.ascontiguousarray(values).reshape(len(values), -1).view("<u4")


def _unsigned_quants(kind: str, quants: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return (..., 32) uint8 in the order of the weights.

    A block of 16 bytes holds weights 0 to 15 in the lower halves and 16 to 31 in the upper.
    """
    if kind == "Q8_0":
        return quants.view(np.uint8) ^ 0x80
    return np.concatenate([quants & 0x0F, quants >> 4], axis=-1)


def _dequantize(kind: str, blocks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return (rows, columns) float32, for scales whose bias float16 cannot hold."""
    offset = 8 if kind == "Q4_0" else 128
    values = _unsigned_quants(kind, blocks["q"]).astype(np.float32) - np.float32(offset)
    with np.errstate(invalid="ignore"):  # 0 times infinity; the job refuses both
        values *= blocks["d"].astype(np.float32)[..., None]
    return values.reshape(len(blocks), -1)
