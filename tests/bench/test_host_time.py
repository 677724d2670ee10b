"""The host's time: both sides decode the same text of the same small model."""

from __future__ import annotations

import mlx.core as mx

from redrafter_mlx.bench.host_time import (
    PROMPT,
    PythonTime,
    mlx_lm_model,
    mlx_lm_tokens,
    our_rounds,
    small_drafter,
    small_target,
)
from redrafter_mlx.config import BeamShape, GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from tests.toy import toy_model


def test_both_sides_run_the_same_model() -> None:
    target = small_target()
    model = toy_model(target, small_drafter(target))
    config = GenerationConfig(max_tokens=4, beam=BeamShape(2, 4), is_adaptive=False)
    ours = list(decode(model, target.make_kv_cache(), PROMPT, config, DecodeStats()))
    assert ours == list(mlx_lm_tokens(mlx_lm_model(target), 4))
    assert our_rounds(model, BeamShape(2, 4), 4) > 0.0


def test_python_is_timed_once_a_pass_and_leaves_mlx_as_it_was() -> None:
    target = small_target()
    before = mx.async_eval
    watched = PythonTime()
    with watched.watching():
        our_rounds(toy_model(target, small_drafter(target)), BeamShape(2, 4), 8)
    # Eight tokens take two rounds of four at best, and eight passes with prefill's at worst.
    assert 1 <= len(watched.gaps) <= 8
    assert min(watched.gaps) > 0.0
    assert mx.async_eval is before
    num_gaps = len(watched.gaps)
    our_rounds(toy_model(target), BeamShape(1, 1), 4)
    assert len(watched.gaps) == num_gaps
