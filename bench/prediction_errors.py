"""How far the predictor is off on what it had not seen, and its predictions, as Markdown.

Run it as ``python -m redrafter_mlx.bench.prediction_errors``; docs/bench/prediction.md holds what
it prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from redrafter_mlx.bench.chips import Chip, find_chip
from redrafter_mlx.bench.fit import (
    ErrorSpread,
    error_spread,
    leave_chip_out,
    leave_one_out,
    leave_step_out,
)
from redrafter_mlx.bench.model_sizes import (
    FULL_BITS,
    DrafterSize,
    TargetSize,
    apple_drafter,
    find_target,
)
from redrafter_mlx.bench.predict import SpeedupPrediction
from redrafter_mlx.bench.prediction_report import bits_words, fastest_of, predicted_tables
from redrafter_mlx.bench.published import PUBLISHED_MODEL, published_chips
from redrafter_mlx.bench.report import markdown_table

PREDICTED_CHIPS = ("M1 Max", "M2 Ultra")
PREDICTED_BITS = (FULL_BITS, 4)


def error_table() -> str:
    """Return the errors by chip, with a cell left out and with the chip left out."""
    head = [
        "chip",
        "cells",
        "a cell left out: median",
        "most",
        "the chip left out but for its plain step: median",
        "most",
    ]
    rows = []
    for name in published_chips():
        cell = error_spread(leave_one_out(find_chip(name)))
        chip = error_spread(leave_chip_out(find_chip(name)))
        rows.append([name, str(cell.num_cells), *_percents(cell), *_percents(chip)])
    return markdown_table(head, rows)


def step_table() -> str:
    """Return the cells of 16 rows or more, predicted from those of fewer."""
    head = ["chip", "width, length", "rows", "measured, ms a round", "predicted", "error"]
    rows = [
        [
            name,
            f"{one.beam_width}, {one.beam_length}",
            str(one.beam_width * one.beam_length),
            f"{one.milliseconds:.1f}",
            f"{one.predicted_milliseconds:.1f}",
            f"{100 * one.error_fraction:+.0f} %",
        ]
        for name in published_chips()
        for one in leave_step_out(find_chip(name))
    ]
    return markdown_table(head, rows)


def best_table() -> str:
    """Return the fastest shape of each prediction, this project's round beside Apple's."""
    head = ["chip", "weights", "W, L", "tokens/s", "times plain (range)", "Apple's round, W, L"]
    rows = []
    for chip, target, drafter in _predicted():
        best, apple = fastest_of(target, drafter, chip)
        rows.append(
            [
                chip.name,
                bits_words(target.bits),
                _shape(best),
                f"{best.tokens_per_second:.1f}",
                f"{best.speedup:.2f} ({best.least_speedup:.2f}-{best.most_speedup:.2f})",
                f"{apple.speedup:.2f} at {_shape(apple)}",
            ]
        )
    return markdown_table(head, rows)


def prediction_parts() -> list[str]:
    """Return titles and tables of the predictions, in turn."""
    return [
        part
        for chip, target, drafter in _predicted()
        for table in predicted_tables(target, drafter, chip)
        for part in (f"### {table.title}\n", markdown_table(table.head, table.rows))
    ]


def _predicted() -> Iterator[tuple[Chip, TargetSize, DrafterSize]]:
    target = find_target(PUBLISHED_MODEL)
    for name in PREDICTED_CHIPS:
        for bits in PREDICTED_BITS:
            yield find_chip(name), replace(target, bits=bits), apple_drafter(target, bits)


def _shape(one: SpeedupPrediction) -> str:
    return f"{one.shape.beam_width}, {one.shape.beam_length}"


def _percents(spread: ErrorSpread) -> list[str]:
    return [f"{100 * value:.1f} %" for value in (spread.median, spread.largest)]


def main() -> None:
    """Print every table of docs/bench/prediction.md."""
    sys.stdout.write("\n".join([error_table(), step_table(), best_table(), *prediction_parts()]))


if __name__ == "__main__":
    main()
