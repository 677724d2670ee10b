"""Plots are drawn without a display, and a line says where matplotlib is missing."""

import builtins
import importlib.util
import sys
from dataclasses import replace

import pytest

from redrafter_mlx.bench import plots
from redrafter_mlx.bench.plots import MISSING, draw_plots
from tests.bench.synthetic_results import DRAFTED, LONGER, synthetic_results

ALL = {
    "speedup.png",
    "tokens_per_second.png",
    "milliseconds_per_round.png",
    "acceptance_by_depth.png",
}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


def test_every_plot_is_drawn(tmp_path, monkeypatch, matplotlib):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("MPLBACKEND", "no-such-backend")
    drawn = draw_plots(synthetic_results(), tmp_path)
    assert {file.name for file in drawn.files} == ALL == {file.name for file in tmp_path.iterdir()}
    assert drawn.note is None
    for file in drawn.files:
        data = file.read_bytes()
        assert data.startswith(PNG)
        assert len(data) > 5_000
    assert "matplotlib.pyplot" not in sys.modules


def test_a_plot_shows_the_figures(matplotlib):
    _, axes = plots._figure()
    results = synthetic_results()
    assert plots._draw_speedup(axes, results, plots.summarize(results))
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["width 3"].get_xydata().tolist() == [pytest.approx([5.0, 1.6])]
    assert list(lines[DRAFTED.name].get_ydata()) == pytest.approx([2.0, 2.0])
    _, axes = plots._figure()
    assert plots._draw_milliseconds(axes, results, ())
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == pytest.approx([6.0, 32.0, 33.0, 35.0, 36.0])
    _, axes = plots._figure()
    many = tuple(plots.summarize(results)) * 8
    assert plots._draw_tokens_per_second(axes, results, many)
    assert axes.figure.get_size_inches()[1] > 10.0
    assert axes.get_yticklabels()[2].get_text() == DRAFTED.name
    assert axes.get_xlabel() == "tokens/s: median, least and most over the passes"
    _, axes = plots._figure()
    once = plots.summarize(replace(results, trials=results.trials[:8]))
    assert plots._draw_tokens_per_second(axes, results, once)
    assert axes.get_xlabel() == "tokens/s: one pass, so without a spread"
    assert not axes.collections  # no bar of an error


def test_a_shape_with_fewer_rows_has_a_line_of_its_own(matplotlib):
    """Else two speeds would stand at one length of one line."""
    results = synthetic_results()
    cut = replace(LONGER, name="(3,5) 6 rows fixed", max_rows=6)
    trials = [
        replace(one, configuration=cut.name)
        for one in results.trials
        if one.configuration == LONGER.name
    ]
    both = replace(
        results,
        configurations=(*results.configurations, cut),
        trials=(*results.trials, *trials),
    )
    _, axes = plots._figure()
    assert plots._draw_speedup(axes, both, plots.summarize(both))
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert len(lines["width 3"]) == len(lines["width 3, 6 rows"]) == 1


def test_what_has_no_figures_is_not_drawn(tmp_path, matplotlib):
    results = synthetic_results()
    plain = replace(
        results,
        phases=(),
        trials=tuple(one for one in results.trials if one.configuration == "plain"),
    )
    drawn = draw_plots(plain, tmp_path)
    assert [file.name for file in drawn.files] == ["tokens_per_second.png"]
    assert draw_plots(replace(plain, trials=()), tmp_path).files == ()


def test_a_dollar_sign_is_no_formula(tmp_path, matplotlib):
    results = synthetic_results()
    priced = replace(results, target=replace(results.target, name="$x^ {$ _y"))
    assert len(draw_plots(priced, tmp_path).files) == len(ALL)


def test_without_matplotlib_one_line_says_so(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    load = builtins.__import__

    def refuse(name, *rest, **more):
        assert not name.startswith("matplotlib")
        return load(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    drawn = draw_plots(synthetic_results(), tmp_path)
    assert drawn.files == ()
    assert drawn.note == MISSING
    assert "\n" not in MISSING
    assert list(tmp_path.iterdir()) == []
