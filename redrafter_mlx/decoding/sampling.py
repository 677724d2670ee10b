"""The choice of a token from the target's logits: the only place that draws anything."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from redrafter_mlx.config import SamplingConfig

ROOT = np.zeros(1, np.int32)


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
    return mx.argmax(scores(logits, config, offset, depths), axis=-1).astype(mx.int32)


def scores(
    logits: mx.array, config: SamplingConfig, offset: int, depths: NDArray[np.int32] = ROOT
) -> mx.array:
    """Return what ``choose`` takes the greatest of, (rows, vocab_size) float32."""
    logits = logits.astype(mx.float32)
    if config.is_greedy:
        return logits
    levels = np.arange(offset, offset + int(depths.max()) + 1)
    noise = gumbel_noise(config.seed, levels, logits.shape[-1])
    if len(levels) > 1:
        noise = noise[mx.array(depths)]
    return filtered_log_probs(logits, config) * (1.0 / config.temperature) + noise


def gumbel_noise(seed: int, positions: NDArray[np.int64], vocab_size: int) -> mx.array:
    """Return the noise of each position, fixed by (seed, position).

    Returns:
        (positions, vocab_size) float32.

    Source:
        argmax(log p + Gumbel noise) is a draw from p: Maddison et al., arXiv:1411.0030,
        section 2.
    """
    keys = np.stack([np.full_like(positions, seed), positions], axis=1).astype(np.uint32)
    draw = mx.vmap(lambda key: mx.random.gumbel((vocab_size,), key=key))
    noise: mx.array = draw(mx.array(keys))
    return noise


def filtered_log_probs(logits: mx.array, config: SamplingConfig) -> mx.array:
    """Normalise, then drop tokens by top-p, min-p and top-k, in mlx-lm's order.

    Args:
        logits: (rows, vocab_size) float32.
        config: The filters run on the untempered distribution.

    Returns:
        (rows, vocab_size) float32, -inf where a token was dropped, not renormalised.

    Source:
        The order of mlx-lm's ``make_sampler``, so that settings mean one law in both.
    """
    log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    if 0.0 < config.top_p < 1.0:
        log_probs = _keep_from(log_probs, _top_p_threshold(log_probs, config.top_p))
    if config.min_p > 0.0:
        best = mx.max(log_probs, axis=-1, keepdims=True)
        log_probs = _keep_from(log_probs, best + math.log(config.min_p))
    if 0 < config.top_k < logits.shape[-1]:
        log_probs = _keep_top_k(log_probs, config.top_k)
    return log_probs


def _keep_from(log_probs: mx.array, threshold: mx.array) -> mx.array:
    return mx.where(log_probs < threshold, -mx.inf, log_probs)


def _top_p_threshold(log_probs: mx.array, top_p: float) -> mx.array:
    """Return (rows, 1), the least log-probability of the smallest set that reaches top_p."""
    ordered = mx.sort(log_probs, axis=-1)
    probs = mx.exp(ordered)
    mass_above = mx.cumsum(probs, axis=-1, reverse=True, inclusive=False)
    total_mass = mass_above[..., :1] + probs[..., :1]
    num_dropped = (mass_above >= top_p * total_mass).sum(axis=-1, keepdims=True)
    return mx.take_along_axis(ordered, num_dropped, axis=-1)


def _keep_top_k(log_probs: mx.array, top_k: int) -> mx.array:
    """Keep exactly ``top_k`` tokens a row; of equal ones the lowest ids."""
    kth = mx.topk(log_probs, top_k, axis=-1).min(axis=-1, keepdims=True)
    is_above = log_probs > kth
    is_tied = log_probs == kth
    num_free = top_k - is_above.sum(axis=-1, keepdims=True)
    is_kept = is_above | (is_tied & (mx.cumsum(is_tied.astype(mx.int32), axis=-1) <= num_free))
    return mx.where(is_kept, log_probs, -mx.inf)
