"""The results of a bench as tables in a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from redrafter_mlx.cli import render
from redrafter_mlx.cli.bench_beside import show_beside
from redrafter_mlx.cli.tables import show_table

if TYPE_CHECKING:
    from redrafter_mlx.bench.results import BenchResults
    from redrafter_mlx.bench.summary import Spread, Summary

NUM_DEPTHS = 4  # more would not fit into 80 columns; the report has them all
NUM_DIFFERENCES = 5


def show_results(results: BenchResults) -> None:
    """Show the speeds, the rounds, and what a reader must know."""
    from redrafter_mlx.bench.report import NO_SPREAD
    from redrafter_mlx.bench.summary import have_no_spread, summarize

    summaries = summarize(results)
    if not summaries:
        render.line("Nothing was measured.")
        return
    render.line("")
    _show_line(_title(results))
    _show_rows({one.name: _speed(one) for one in summaries})
    render.line("")
    _show_rows({one.name: _rounds(one) for one in summaries})
    render.line("")
    if have_no_spread(summaries):
        _show_line(NO_SPREAD[0].upper() + NO_SPREAD[1:])
    for line in islice(_differences(results), NUM_DIFFERENCES):
        _show_line(line)
    for note in results.notes:
        _show_line(note)
    show_beside(results)


def _show_rows(rows: Mapping[str, Mapping[str, str]]) -> None:
    """Show a name and its values a row, the same columns in each."""
    head = ["", *next(iter(rows.values()))]
    show_table(head, [[name, *values.values()] for name, values in rows.items()])


def _show_line(text: str) -> None:
    """Show a line, on a terminal broken between words."""
    if sys.stdout.isatty():
        text = textwrap.fill(render.one_line(text), shutil.get_terminal_size().columns)
    render.line(text)


def _title(results: BenchResults) -> str:
    from redrafter_mlx.bench.report import answers

    target, machine = results.target, results.machine
    bits = f" in {target.bits} bits" if target.bits else ""
    asked = len({(trial.question_id, trial.turn) for trial in results.trials})
    return (
        f"{target.name}{bits}, {target.dtype}, on {machine.chip} ({machine.device}); "
        f"{results.suite}: {render.counted(asked, 'prompt')}, {answers(results.configurations[0])}"
    )


def _speed(one: Summary) -> dict[str, str]:
    rate = one.tokens_per_second
    return {
        "tokens/s": f"{rate.median:.1f}",
        "spread": f"{rate.least:.1f}-{rate.most:.1f}" if rate.is_known else "one pass",
        "x mlx-lm": _ratio(one.over_mlx_lm),
        "x plain": _ratio(one.over_plain),
        "first token": f"{1e3 * one.time_to_first_token_seconds:.0f} ms",
    }


def _ratio(value: Spread | None) -> str:
    return "-" if value is None else f"{value.median:.2f}"


def _rounds(one: Summary) -> dict[str, str]:
    shares = [f"{100 * share:.0f}" for share in one.acceptance_by_depth[:NUM_DEPTHS]]
    return {
        "tokens/round": f"{one.tokens_per_round:.2f}",
        "ms": f"{one.milliseconds_per_round:.1f}",
        "rows": f"{one.rows_per_round:.1f}",
        "plain": f"{100 * one.plain_share:.0f} %",
        "% kept by depth": " ".join(shares) or "-",
        "equal": f"{one.num_equal}/{one.num_answers}" if one.num_answers else "-",
    }


def _differences(results: BenchResults) -> Iterator[str]:
    """Yield a line for each text that left plain decoding's, in whatever pass."""
    from redrafter_mlx.bench.report import gap
    from redrafter_mlx.bench.summary import first_differences

    for trial in first_differences(results.trials):
        yield (
            f"{trial.configuration}, question {trial.question_id}, turn {trial.turn}: token "
            f"{trial.first_difference} differs from plain decoding's{gap(trial)}"
        )
