"""The results of a bench as tables in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrafter_mlx.cli import render

if TYPE_CHECKING:
    from redrafter_mlx.bench.results import BenchResults
    from redrafter_mlx.bench.summary import Spread, Summary


def show_results(results: BenchResults) -> None:
    """Show the speeds, the rounds, and what a reader must know."""
    from redrafter_mlx.bench.summary import summarize

    summaries = summarize(results)
    if not summaries:
        render.line("Nothing was measured.")
        return
    render.line(_title(results))
    render.table({one.name: _speed(one) for one in summaries}, is_result=True)
    render.line("")
    render.table({one.name: _rounds(one) for one in summaries}, is_result=True)
    render.line("")
    for line in (*_differences(results), *results.notes):
        render.line(line)


def _title(results: BenchResults) -> str:
    target, machine = results.target, results.machine
    bits = f", {target.bits} bits" if target.bits else ""
    return f"{target.name}, {target.dtype}{bits}, on {machine.chip} ({machine.device})"


def _speed(one: Summary) -> dict[str, str]:
    rate = one.tokens_per_second
    return {
        "tokens/s": f"{rate.median:.1f}",
        "spread": f"{rate.least:.1f}-{rate.most:.1f}" if one.num_passes > 1 else "one pass",
        "x mlx-lm": _ratio(one.over_mlx_lm),
        "x plain": _ratio(one.over_plain),
        "first token": f"{1e3 * one.time_to_first_token_seconds:.0f} ms",
    }


def _ratio(value: Spread | None) -> str:
    return "" if value is None else f"{value.median:.2f}"


def _rounds(one: Summary) -> dict[str, str]:
    shares = " ".join(f"{100 * share:.0f}" for share in one.acceptance_by_depth)
    equal = f"{one.num_equal}/{one.num_answers}" if one.num_answers else "-"
    return {
        "tokens/round": f"{one.tokens_per_round:.2f}",
        "ms": f"{one.milliseconds_per_round:.1f}",
        "rows": f"{one.rows_per_round:.1f}",
        "plain": f"{100 * one.plain_share:.0f} %",
        "% kept by depth": shares or "-",
        "same text": equal,
    }


def _differences(results: BenchResults) -> Sequence[str]:
    return ()
