"""Which kernel MLX takes for a product of a few rows and a weight matrix, and what it costs.

Source: mlx/backend/metal/matmul.cpp of v0.17.3 and v0.32.2, quantized.cpp of v0.32.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil

from redrafter_mlx.bench.chips import Chip
from redrafter_mlx.bench.model_sizes import FULL_BITS, Matrix

M3_GENERATION = 15
M5_GENERATION = 17
WIDE_ROWS = 5
MAX_WIDE_ROWS = 15
_SPLIT_K_TILE = 16
_QMM_TILE = 32
_MIN_SPLIT_K_TILES = 8
_FLOAT32_BYTES = 4

# Shares of the peak that MLX's quantised kernels reach, worked out from published times of 4-bit
# matrices: qmv and qmm from an M3 Ultra, 5120 x 17408 (github.com/ml-explore/mlx/issues/4265:
# 8 rows 0.252 ms, 16 rows 0.260 ms), qmv_wide from an M4 Pro, 4096 x 24576 (issues/3839: 8 rows
# 2.69 times 1 row).
QMV_SHARE = 0.20
QMV_WIDE_SHARE = 0.35
QMM_SHARE = 0.78


class MlxRelease(Enum):
    """The releases whose rules are known: what Apple measured with, and today's."""

    APPLE_2024 = "0.17"
    TODAY = "0.32"


@dataclass(frozen=True, slots=True)
class ProductCost:
    """What one product of ``rows`` rows and a weight matrix costs.

    Attributes:
        weight_bytes: Bytes of weights read, once for each time the kernel reads them.
        partial_bytes: Bytes of partial sums that split-K writes and reads again.
        tile_steps: Steps along the inputs that a tile takes one after the other.
        operations: Multiplications and additions, those of padded rows included.
        peak_share: Share of the GPU's peak that the kernel can reach.
    """

    weight_bytes: float
    partial_bytes: float = 0.0
    tile_steps: float = 0.0
    operations: float = 0.0
    peak_share: float = 1.0


def product_cost(matrix: Matrix, rows: int, chip: Chip, release: MlxRelease) -> ProductCost:
    """Return the cost of one product of ``rows`` rows, by the kernel that MLX takes."""
    if matrix.bits != FULL_BITS:
        return _quantised_cost(matrix, rows, chip, release)
    if rows == 1:
        return _vector_cost(matrix)
    if release is MlxRelease.TODAY and chip.generation >= M3_GENERATION and rows <= MAX_WIDE_ROWS:
        passes = ceil(rows / WIDE_ROWS)
        return ProductCost(matrix.bytes_each * passes, operations=_operations(matrix, rows))
    if _takes_split_k(matrix, rows, chip, release):
        return _split_k_cost(matrix, rows)
    return _tile_cost(matrix, rows, chip, release)


def _vector_cost(matrix: Matrix) -> ProductCost:
    """One row: gemv reads the weights once."""
    return ProductCost(matrix.bytes_each, operations=_operations(matrix, 1))


def _takes_split_k(matrix: Matrix, rows: int, chip: Chip, release: MlxRelease) -> bool:
    """Whether MLX splits the inputs; in 2024 by integer division, so always below 16 rows."""
    if matrix.inputs // _SPLIT_K_TILE < _MIN_SPLIT_K_TILES:
        return False
    if release is MlxRelease.APPLE_2024:
        return (rows // _SPLIT_K_TILE) * (matrix.outputs // _SPLIT_K_TILE) <= 32
    limit = 1024 if chip.family == "g" else 2048
    tiles = ceil(rows / _SPLIT_K_TILE) * ceil(matrix.outputs / _SPLIT_K_TILE)
    return tiles <= limit and matrix.inputs >= max(rows, matrix.outputs)


def _split_k_cost(matrix: Matrix, rows: int) -> ProductCost:
    """Sixteen parts (fewer for few inputs), each with a float32 result of its own."""
    steps = matrix.inputs // _SPLIT_K_TILE
    parts = 2 if steps < 16 else 4 if steps < 32 else 8 if steps < 64 else 16
    partial_bytes = 2 * parts * rows * matrix.outputs * _FLOAT32_BYTES
    padded = _padded(rows, _SPLIT_K_TILE)
    return ProductCost(matrix.bytes_each, partial_bytes, operations=_operations(matrix, padded))


def _tile_cost(matrix: Matrix, rows: int, chip: Chip, release: MlxRelease) -> ProductCost:
    """The plain kernel: one group of threads a tile walks all inputs, a barrier at each step."""
    if release is MlxRelease.APPLE_2024:
        tile_rows, depth = (64, 32) if rows * matrix.outputs >= 1 << 20 else (32, 16)
    else:
        tile_rows, depth = 64, 16 if chip.family == "s" else 32
    operations = _operations(matrix, _padded(rows, tile_rows))
    return ProductCost(matrix.bytes_each, tile_steps=matrix.inputs / depth, operations=operations)


def _quantised_cost(matrix: Matrix, rows: int, chip: Chip, release: MlxRelease) -> ProductCost:
    if rows >= qmv_limit(matrix, chip, release):
        operations = _operations(matrix, _padded(rows, _QMM_TILE))
        return ProductCost(matrix.bytes_each, operations=operations, peak_share=QMM_SHARE)
    is_wide = release is MlxRelease.TODAY and chip.generation >= M3_GENERATION and rows > 1
    passes = ceil(rows / WIDE_ROWS) if is_wide else 1
    share = QMV_WIDE_SHARE if is_wide else QMV_SHARE
    return ProductCost(
        matrix.bytes_each * passes, operations=_operations(matrix, rows), peak_share=share
    )


def qmv_limit(matrix: Matrix, chip: Chip, release: MlxRelease) -> int:
    """Return the rows from which MLX multiplies a quantised matrix by tiles.

    Source: ``get_qmv_batch_limit`` in quantized.cpp of v0.32.2; 6 everywhere in v0.17.3.
    """
    if release is MlxRelease.APPLE_2024:
        return 6
    if chip.family == "d":
        limits = (32, 18, 12)
    elif chip.generation >= M5_GENERATION:
        limits = (33, 25, 13)
    elif chip.generation >= M3_GENERATION:
        limits = (13, 15, 13)
    else:
        limits = (14, 10, 6)
    largest = max(matrix.inputs, matrix.outputs)
    return limits[0 if largest <= 2048 else 1 if largest <= 4096 else 2]


def _operations(matrix: Matrix, rows: int) -> float:
    return 2.0 * rows * matrix.inputs * matrix.outputs


def _padded(rows: int, tile: int) -> int:
    return ceil(rows / tile) * tile
