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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.convert.gguf import GgufTensor
from redrafter_mlx.errors import CheckpointError

GROUP_SIZE = 32
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_FLOAT16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class ConvertedTensor:
    """The parameter of one module, as MLX stores it.

    Attributes:
        arrays: ``weight``; where it is quantised also ``scales`` and ``biases``.
        bits: Bits per weight, ``None`` for floating point.
    """

    arrays: Mapping[str, mx.array]
    bits: int | None = None


def convert_tensor(
    tensor: GgufTensor, rows: npt.NDArray[np.intp] | None, float_dtype: mx.Dtype
) -> ConvertedTensor:
    """Return a tensor in MLX's layout.

    Args:
        tensor: From the file.
        rows: For each row of the result, the row of the file; ``None`` for the same order.
        float_dtype: For what is stored in float32.

    Raises:
        CheckpointError: A number that is not finite is among the values or the scales.
    """
    blocks = tensor.blocks if rows is None else tensor.blocks[rows]
    _refuse_not_finite(tensor, blocks)
    if tensor.kind not in _BITS:
        return ConvertedTensor({"weight": _float_array(tensor.kind, blocks, float_dtype)})
    scales = blocks["d"]
    biases = _biases(tensor.kind, blocks)
    if np.abs(biases).max() > _FLOAT16_MAX:
        return ConvertedTensor({"weight": mx.array(_dequantize(tensor.kind, blocks))})
    arrays = {
        "weight": mx.array(_pack(tensor.kind, blocks["q"])),
        "scales": mx.array(np.ascontiguousarray(scales)),
        "biases": mx.array(biases.astype(np.float16)),
    }
    return ConvertedTensor(arrays, _BITS[tensor.kind])


def choose_float_dtype(tensors: Iterable[GgufTensor]) -> mx.Dtype:
    """Return the narrowest dtype that holds every float32 tensor of a file exactly.

    llama.cpp widens the vectors of a model to float32. One dtype for all of them, and the
    one of the matrices if it will do, keeps an MLX model from computing in float32.
    """
    tensors = list(tensors)
    values = [tensor.blocks for tensor in tensors if tensor.kind == "F32"]
    choices = {
        mx.float16: all(map(_fits_float16, values)),
        mx.bfloat16: all(map(_fits_bfloat16, values)),
    }
    order = [mx.float16, mx.bfloat16]
    if any(tensor.kind == "BF16" for tensor in tensors):
        order.reverse()
    return next((dtype for dtype in order if choices[dtype]), mx.float32)


def _fits_float16(values: npt.NDArray[Any]) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.all(values.astype(np.float16) == values))


def _fits_bfloat16(values: npt.NDArray[Any]) -> bool:
    """A bfloat16 is the upper half of a float32."""
    return not np.any(np.ascontiguousarray(values).view(np.uint32) & 0xFFFF)


def _refuse_not_finite(tensor: GgufTensor, blocks: npt.NDArray[Any]) -> None:
    fields = [name for name in blocks.dtype.names or () if name != "q"]
    parts = [blocks[name] for name in fields] or [_to_float32(tensor.kind, blocks)]
    if not all(np.isfinite(part).all() for part in parts):
        raise CheckpointError(
            f"The tensor {tensor.name!r} holds NaN or infinity; get another file of the model."
        )


def _float_array(kind: str, blocks: npt.NDArray[Any], float_dtype: mx.Dtype) -> mx.array:
    if kind == "BF16":
        return mx.array(np.ascontiguousarray(blocks)).view(mx.bfloat16)
    if kind == "F16":
        return mx.array(np.ascontiguousarray(blocks))
    return mx.array(np.ascontiguousarray(blocks)).astype(float_dtype)


def _to_float32(kind: str, blocks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if kind == "BF16":
        return (blocks.astype(np.uint32) << 16).view(np.float32)
    return blocks.astype(np.float32)


def _biases(kind: str, blocks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return MLX's biases; d times a power of two is exact in float16 unless too large."""
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
    return (values * blocks["d"].astype(np.float32)[..., None]).reshape(len(blocks), -1)
