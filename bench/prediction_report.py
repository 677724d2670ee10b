"""A prediction as tables and lines, called one wherever it stands."""

from __future__ import annotations

from dataclasses import dataclass, replace

from redrafter_mlx.bench.chips import Chip, find_chip
from redrafter_mlx.bench.fit import constants_for, error_spread, leave_chip_out, leave_one_out
from redrafter_mlx.bench.model_sizes import FULL_BITS, DrafterSize, TargetSize
from redrafter_mlx.bench.predict import (
    ASSUMPTIONS,
    SpeedupPrediction,
    predict_changes,
    predict_shapes,
)
from redrafter_mlx.bench.published import MEASUREMENTS_SOURCE, published_chips
from redrafter_mlx.bench.round_cost import APPLE_ROUND, RoundParts, RoundShape

SHAPE_HEAD = (
    "W, L",
    "rows",
    "tokens\na\nround",
    "draft\nms",
    "verify\nms",
    "rest\nms",
    "ms a\nround",
    "tokens\n/s",
    "times plain\n(range)",
    "Apple",
)
CHANGE_HEAD = ("with", "rows", *SHAPE_HEAD[3:7], "times plain\n(range)")
LEGEND = (
    "W, L: beam width and length. Tokens a round: as Apple measured. Draft and verify: all that "
    "these passes cost. Rest: the fixed cost and, in Apple's round, the copy of the KV cache. "
    "Apple: times plain decoding predicted for Apple's round, its drafter in float16. Range: the "
    "round slower or faster by its error and by what the assumptions leave open."
)


@dataclass(frozen=True, slots=True)
class PredictedTable:
    """Predicted figures under a title that says so; a new line in ``head`` is a narrow column's."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class BothRounds:
    """The predictions for every shape: with this project's round, and with Apple's."""

    ours: tuple[SpeedupPrediction, ...]
    apples: tuple[SpeedupPrediction, ...]


def predict_both(target: TargetSize, drafter: DrafterSize, chip: Chip) -> BothRounds:
    """Return both rounds; Apple's has its drafter in float16."""
    constants = constants_for(chip)
    half = replace(drafter, bits=FULL_BITS)
    return BothRounds(
        predict_shapes(target, drafter, constants),
        predict_shapes(target, half, constants, APPLE_ROUND),
    )


def fastest_of(
    target: TargetSize, drafter: DrafterSize, chip: Chip
) -> tuple[SpeedupPrediction, SpeedupPrediction]:
    """Return the fastest shape with this project's round, and with Apple's."""
    both = predict_both(target, drafter, chip)
    return _fastest(both.ours), _fastest(both.apples)


def predicted_tables(
    target: TargetSize, drafter: DrafterSize, chip: Chip, shape: RoundShape | None = None
) -> tuple[PredictedTable, PredictedTable]:
    """Return what a target should do on a chip: shape by shape, and change by change.

    Args:
        target: The target.
        drafter: The drafter that the shapes are predicted with.
        chip: The chip.
        shape: The shape whose changes are told one by one; by default the fastest.
    """
    both = predict_both(target, drafter, chip)
    best = _fastest(both.ours)
    chosen = shape or best.shape
    changes = predict_changes(target, drafter, chosen, constants_for(chip))
    which = f"{target.name} in {bits_words(target.bits)} on {chip.name}"
    return (
        PredictedTable(
            f"Predicted: {which}, the drafter in {bits_words(drafter.bits)}; plain decoding "
            f"{1e3 / best.plain_milliseconds:.1f} tokens/s",
            SHAPE_HEAD,
            tuple(map(_shape_row, both.ours, both.apples)),
        ),
        PredictedTable(
            f"Predicted change by change: {which}, width {chosen.beam_width}, length "
            f"{chosen.beam_length}",
            CHANGE_HEAD,
            tuple(map(_change_row, changes)),
        ),
    )


def fastest_line(target: TargetSize, drafter: DrafterSize, chip: Chip) -> str:
    """Return the fastest shape in one line."""
    best, _ = fastest_of(target, drafter, chip)
    return (
        f"Predicted in {bits_words(target.bits)}: at best {best.speedup:.2f} times plain decoding "
        f"({best.least_speedup:.2f} to {best.most_speedup:.2f}), {best.tokens_per_second:.1f} "
        f"tokens/s at width {best.shape.beam_width}, length {best.shape.beam_length}"
    )


def _fastest(shapes: tuple[SpeedupPrediction, ...]) -> SpeedupPrediction:
    return max(shapes, key=lambda one: one.speedup)


def error_line(chip: Chip) -> str:
    """Return how far the predictor was off on what it had not seen."""
    if chip.name in published_chips():
        cell, other = error_spread(leave_one_out(chip)), error_spread(leave_chip_out(chip))
        return (
            f"Error on {chip.name}: each of Apple's {cell.num_cells} warm cells, predicted from "
            f"the others, was missed by {_percent(cell.median)} at the median and "
            f"{_percent(cell.largest)} at most; predicted from the other chips and this one's "
            f"plain step alone, by {_percent(other.median)} and {_percent(other.largest)}."
        )
    spreads = {name: error_spread(leave_chip_out(find_chip(name))) for name in published_chips()}
    missed = ", ".join(
        f"{name} by {_percent(one.median)} at the median and {_percent(one.largest)} at most"
        for name, one in spreads.items()
    )
    return (
        f"Error: Apple did not measure {chip.name}, so its constants are the means of the others. "
        f"Predicted from the other chips and its own plain step alone, {missed}; here the plain "
        "step is predicted, too."
    )


def notes(chip: Chip) -> tuple[str, ...]:
    """Return what goes with every prediction: the legend, the error, the assumptions."""
    source = f"Fitted to Apple's float16 greedy runs ({MEASUREMENTS_SOURCE})."
    return (LEGEND, f"{source} {error_line(chip)}", *(f"- {line}" for line in ASSUMPTIONS))


def bits_words(bits: int) -> str:
    """Return "float16" or "4 bits"."""
    return "float16" if bits == FULL_BITS else f"{bits} bits"


def _shape_row(one: SpeedupPrediction, apple: SpeedupPrediction) -> tuple[str, ...]:
    return (
        f"{one.shape.beam_width}, {one.shape.beam_length}",
        str(one.round.rows),
        f"{one.tokens_per_round:.2f}",
        *_parts(one.round.parts),
        f"{one.tokens_per_second:.1f}",
        _range(one),
        f"{apple.speedup:.2f}",
    )


def _change_row(one: SpeedupPrediction) -> tuple[str, ...]:
    return (one.name, str(one.round.rows), *_parts(one.round.parts), _range(one))


def _parts(parts: RoundParts) -> tuple[str, ...]:
    each = (
        parts.draft + parts.draft_tile_steps,
        parts.verify + parts.verify_tile_steps,
        parts.kv_copy + parts.fixed,
        parts.milliseconds,
    )
    return tuple(f"{value:.1f}" for value in each)


def _range(one: SpeedupPrediction) -> str:
    return f"{one.speedup:.2f} ({one.least_speedup:.2f}-{one.most_speedup:.2f})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
