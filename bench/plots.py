"""Plots of results, as PNG files; they need matplotlib, and no display."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrafter_mlx.bench.results import PHASES, BenchResults, Configuration
from redrafter_mlx.bench.summary import Summary, have_no_spread, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING = (
    "No plots were drawn, since matplotlib is not installed; run: "
    "pip install 'redrafter-mlx[plots]'"
)
_WIDTH_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 7.0, 4.2, 150
_BAR, _INCHES_PER_LINE, _BARS_THAT_FIT = 0.6, 0.3, 9
_LEGEND_COLUMNS = 3
_DASHES = ("--", "-", ":", "-.")  # by the length's remainder: 2 is dotted, 5 is whole


@dataclass(frozen=True, slots=True)
class Plots:
    """What was drawn, and a line on what was not."""

    files: tuple[Path, ...]
    note: str | None


def draw_plots(results: BenchResults, folder: Path) -> Plots:
    """Write every plot that the results have figures for into a folder that exists."""
    if importlib.util.find_spec("matplotlib") is None:
        return Plots((), MISSING)
    summaries = summarize(results)
    files = []
    for name, draw in _PLOTS.items():
        figure, axes = _figure()
        if draw(axes, results, summaries):
            figure.savefig(folder / f"{name}.png", metadata={"Software": None})
            files.append(folder / f"{name}.png")
    return Plots(tuple(files), None)


def _figure() -> tuple[Any, Axes]:
    """Return a figure that draws to memory: pyplot would look for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (_WIDTH_INCHES, _HEIGHT_INCHES)
    figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _draw_speedup(axes: Axes, results: BenchResults, summaries: tuple[Summary, ...]) -> bool:
    """Speedup over plain decoding by length, a line a width, as in the paper's Figure 7.

    What is adapted has no one length: it is a level line.
    """
    found = {one.name: one.over_plain.median for one in summaries if one.over_plain is not None}
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in results.configurations:
        if one.name in found and one.beam_length is not None and not one.is_adaptive:
            lines.setdefault(_line_name(one), []).append((one.beam_length, found[one.name]))
    if not lines:
        return False
    for label, points in sorted(lines.items()):
        lengths, speedups = zip(*sorted(points), strict=True)
        axes.plot(lengths, speedups, marker="o", label=label)
    for one in results.configurations:
        if one.name in found and one.is_adaptive:
            axes.axhline(found[one.name], color="black", linestyle="--", label=_plain(one.name))
    axes.axhline(1.0, color="gray", linewidth=1)
    axes.set_xticks(sorted({length for points in lines.values() for length, _ in points}))
    axes.set(xlabel="beam length", ylabel="times plain decoding")
    axes.set_title(_title(results, "speedup"))
    axes.figure.legend(loc="outside lower center", ncols=_LEGEND_COLUMNS)
    return True


def _line_name(one: Configuration) -> str:
    """Return what a line's points have in common: the width, and the rows if they are fewer."""
    width, length, max_rows = one.beam_width or 1, one.beam_length or 1, one.max_rows or 1
    is_cut = max_rows < 1 + width * (length - 1)
    return f"width {width}" + (f", {max_rows} rows" if is_cut else "")


def _draw_tokens_per_second(
    axes: Axes, results: BenchResults, summaries: tuple[Summary, ...]
) -> bool:
    """Tokens/s by configuration, with the spread over the passes."""
    if not summaries:
        return False
    rates = [one.tokens_per_second for one in summaries]
    below = [one.median - one.least for one in rates]
    above = [one.most - one.median for one in rates]
    places = range(len(summaries))
    errors = None if have_no_spread(summaries) else [below, above]
    axes.barh(places, [one.median for one in rates], _BAR, xerr=errors, capsize=3)
    _name_bars(axes, [one.name for one in summaries])
    which = "median, least and most over the passes" if errors else "one pass, so without a spread"
    axes.set(xlabel=f"tokens/s: {which}")
    axes.set_title(_title(results, "speed"))
    return True


def _draw_milliseconds(axes: Axes, results: BenchResults, _: tuple[Summary, ...]) -> bool:
    """Milliseconds of a round, phase upon phase."""
    phases = [one for one in results.phases if one.num_rounds]
    if not phases:
        return False
    places, start = range(len(phases)), [0.0] * len(phases)
    for name in PHASES:
        each = [1e3 * getattr(one, f"{name}_seconds") / one.num_rounds for one in phases]
        axes.barh(places, each, _BAR, left=start, label=name)
        start = [left + width for left, width in zip(start, each, strict=True)]
    _name_bars(axes, [one.configuration for one in phases])
    axes.set(xlabel="milliseconds a round, each phase waited for")
    axes.set_title(_title(results, "where a round's time goes"))
    axes.figure.legend(loc="outside lower center", ncols=len(PHASES))
    return True


def _draw_acceptance(axes: Axes, results: BenchResults, summaries: tuple[Summary, ...]) -> bool:
    """Share of drafts kept, by depth: a colour a width, a dash a length."""
    styles = {one.name: _style(one) for one in results.configurations}
    drafted = [one for one in summaries if one.acceptance_by_depth]
    for one in drafted:
        depths = range(1, len(one.acceptance_by_depth) + 1)
        colour, dash = styles[one.name]
        shares = one.acceptance_by_depth
        axes.plot(depths, shares, dash, color=colour, marker="o", label=_plain(one.name))
    if not drafted:
        return False
    deepest = max(len(one.acceptance_by_depth) for one in drafted)
    axes.set_xticks(range(1, deepest + 1))
    axes.set(
        xlabel="depth of the drafted token", ylabel="share of rounds that kept it", ylim=(0, 1)
    )
    axes.set_title(_title(results, "acceptance"))
    axes.figure.legend(loc="outside lower center", ncols=_LEGEND_COLUMNS)
    _grow(axes, len(drafted) / _LEGEND_COLUMNS)
    return True


def _style(one: Configuration) -> tuple[str, str]:
    if one.is_adaptive or one.beam_width is None or one.beam_length is None:
        return "black", "--"
    return f"C{one.beam_width - 1}", _DASHES[one.beam_length % len(_DASHES)]


def _name_bars(axes: Axes, names: list[str]) -> None:
    """Name horizontal bars from the top down, and make room for them."""
    axes.set_yticks(range(len(names)), [_plain(name) for name in names])
    axes.invert_yaxis()
    _grow(axes, len(names) - _BARS_THAT_FIT)


def _grow(axes: Axes, num_lines: float) -> None:
    """Make a figure higher by so many lines."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    height = _HEIGHT_INCHES + _INCHES_PER_LINE * max(num_lines, 0)
    figure.set_size_inches(_WIDTH_INCHES, height)


def _title(results: BenchResults, what: str) -> str:
    return _plain(f"{results.target.name} on {results.machine.chip}: {what}")


def _plain(text: str) -> str:
    """Return a text in which a dollar sign begins no formula."""
    return text.replace("$", r"\$")


_PLOTS: dict[str, Callable[[Axes, BenchResults, tuple[Summary, ...]], bool]] = {
    "speedup": _draw_speedup,
    "tokens_per_second": _draw_tokens_per_second,
    "milliseconds_per_round": _draw_milliseconds,
    "acceptance_by_depth": _draw_acceptance,
}
