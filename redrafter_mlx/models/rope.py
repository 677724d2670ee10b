"""Rotary position embedding for rows in sequence and for rows at positions of their own."""

from __future__ import annotations

import math

import mlx.core as mx

from redrafter_mlx.models.target_config import RopeConfig


class Rope:
    """Rotates queries and keys; plain, linear and llama3 scaling."""

    def __init__(self, head_dim: int, config: RopeConfig) -> None:
        """Prepare the frequencies for heads of ``head_dim``."""
        self._dims = head_dim
        self._is_traditional = config.is_traditional
        self._scale = 1.0 / config.factor if config.kind == "linear" else 1.0
        is_llama3 = config.kind == "llama3"
        self._freqs = llama3_freqs(head_dim, config) if is_llama3 else None
        self._base = None if is_llama3 else config.theta

    def __call__(self, x: mx.array, offset: int | mx.array) -> mx.array:
        """Rotate (batch, heads, rows, head_dim).

        Args:
            x: Queries or keys.
            offset: Position of the first row; or (batch,) int32, one for each.
        """
        return mx.fast.rope(
            x,
            self._dims,
            traditional=self._is_traditional,
            base=self._base,
            scale=self._scale,
            offset=offset,
            freqs=self._freqs,
        )


def llama3_freqs(head_dim: int, config: RopeConfig) -> mx.array:
    """Return the wavelengths / 2 pi with Llama 3's scaling, (head_dim / 2,) float32.

    Low frequencies are stretched by ``factor``, high ones kept, those between blended.

    Source:
        Llama 3.1's reference code, ``apply_scaling``.
    """
    freqs = config.theta ** (mx.arange(0, head_dim, 2) / head_dim)
    turns = config.original_max_positions / (2 * math.pi * freqs)
    low, high = config.low_freq_factor, config.high_freq_factor
    blend = (turns - low) / (high - low)
    blended = freqs / ((1 - blend) / config.factor + blend)
    freqs = mx.where(turns < low, freqs * config.factor, mx.where(turns > high, freqs, blended))
    mx.eval(freqs)
    return freqs
