"""Reading a prompt into the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.kv_cache import KVCache

GPU_PREFILL_STEP = 512
# Each chunk is what Ctrl-C waits for, and smaller ones cost a CPU nothing.
CPU_PREFILL_STEP = 128

# Called between the chunks of a prompt with the tokens that are read and their number in
# all, those that the cache held left out; where it returns False, reading ends there.
OnPrefill = Callable[[int, int], object]


def prefill_step() -> int:
    """Return how many tokens of a prompt are run at once."""
    return GPU_PREFILL_STEP if mx.default_device().type == mx.gpu else CPU_PREFILL_STEP


def prefill(
    target: Decoder, kv_cache: KVCache, prompt: Sequence[int], on_prefill: OnPrefill | None = None
) -> mx.array | None:
    """Run the prompt in chunks, so that no command is very long.

    Returns:
        The last hidden state, (1, hidden_size); ``None`` where ``on_prefill`` ended it.
    """
    tokens = mx.array(np.asarray(prompt, np.int32))
    step = prefill_step()
    for start in range(0, len(prompt), step):
        if start > 0:
            mx.eval(kv_cache.arrays)
            mx.clear_cache()  # the next chunk needs larger buffers
            if on_prefill is not None and on_prefill(start, len(prompt)) is False:
                return None
        chunk = tokens[start : start + step]
        hidden = target(chunk, kv_cache)
        kv_cache.commit(range(chunk.shape[0]))
    return hidden[-1:]
