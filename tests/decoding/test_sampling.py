"""The sampler: ties, filters in mlx-lm's order, and noise fixed by seed and position."""

import math

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import SamplingConfig
from redrafter_mlx.decoding.sampling import (
    NUM_CANDIDATES,
    choose,
    choose_quickly,
    filtered_logits,
    gumbel_noise,
    scores,
)
from redrafter_mlx.errors import ConfigError

LOGITS = mx.random.normal((5, 200), key=mx.random.key(4)) * 3.0
DEPTHS = np.array([0, 1, 1, 2, 3], np.int32)


def test_ties_go_to_the_lowest_id():
    logits = mx.zeros((2, 1000)).at[:, mx.array([700, 300])].add(1.0)
    assert choose(logits, SamplingConfig(), 0).tolist() == [300, 300]


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 9e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    config = SamplingConfig(temperature=temperature)
    assert mx.array_equal(choose(LOGITS, config, 0), mx.argmax(LOGITS, axis=-1))


def test_a_temperature_just_above_is_nearly_greedy_and_finite():
    config = SamplingConfig(temperature=2e-5)
    assert mx.array_equal(choose(LOGITS, config, 0), mx.argmax(LOGITS, axis=-1))


def test_rows_of_one_depth_share_their_noise_and_a_row_alone_gets_the_same():
    """Law: a token depends on (seed, position, logits), not on the tree around it."""
    config = SamplingConfig(temperature=1.3, top_p=0.9, seed=7)
    chosen = choose(LOGITS, config, 40, DEPTHS)
    for row, depth in enumerate(DEPTHS.tolist()):
        alone = choose(LOGITS[row : row + 1], config, 40 + depth)
        assert alone.item() == chosen[row].item()


def test_noise_differs_by_seed_and_position():
    positions = np.arange(3)
    first, second = gumbel_noise(1, positions, 50), gumbel_noise(2, positions, 50)
    rows = [*first.tolist(), *second.tolist()]
    assert len({tuple(row) for row in rows}) == 6
    assert mx.array_equal(first, gumbel_noise(1, positions, 50))


SETTINGS = [
    {"top_p": 0.9},
    {"top_p": 0.3},
    {"min_p": 0.1},
    {"top_k": 7},
    {"top_k": 1},
    {"top_p": 0.8, "min_p": 0.05, "top_k": 10},
    {"top_p": 0.5, "min_p": 0.2, "top_k": 3, "temperature": 2.0},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_filters_keep_what_mlx_lm_keeps(settings):
    from mlx_lm import sample_utils

    config = SamplingConfig(**{"temperature": 1.0, **settings})
    theirs = LOGITS - mx.logsumexp(LOGITS, axis=-1, keepdims=True)
    if config.top_p < 1.0:
        theirs = sample_utils.apply_top_p(theirs, config.top_p)
    if config.min_p > 0.0:
        theirs = sample_utils.apply_min_p(theirs, config.min_p)
    if config.top_k > 0:
        theirs = sample_utils.apply_top_k(theirs, config.top_k)
    ours = filtered_logits(LOGITS, config)
    assert mx.array_equal(mx.isinf(ours), mx.isinf(theirs))
    assert mx.array_equal(mx.where(mx.isinf(ours), LOGITS, ours), LOGITS)


def test_top_k_of_equal_logits_keeps_the_lowest_ids():
    kept = filtered_logits(mx.zeros((1, 10)), SamplingConfig(temperature=1.0, top_k=3))
    assert np.flatnonzero(np.isfinite(np.array(kept[0]))).tolist() == [0, 1, 2]


def test_half_precision_logits_are_taken_in_float32():
    logits = (LOGITS * 4).astype(mx.bfloat16)
    config = SamplingConfig(temperature=0.7)
    noise = gumbel_noise(config.seed, np.arange(1), logits.shape[-1])
    ours = np.array(scores(logits, config, 0, np.zeros(5, np.int32)) - noise)
    exact = np.array(logits.astype(mx.float32)).astype(np.float64)
    exact = (exact - exact.max(axis=-1, keepdims=True)) / 0.7
    assert np.abs(ours - exact).max() < 1e-4
    greedy = SamplingConfig(temperature=1.0, top_k=1)
    assert mx.array_equal(choose(logits, greedy, 0), mx.argmax(logits, axis=-1))


WIDE = mx.random.normal((7, 3 * NUM_CANDIDATES), key=mx.random.key(3)) * 4.0
WIDE_DEPTHS = np.array([0, 1, 1, 2, 2, 3, 3], np.int32)


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.95}, {"top_p": 0.9, "top_k": 50}])
@pytest.mark.parametrize("seed", range(5))
def test_the_quick_choice_is_the_exact_one(settings, seed):
    """Law: ranking only the likeliest tokens changes no choice that says it is exact."""
    config = SamplingConfig(**{"temperature": 1.1, "seed": seed, **settings})
    choice = choose_quickly(WIDE, config, 11, WIDE_DEPTHS)
    assert choice.is_exact is None or choice.is_exact.all().item()
    assert mx.array_equal(choice.tokens, choose(WIDE, config, 11, WIDE_DEPTHS))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("top_p", [0.1, 0.3])
def test_the_quick_choice_tells_of_ties_at_the_end_of_the_nucleus(top_p, seed):
    """Law: tokens as likely as the nucleus's least are in it, ranked or not."""
    logits = mx.where(mx.arange(3 * NUM_CANDIDATES) < 10, 5.0, 0.0)[None]
    config = SamplingConfig(temperature=1.0, top_p=top_p, seed=seed)
    choice = choose_quickly(logits, config, 0, np.zeros(1, np.int32))
    assert choice.is_exact.tolist() == [top_p < 0.2]
    if top_p < 0.2:
        assert mx.array_equal(choice.tokens, choose(logits, config, 0))


@pytest.mark.parametrize("row", range(7))
def test_the_quick_choice_tells_of_a_nucleus_that_is_too_wide(row):
    flat = mx.where(mx.arange(7)[:, None] == row, 0.001 * WIDE, WIDE)
    config = SamplingConfig(temperature=1.0, top_p=0.95)
    is_exact = choose_quickly(flat, config, 0, WIDE_DEPTHS).is_exact
    assert is_exact.tolist() == [other != row for other in range(7)]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_p": 1.1},
        {"min_p": -1.0},
        {"top_k": -1},
        {"seed": -1},
        {"seed": 2**32},
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_value(settings):
    (name, value), *_ = settings.items()
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        SamplingConfig(**settings)
