"""The curves of a training run."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def plot_curves(lines: Sequence[Mapping[str, Any]], out: Path) -> bool:
    """Draw loss, accuracy by depth and tokens per round over the steps.

    Args:
        lines: Of the run's log.
        out: A PNG to write.

    Returns:
        Whether it was drawn: False where matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return False
    # Not by pyplot, which looks for a display and keeps a choice for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    held = [line for line in lines if "held_out" in line]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy, rounds = figure.subplots(1, 3)
    loss.plot(*_smooth(lines, "loss"), label="training")
    loss.plot(_steps(held), [line["held_out"]["loss"] for line in held], label="held out")
    loss.set_title("loss")
    depths = len(held[0]["held_out"]["accuracy_by_depth"]) if held else 0
    for depth in range(depths):
        values = [line["held_out"]["accuracy_by_depth"][depth] for line in held]
        accuracy.plot(_steps(held), values, label=f"depth {depth + 1}")
    accuracy.set_title("accuracy, held out")
    rounds.plot(_steps(held), [line["held_out"]["tokens_per_round"] for line in held])
    rounds.set_title("tokens per round, held out")
    for axes in (loss, accuracy):
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    for axes in (loss, accuracy, rounds):
        axes.set_xlabel("step")
    figure.savefig(out, dpi=120)
    return True


def _steps(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    return [line["step"] for line in lines]


def _smooth(
    lines: Sequence[Mapping[str, Any]], key: str, decay: float = 0.95
) -> tuple[list[int], list[float]]:
    values: list[float] = []
    for line in lines:
        newest = float(line[key])
        values.append(decay * values[-1] + (1 - decay) * newest if values else newest)
    return _steps(lines), values
