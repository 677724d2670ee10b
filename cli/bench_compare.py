"""``redrafter-mlx bench --compare A B``: two results side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from redrafter_mlx.cli import render
from redrafter_mlx.cli.tables import show_table

if TYPE_CHECKING:
    from redrafter_mlx.bench.compare import ComparedResults, Comparison
    from redrafter_mlx.bench.results import BenchResults
    from redrafter_mlx.bench.summary import Spread

SPREAD_NOTE = (
    "tokens/s: median (least-most) over the passes. A difference is beyond the",
    "spread where every pass of one side is faster than all of the other's. A side of",
    "a single pass has no spread: - says so, and its difference may be chance.",
)


def show_comparison(first: Path, second: Path) -> None:
    """Show two results side by side, their ratios, and which differences exceed the spread.

    Args:
        first: A results.json or its folder; it is called A.
        second: The other, B.

    Raises:
        CheckpointError: A file is missing, holds no results, or those of another version.
    """
    from redrafter_mlx.bench.compare import compare
    from redrafter_mlx.bench.store import read_results

    results = {"A": read_results(first), "B": read_results(second)}
    for (name, found), path in zip(results.items(), (first, second), strict=True):
        render.line(f"{name}: {_setting(path, found)}")
    compared = compare(*results.values())
    render.line("")
    if compared.comparisons:
        _show_speeds(compared)
    else:
        render.line("The two have no configuration in common.")
    for name, names in (("A", compared.only_first), ("B", compared.only_second)):
        if names:
            render.line(f"Only in {name}: {'; '.join(names)}")
    if compared.differences:
        render.line("")
        show_table(["what else differs", "A", "B"], compared.differences, num_names=3)


def _setting(path: Path, results: BenchResults) -> str:
    parts = (results.target.name, results.machine.chip, results.suite, results.started_at[:16])
    return f"{path}: {', '.join(parts)}"


def _show_speeds(compared: ComparedResults) -> None:
    head = [
        "\n\ndecoding",
        "\nA\ntokens/s",
        "\nB\ntokens/s",
        "\n\nB / A",
        "A, B\ntokens\na round",
        "\nbeyond\nspread",
    ]
    show_table(head, map(_row, compared.comparisons))
    for line in SPREAD_NOTE:
        render.line(line)


def _row(one: Comparison) -> list[str]:
    return [
        one.first.name,
        _speed(one.first.tokens_per_second),
        _speed(one.second.tokens_per_second),
        "-" if one.ratio is None else f"{one.ratio:.3f}",
        f"{one.first.tokens_per_round:.2f} {one.second.tokens_per_round:.2f}",
        _verdict(one),
    ]


def _speed(value: Spread) -> str:
    if not value.is_known:
        return _rate(value.median)
    return f"{_rate(value.median)} ({_rate(value.least)}-{_rate(value.most)})"


def _rate(value: float) -> str:
    """Return a rate by its first three digits, so that two spreads fit into 80 columns."""
    return f"{value:.{0 if value >= 100.0 else 1 if value >= 10.0 else 2}f}"


def _verdict(one: Comparison) -> str:
    if one.exceeds_spread is None:
        return "-"
    if not one.exceeds_spread:
        return "no"
    is_faster = one.second.tokens_per_second.median > one.first.tokens_per_second.median
    return "faster" if is_faster else "slower"
