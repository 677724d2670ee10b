"""The constants of a chip, fitted to Apple's measurements or taken from other chips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median

import numpy as np

from redrafter_mlx.bench.chips import Chip, find_chip
from redrafter_mlx.bench.model_sizes import TargetSize, apple_drafter, find_target
from redrafter_mlx.bench.published import (
    PUBLISHED_MODEL,
    PublishedCell,
    published_cells,
    published_chips,
    published_plain_milliseconds,
)
from redrafter_mlx.bench.round_cost import (
    APPLE_ROUND,
    ChipConstants,
    RoundProgram,
    RoundShape,
    pass_milliseconds,
    plain_bytes,
    round_parts,
)
from redrafter_mlx.errors import ConfigError

# From so many rows on MLX of 2024 no longer splits the inputs of a float16 product.
STEP_ROWS = 16
_FITTED = ("fixed_milliseconds", "wide_draft_share", "partial_share", "tile_step_microseconds")


@dataclass(frozen=True, slots=True)
class CellError:
    """A cell that was left out, and what was then predicted for it."""

    chip: str
    beam_width: int
    beam_length: int
    milliseconds: float
    predicted_milliseconds: float

    @property
    def error_fraction(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_milliseconds / self.milliseconds - 1.0


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """How far predictions were off, as fractions of what was measured.

    Attributes:
        median: Of the absolute errors.
        largest: Of them.
        num_cells: How many there were.
    """

    median: float
    largest: float
    num_cells: int


def error_spread(errors: Iterable[CellError]) -> ErrorSpread:
    """Return the median and the largest of at least one error."""
    found = [abs(error.error_fraction) for error in errors]
    return ErrorSpread(median(found), max(found), len(found))


def fit(
    cells: Sequence[PublishedCell],
    chip: Chip,
    plain_milliseconds: float,
    tile_step_microseconds: float | None = None,
) -> ChipConstants:
    """Return a chip's constants, by least squares of the relative errors over its warm cells.

    Args:
        cells: Apple's float16 greedy cells for Vicuna 7B; cold ones are passed over.
        chip: The chip.
        plain_milliseconds: A token of plain decoding; it gives the bandwidth.
        tile_step_microseconds: Taken as known and not fitted, such as another chip's.

    Raises:
        ConfigError: The cells do not determine the constants.
    """
    start = replace(_bare(chip, plain_milliseconds), tile_step_microseconds=0.0)
    names: tuple[str, ...] = _FITTED
    if tile_step_microseconds is not None:
        start = replace(start, tile_step_microseconds=tile_step_microseconds)
        names = _FITTED[:-1]
    warm = [cell for cell in cells if not cell.is_cold]
    weights = np.array([1.0 / cell.milliseconds_per_round for cell in warm])
    base = np.array([predict_cell(cell, start) for cell in warm])
    slopes = [[predict_cell(cell, _raised(start, name)) for cell in warm] for name in names]
    design = (np.array(slopes) - base).T * weights[:, None] if warm else np.zeros((0, 1))
    found, _, rank, _ = np.linalg.lstsq(design, 1.0 - base * weights, rcond=None)
    if rank < len(names):
        raise ConfigError(
            f"{len(warm)} warm cells do not determine the constants of {chip.name}; give cells of "
            "several widths and lengths, some with 16 rows or more."
        )
    return replace(start, **dict(zip(names, found.tolist(), strict=True)))


def predict_cell(
    cell: PublishedCell, constants: ChipConstants, program: RoundProgram = APPLE_ROUND
) -> float:
    """Return the milliseconds of a round predicted for one of Apple's cells."""
    target = find_target(PUBLISHED_MODEL)
    shape = RoundShape(cell.beam_width, cell.beam_length)
    return round_parts(target, apple_drafter(target), shape, constants, program).milliseconds


@cache
def leave_one_out(chip: Chip) -> tuple[CellError, ...]:
    """Return for each warm cell of a measured chip what the others predict."""
    cells = published_cells(chip.name)
    plain = published_plain_milliseconds(chip.name)
    return tuple(
        _error(cell, fit([other for other in cells if other is not cell], chip, plain))
        for cell in cells
        if not cell.is_cold
    )


