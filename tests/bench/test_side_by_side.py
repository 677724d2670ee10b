"""Speed beside mlx-lm's: fair turns, and the ratio prompt by prompt."""

from __future__ import annotations

import argparse

from redrafter_mlx.bench.peer import Timing
from redrafter_mlx.bench.side_by_side import configurations, rotated, summarize
from redrafter_mlx.config import PLAIN_BEAM_SHAPE

OPTIONS = argparse.Namespace(widths=[1, 2], lengths=[2])


def test_what_is_compared_differs_in_the_draft_alone() -> None:
    runs = configurations(OPTIONS, max_tokens=9)
    assert list(runs) == ["mlx-lm", "plain", "default", "1,2", "2,2"]
    assert runs["mlx-lm"] is None
    ours = [config for config in runs.values() if config]
    assert {(config.max_tokens, config.ignore_eos) for config in ours} == {(9, True)}
    assert ours[0].beam == PLAIN_BEAM_SHAPE


def test_each_side_is_first_in_turn() -> None:
    runs = configurations(OPTIONS, max_tokens=9)
    orders = [list(rotated(runs, number)) for number in range(10)]
    assert {order[0] for order in orders} == set(runs)
    assert all(set(order) == set(runs) for order in orders)


def test_ratios_are_taken_prompt_by_prompt() -> None:
    def timing(tokens: tuple[int, ...], seconds: float) -> Timing:
        return Timing(tokens, 0.1, seconds)

    rows = [
        {"mlx-lm": timing((1, 2, 3), 2.0), "plain": timing((1, 2, 3), 1.0)},
        {"mlx-lm": timing((1, 2, 3), 4.0), "plain": timing((1, 2, 3), 1.0)},
        {"mlx-lm": timing((1, 2, 4), 2.0), "plain": timing((1, 2, 3), 2.0)},
    ]
    theirs, plain = summarize(rows)
    assert "0.75 tokens/s, over mlx-lm 1.000" in theirs
    assert theirs.endswith("text equal 2/3")
    assert "1.50 tokens/s, over mlx-lm 2.000 (median; 1.000 to 4.000); text equal 3/3" in plain
