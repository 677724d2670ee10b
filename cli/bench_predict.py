"""``redrafter-mlx bench --predict CHIP --model MODEL``: what to expect of a chip one lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from redrafter_mlx.cli import render
from redrafter_mlx.cli.tables import show_table, show_text

SHOWN_BITS = (16, 4)


def show_prediction(
    chip: str,
    model: str,
    *,
    drafter: Path | None = None,
    shape: tuple[int, int] | None = None,
    bits: Sequence[int] = SHOWN_BITS,
) -> None:
    """Show what a model should do on a chip: milliseconds, tokens/s and speedups by shape.

    Args:
        chip: Its name, with or without "Apple".
        model: A known name, its repository's, or a model's folder.
        drafter: A drafter's folder; else one of Apple's recipe is assumed.
        shape: Width and length whose changes are told one by one; by default the fastest.
        bits: Widths of the weights, target and drafter alike; 16 is float16.

    Raises:
        ConfigError: No such chip or model is known; the known ones are named.
        CheckpointError: A folder's config.json cannot be read.
        ShapeError: The drafter was made for a model of another size.
    """
    from redrafter_mlx.bench.chips import find_chip
    from redrafter_mlx.bench.model_files import drafter_size, target_size
    from redrafter_mlx.bench.model_sizes import apple_drafter
    from redrafter_mlx.bench.prediction_report import fastest_line, notes, predicted_tables
    from redrafter_mlx.bench.published import PUBLISHED_MODEL
    from redrafter_mlx.bench.round_cost import RoundShape

    found, target = find_chip(chip), target_size(model)
    size = drafter_size(drafter, target) if drafter else apple_drafter(target)
    pairs = [(replace(target, bits=width), replace(size, bits=width)) for width in bits]
    render.line("Predicted, not measured.")
    if drafter is not None or target.name != PUBLISHED_MODEL:
        show_text(
            "Tokens a round are not this model's: they are what Apple measured for Vicuna 7B and "
            f"Apple's drafter. What {target.name} keeps of its guesses is not known, so the "
            "speedups are as good as that likeness; redrafter-mlx bench measures them."
        )
    for pair in pairs:
        for table in predicted_tables(*pair, found, RoundShape(*shape) if shape else None):
            render.line("")
            show_text(table.title)
            show_table(table.head, table.rows)
    render.line("")
    for text in notes(found):
        show_text(text)
    render.line("")
    for pair in pairs:
        show_text(f"{fastest_line(*pair, found)}.")
