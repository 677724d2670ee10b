"""A prediction as Markdown, called one in every table."""

from __future__ import annotations

from redrafter_mlx.bench.model_sizes import DrafterSize, TargetSize
from redrafter_mlx.bench.predict import (
    ASSUMPTIONS,
    SpeedupPrediction,
    predict_changes,
    predict_shapes,
)
from redrafter_mlx.bench.published import MEASUREMENTS_SOURCE
from redrafter_mlx.bench.report import markdown_table
from redrafter_mlx.bench.round_cost import ChipConstants, RoundShape


def prediction_report(
    target: TargetSize,
    drafter: DrafterSize,
    constants: ChipConstants,
    shape: RoundShape | None = None,
) -> str:
    """Return what a target should do on a chip that nobody measured this program on.

    Args:
        target: The target.
        drafter: The drafter that the shapes are predicted with.
        constants: The chip's.
        shape: The shape whose changes are told one by one; by default the fastest.
    """
    shapes = predict_shapes(target, drafter, constants)
    best = max(shapes, key=lambda one: one.speedup)
    chosen = shape or best.shape
    drafted = f"drafter in {drafter.bits} bits"
    parts = [
        f"# Predicted, not measured: {best.name}\n",
        f"Plain decoding: {1e3 / best.plain_milliseconds:.1f} tokens/s. {_fit_line(constants)}\n",
        f"## Predicted by width and length, {drafted}\n",
        _shape_table(shapes),
        f"Fastest: width {best.shape.beam_width}, length {best.shape.beam_length}.\n",
        f"## Predicted change by change, width {chosen.beam_width}, length {chosen.beam_length}\n",
        _change_table(predict_changes(target, drafter, chosen, constants)),
        "## Assumptions\n",
        *(f"- {line}" for line in ASSUMPTIONS),
    ]
    return "\n".join(parts) + "\n"


def _fit_line(constants: ChipConstants) -> str:
    error = f"{100 * constants.error_fraction:.0f} %"
    if constants.is_measured:
        return (
            "The cost of a round is fitted to Apple's runs on this chip "
            f"({MEASUREMENTS_SOURCE}); it missed one that it had not seen by {error} at most."
        )
    return (
        "Apple did not measure this chip: the cost of a round is the mean of those that it did "
        f"({MEASUREMENTS_SOURCE}); of those a chip left out was missed by up to {error}."
    )


def _shape_table(shapes: tuple[SpeedupPrediction, ...]) -> str:
    head = ["width, length", "rows", "tokens a round", "ms a round", "tokens/s", "times plain"]
    rows = [
        [
            f"{one.shape.beam_width}, {one.shape.beam_length}",
            str(one.round.rows),
            f"{one.tokens_per_round:.2f}",
            f"{one.round.milliseconds:.1f}",
            f"{one.tokens_per_second:.1f}",
            _range(one),
        ]
        for one in shapes
    ]
    return markdown_table(head, rows)


def _change_table(changes: tuple[SpeedupPrediction, ...]) -> str:
    head = [
        "with",
        "rows",
        "ms a round",
        "verify",
        "draft",
        "tiles",
        "copy",
        "fixed",
        "times plain",
    ]
    rows = []
    for one in changes:
        parts = one.round.parts
        each = (parts.verify, parts.draft, parts.tile_steps, parts.kv_copy, parts.fixed)
        figures = [f"{value:.1f}" for value in (one.round.milliseconds, *each)]
        rows.append([one.name, str(one.round.rows), *figures, _range(one)])
    return markdown_table(head, rows)


def _range(one: SpeedupPrediction) -> str:
    return f"{one.speedup:.2f} ({one.least_speedup:.2f} to {one.most_speedup:.2f})"
