"""Whether a drafter's output head is a constant times its target's."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.config import Quantization

_BLOCK_ENTRIES = 1 << 22
# Bits of a half-precision number's fraction and its smallest normal exponent. Heads in
# float32 come from training in half precision, so float16 bounds their noise, too.
_FLOAT16 = (10, -14)
_BFLOAT16 = (7, -126)


def find_head_scale(head: mx.array, target_head: mx.array) -> float | None:
    """Return c where ``head == c * target_head`` up to half-precision rounding, else None.

    The constant is the least-squares one over all entries. Rounding a product moves it by
    half a unit in the last place; a whole one is allowed, two are not.

    Args:
        head: (rows, width) float16, bfloat16 or float32.
        target_head: (rows, width), the same rows of the target's head.
    """
    if head.shape != target_head.shape:
        return None
    product = square = 0.0
    for ours, theirs in _blocks(head, target_head):
        product += float((ours * theirs).sum())
        square += float((theirs * theirs).sum())
    scale = product / square if square > 0.0 else 0.0
    if scale == 0.0 or not np.isfinite(scale):
        return None
    precision = _BFLOAT16 if head.dtype == mx.bfloat16 else _FLOAT16
    close = all(
        bool((np.abs(ours - scale * theirs) <= _last_place(ours, precision)).all())
        for ours, theirs in _blocks(head, target_head)
    )
    return scale if close else None


def dequantize_stepwise(
    weight: mx.array, scales: mx.array, biases: mx.array, quantization: Quantization
) -> mx.array:
    """Return a quantised matrix in float32, each step rounded in the scales' precision.

    A back end may round the product before it adds the bias, or fuse the two. In half
    precision that moves an entry of SmolLM2's embedding by up to 108 units in the last
    place. Here product and sum are two kernels, so every machine gives the same values.

    Args:
        weight: (rows, columns * bits / 32) uint32, packed.
        scales: (rows, columns / group_size).
        biases: As scales.
        quantization: How the matrix is packed.

    Returns:
        (rows, columns) float32.
    """
    size = quantization.group_size
    ones = mx.ones(scales.shape, mx.float32)
    levels = mx.dequantize(weight, ones, 0 * ones, group_size=size, bits=quantization.bits)
    groups = levels.astype(scales.dtype).reshape(*scales.shape, size)
    product = groups * scales[..., None]
    mx.eval(product)  # so that no compiler fuses the two steps
    return (product + biases[..., None]).astype(mx.float32).reshape(levels.shape)


def _blocks(*matrices: mx.array) -> Iterator[tuple[npt.NDArray[np.float64], ...]]:
    """Yield the same rows of every matrix in float64, a bounded number at a time."""
    rows, width = matrices[0].shape
    step = max(1, _BLOCK_ENTRIES // max(1, width))
    for start in range(0, rows, step):
        yield tuple(
            np.array(matrix[start : start + step].astype(mx.float32), dtype=np.float64)
            for matrix in matrices
        )


def _last_place(
    values: npt.NDArray[np.float64], precision: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """Return the unit in the last place of each value in half precision."""
    fraction_bits, least_exponent = precision
    # frexp's mantissa is in [0.5, 1), so its exponent is one above the usual one.
    exponents = np.frexp(np.abs(values))[1] - 1
    exponents = np.where(values == 0.0, least_exponent, exponents)
    return np.ldexp(1.0, np.maximum(exponents, least_exponent) - fraction_bits)
