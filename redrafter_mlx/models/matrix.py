"""A layer's matrix as it is stored, dense or quantised, whole or in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A weight matrix, (rows, columns), that multiplies from the right: ``x @ W.T``.

    Attributes:
        weight: Dense, or packed by ``mx.quantize``.
        scales: ``None`` for a dense matrix.
        biases: Of a quantised matrix whose mode has them.
        group_size: Columns that share a scale; likewise ``bits`` and ``mode``.
    """

    weight: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    group_size: int = 64
    bits: int = 4
    mode: str = "affine"

    @classmethod
    def of(cls, layer: nn.Module) -> Matrix:
        """Return the matrix of a linear or embedding layer, without its bias."""
        if "scales" not in layer:
            return cls(layer.weight)
        biases = layer.biases if "biases" in layer else None
        return cls(layer.weight, layer.scales, biases, layer.group_size, layer.bits, layer.mode)

    @property
    def arrays(self) -> list[mx.array]:
        """Every array, to be evaluated."""
        return [part for part in (self.weight, self.scales, self.biases) if part is not None]

    def apply(self, x: mx.array) -> mx.array:
        """Return ``x @ W.T`` for x, (..., columns)."""
        if self.scales is None:
            return x @ self.weight.T
        return mx.quantized_matmul(
            x,
            self.weight,
            self.scales,
            self.biases,
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )

    def rows(self, row_ids: mx.array) -> Matrix:
        """Return some of the rows, exact for a quantised matrix, too."""
        return self._each(lambda part: part[row_ids])

    def halves(self) -> tuple[Matrix, Matrix]:
        """Return the left and the right half of the columns."""
        if self.scales is not None and self.scales.shape[1] % 2:
            # The middle lies within a group of columns.
            return Matrix(self.dense()).halves()
        left = self._each(lambda part: mx.contiguous(part[:, : part.shape[1] // 2]))
        right = self._each(lambda part: mx.contiguous(part[:, part.shape[1] // 2 :]))
        return left, right

    def dense(self) -> mx.array:
        """Return (rows, columns), multiplied out where it is quantised."""
        if self.scales is None:
            return self.weight
        return mx.dequantize(
            self.weight,
            self.scales,
            self.biases,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )

    def _each(self, change: Callable[[mx.array], mx.array]) -> Matrix:
        return replace(
            self,
            weight=change(self.weight),
            scales=None if self.scales is None else change(self.scales),
            biases=None if self.biases is None else change(self.biases),
        )
