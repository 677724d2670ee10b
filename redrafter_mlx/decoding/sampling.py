"""The choice of a token from the target's logits: the only place that draws anything."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from redrafter_mlx.config import SamplingConfig

ROOT = np.zeros(1, np.int32)
NUM_CANDIDATES = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The tokens chosen at the rows of a pass.

    Attributes:
        tokens: (rows,) int32.
        is_exact: (rows,) bool, false where a row's nucleus has more tokens than were ranked,
            so that ``choose`` must decide there; ``None`` where that cannot be.
    """

    tokens: mx.array
    is_exact: mx.array | None = None


def choose(
    logits: mx.array, config: SamplingConfig, offset: int, depths: NDArray[np.int32] = ROOT
) -> mx.array:
    """Choose a token at every row from the target's logits alone.

    Args:
        logits: (rows, vocab_size), any floating dtype; taken in float32.
        config: Greedy, or temperature and filters.
        offset: Absolute position of the root.
        depths: (rows,) int32; row i stands at position ``offset + depths[i]``.

    Returns:
        (rows,) int32. Ties go to the lowest id.
    """
    return _best(scores(logits, config, offset, depths))


def choose_quickly(
    logits: mx.array, config: SamplingConfig, offset: int, depths: NDArray[np.int32]
) -> Choice:
    """Choose as ``choose`` does, but rank only each row's likeliest tokens for top-p.

    Sorting the whole vocabulary at every row would cost more than all else that sampling
    does; a nucleus seldom needs more than ``NUM_CANDIDATES`` tokens.
    """
    if config.is_greedy or not _has_top_p(config) or logits.shape[-1] <= NUM_CANDIDATES:
        return Choice(choose(logits, config, offset, depths))
    logits = logits.astype(mx.float32)
    likeliest = mx.argpartition(logits, -NUM_CANDIDATES, axis=-1)[..., -NUM_CANDIDATES:]
    ids = mx.sort(likeliest, axis=-1)  # for ties go to the lowest
    candidates = mx.take_along_axis(logits, ids, axis=-1)
    nucleus = _nucleus(_descending(candidates), logits, config.top_p)
    kept = _filtered(_keep_from(candidates, nucleus.threshold), config)
    uniform = _uniform(config.seed, offset + np.arange(depths.max() + 1), logits.shape[-1])
    noise = _gumbel(uniform[mx.array(depths)[:, None], ids])
    best = mx.argmax(_tempered(kept, config) + noise, axis=-1, keepdims=True)
    tokens = mx.take_along_axis(ids, best, axis=-1)[:, 0].astype(mx.int32)
    return Choice(tokens, nucleus.is_whole[:, 0])


def scores(
    logits: mx.array, config: SamplingConfig, offset: int, depths: NDArray[np.int32] = ROOT
) -> mx.array:
    """Return what ``choose`` takes the greatest of, (rows, vocab_size) float32."""
    logits = logits.astype(mx.float32)
    if config.is_greedy:
        return logits
    return _noisy(filtered_logits(logits, config), config, offset, depths)


def gumbel_noise(seed: int, positions: NDArray[np.int64], vocab_size: int) -> mx.array:
    """Return the noise of each position, fixed by (seed, position).

    Returns:
        (positions, vocab_size) float32.

    Source:
        argmax(log p + Gumbel noise) is a draw from p: Maddison et al., arXiv:1411.0030,
        section 2. A constant added to a row's log p changes nothing.
    """
    return _gumbel(_uniform(seed, positions, vocab_size))


def _uniform(seed: int, positions: NDArray[np.int64], vocab_size: int) -> mx.array:
    keys = np.stack([np.full_like(positions, seed), positions], axis=1).astype(np.uint32)
    draw = mx.vmap(lambda key: mx.random.uniform(shape=(vocab_size,), key=key))
    numbers: mx.array = draw(mx.array(keys))
    return numbers


def _gumbel(uniform: mx.array) -> mx.array:
    return -mx.log(-mx.log(uniform))