@cache
def leave_chip_out(chip: Chip) -> tuple[CellError, ...]:
    """Return for each warm cell of a measured chip what the other chips predict.

    Of the chip itself only its plain decoding is known.
    """
    others = [name for name in published_chips() if name != chip.name]
    constants = _transferred(chip, published_plain_milliseconds(chip.name), others)
    return tuple(_error(cell, constants) for cell in published_cells(chip.name) if not cell.is_cold)


@cache
def leave_step_out(chip: Chip) -> tuple[CellError, ...]:
    """Return for each cell of 16 rows or more what those of fewer rows predict.

    There MLX of 2024 takes its plain matrix kernel. What a step of it costs is the mean of the
    other chips, so that nothing of this chip's own says how high the step in its rounds is.
    """
    others = [_fitted(find_chip(name)) for name in published_chips() if name != chip.name]
    cells = [cell for cell in published_cells(chip.name) if not cell.is_cold]
    below = [cell for cell in cells if cell.num_rows < STEP_ROWS]
    constants = fit(
        below,
        chip,
        published_plain_milliseconds(chip.name),
        tile_step_microseconds=fmean(other.tile_step_microseconds for other in others),
    )
    return tuple(_error(cell, constants) for cell in cells if cell.num_rows >= STEP_ROWS)


@cache
def constants_for(chip: Chip) -> ChipConstants:
    """Return the constants of any chip, with their error.

    A chip that Apple measured has constants of its own. Any other has the means of those that
    Apple measured, and its bandwidth is taken to be used as well as theirs, at the mean.
    """
    names = published_chips()
    if chip.name in names:
        error = error_spread(leave_one_out(chip)).largest
        return replace(_fitted(chip), error_fraction=error)
    target = find_target(PUBLISHED_MODEL)
    shares = [_bandwidth_share(_fitted(find_chip(name))) for name in names]
    used = chip.bandwidth_gb_per_second * fmean(shares)
    plain_milliseconds = pass_milliseconds(target) + plain_bytes(target) / (used * 1e6)
    error = max(error_spread(leave_chip_out(find_chip(name))).largest for name in names)
    error += max(shares) / min(shares) - 1.0
    return replace(_transferred(chip, plain_milliseconds, names), error_fraction=error)


def _bare(chip: Chip, plain_milliseconds: float) -> ChipConstants:
    """Return constants that hold nothing but the bandwidth, in GB a second: bytes / ms / 1e6."""
    target: TargetSize = find_target(PUBLISHED_MODEL)
    reading = plain_milliseconds - pass_milliseconds(target)
    if reading <= 0.0:
        raise ConfigError(
            f"plain_milliseconds is {plain_milliseconds}; give the time of a token of "
            f"{PUBLISHED_MODEL} in float16, which is over {pass_milliseconds(target):.1f} ms."
        )
    return ChipConstants(chip, plain_bytes(target) / reading / 1e6, 0.0, 0.0, 0.0, 0.0)


def _raised(constants: ChipConstants, name: str) -> ChipConstants:
    values: dict[str, float] = {name: getattr(constants, name) + 1.0}
    return replace(constants, **values)  # type: ignore[arg-type]


@cache
def _fitted(chip: Chip) -> ChipConstants:
    return fit(published_cells(chip.name), chip, published_plain_milliseconds(chip.name))


def _transferred(chip: Chip, plain_milliseconds: float, names: Iterable[str]) -> ChipConstants:
    others = [_fitted(find_chip(name)) for name in names]
    means = {name: fmean(getattr(other, name) for other in others) for name in _FITTED}
    return replace(_bare(chip, plain_milliseconds), **means)  # type: ignore[arg-type]


def _bandwidth_share(constants: ChipConstants) -> float:
    return constants.bandwidth_gb_per_second / constants.chip.bandwidth_gb_per_second


def _error(cell: PublishedCell, constants: ChipConstants) -> CellError:
    predicted = predict_cell(cell, constants)
    shape = (cell.beam_width, cell.beam_length)
    return CellError(cell.chip, *shape, cell.milliseconds_per_round, predicted)
