"""The curves of a run, where matplotlib is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from redrafter_mlx.training.plots import plot_curves

LINES = [
    {"step": step, "loss": 3.0 / step}
    | ({"held_out": {"loss": 1.0, "accuracy_by_depth": [0.5, 0.3], "tokens_per_round": 1.6}}
       if step % 2 == 0 else {})
    for step in range(1, 7)
]  # fmt: skip


def test_without_matplotlib_nothing_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plot_curves(LINES, tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_curves_leave_the_users_backend_as_it_is(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    former = matplotlib.get_backend()
    matplotlib.use("svg")
    try:
        plot_curves(LINES, tmp_path / "curves.png")
        assert matplotlib.get_backend() == "svg"
    finally:
        matplotlib.use(former)


@pytest.mark.parametrize("lines", [LINES, LINES[:1], []])
def test_curves_are_a_png(tmp_path: Path, lines) -> None:
    pytest.importorskip("matplotlib")
    assert plot_curves(lines, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