def filtered_logits(logits: mx.array, config: SamplingConfig) -> mx.array:
    """Drop tokens by top-p, min-p and top-k, in mlx-lm's order.

    Args:
        logits: (rows, vocab_size) float32.
        config: The filters run on the untempered distribution.

    Returns:
        (rows, vocab_size) float32, -inf where a token was dropped.

    Source:
        The order of mlx-lm's ``make_sampler``, so that settings mean one law in both.
    """
    if _has_top_p(config):
        nucleus = _nucleus(_descending(logits), logits, config.top_p)
        logits = _keep_from(logits, nucleus.threshold)
    return _filtered(logits, config)


def _has_top_p(config: SamplingConfig) -> bool:
    return 0.0 < config.top_p < 1.0


def _best(table: mx.array) -> mx.array:
    return mx.argmax(table, axis=-1).astype(mx.int32)


def _descending(logits: mx.array) -> mx.array:
    return -mx.sort(-logits, axis=-1)


def _noisy(
    logits: mx.array, config: SamplingConfig, offset: int, depths: NDArray[np.int32]
) -> mx.array:
    """Temper the logits and add each position's noise."""
    levels = np.arange(offset, offset + int(depths.max()) + 1)
    noise = gumbel_noise(config.seed, levels, logits.shape[-1])
    if len(levels) > 1:
        noise = noise[mx.array(depths)]
    return _tempered(logits, config) + noise


def _tempered(logits: mx.array, config: SamplingConfig) -> mx.array:
    """Count the logits from the row's greatest, which is kept, and divide by the temperature."""
    return (logits - mx.max(logits, axis=-1, keepdims=True)) * (1.0 / config.temperature)


def _filtered(logits: mx.array, config: SamplingConfig) -> mx.array:
    """Apply the filters that need no order of the whole row."""
    if config.min_p > 0.0:
        best = mx.max(logits, axis=-1, keepdims=True)
        logits = _keep_from(logits, best + math.log(config.min_p))
    if 0 < config.top_k < logits.shape[-1]:
        logits = _keep_top_k(logits, config.top_k)
    return logits


def _keep_from(logits: mx.array, threshold: mx.array) -> mx.array:
    return mx.where(logits < threshold, -mx.inf, logits)


@dataclass(frozen=True, slots=True, eq=False)
class _Nucleus:
    """The smallest set of a row whose probability reaches top_p.

    Attributes:
        threshold: (rows, 1), its least logit.
        is_whole: (rows, 1) bool, whether it ends above the least of the logits that were
            ranked, so that none of its tokens, nor any equally likely, is missing there.
    """

    threshold: mx.array
    is_whole: mx.array


def _nucleus(ranked: mx.array, logits: mx.array, top_p: float) -> _Nucleus:
    """Find the nucleus of each row.

    Args:
        ranked: (rows, candidates), the greatest logits of a row, descending.
        logits: (rows, vocab_size).
        top_p: The probability to reach.
    """
    greatest = ranked[..., :1]
    # MLX's CPU back end takes thrice as long for exp as for a power of 2.
    mass = mx.power(2.0, (logits - greatest) * math.log2(math.e)).sum(axis=-1, keepdims=True)
    probs = mx.exp(ranked - greatest) / mass
    mass_above = mx.cumsum(probs, axis=-1, inclusive=False)
    num_kept = (mass_above < top_p).sum(axis=-1, keepdims=True)
    threshold = mx.take_along_axis(ranked, num_kept - 1, axis=-1)
    return _Nucleus(threshold, threshold > ranked[..., -1:])


def _keep_top_k(logits: mx.array, top_k: int) -> mx.array:
    """Keep exactly ``top_k`` tokens a row; of equal ones the lowest ids."""
    kth = mx.topk(logits, top_k, axis=-1).min(axis=-1, keepdims=True)
    is_above = logits > kth
    is_tied = logits == kth
    num_free = top_k - is_above.sum(axis=-1, keepdims=True)
    is_kept = is_above | (is_tied & (mx.cumsum(is_tied.astype(mx.int32), axis=-1) <= num_free))
    return mx.where(is_kept, logits, -mx.inf)
