"""What a commit costs at a short and at a long context, timed in turns in one run.

Run it as ``python -m redrafter_mlx.bench.commit_cost``.
"""

from __future__ import annotations

import statistics
import sys
import time

import mlx.core as mx
import numpy as np

from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.models.target_config import RopeConfig, TargetConfig

CONTEXTS = (1_000, 16_000)
TRIALS = 40
# SmolLM2-135M's layers, heads and hidden size; what a commit does not touch is small.
CONFIG = TargetConfig(
    model_type="llama",
    hidden_size=576,
    intermediate_size=64,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=1_000,
    max_positions=20_000,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
)
# Seven rows; the path leaves the straight line at its second row.
TREE = DraftTree.from_rows(
    np.arange(7, dtype=np.int32),
    np.array([0, 0, 0, 1, 2, 3, 4], np.int32),
    np.zeros(7, np.float32),
)
PATH = [0, 2, 4, 6]


def filled_cache(config: TargetConfig, num_positions: int) -> KVCache:
    """Return a cache that holds random keys and values."""
    kv_cache = KVCache()
    kv_cache.start_pass(num_positions, keeps_rows=False)
    shape = (1, config.num_kv_heads, num_positions, config.head_dim)
    for layer in range(config.num_layers):
        kv_cache.extend(layer, mx.random.normal(shape), mx.random.normal(shape))
    kv_cache.commit(range(num_positions))
    mx.eval(kv_cache.arrays)
    return kv_cache


def time_commit(target: Decoder, kv_cache: KVCache) -> float:
    """Verify the tree, then return the seconds that its commit alone takes."""
    offset = kv_cache.offset
    mx.eval(target(mx.array(TREE.tokens), kv_cache, TREE), kv_cache.arrays)
    start = time.perf_counter()
    kv_cache.commit(PATH)
    mx.eval(kv_cache.arrays)
    seconds = time.perf_counter() - start
    kv_cache.rewind(offset)
    return seconds


def main() -> None:
    """Print the median milliseconds at each context."""
    target = Decoder(CONFIG, is_tied=True)
    mx.eval(target.parameters())
    caches = {context: filled_cache(CONFIG, context) for context in CONTEXTS}
    seconds: dict[int, list[float]] = {context: [] for context in CONTEXTS}
    for _ in range(TRIALS):
        for context, kv_cache in caches.items():
            seconds[context].append(time_commit(target, kv_cache))
    for context, times in seconds.items():
        median = statistics.median(times[3:]) * 1e3
        sys.stdout.write(f"commit at {context} tokens of context: {median:.2f} ms (median)\n")


if __name__ == "__main__":
    main()
