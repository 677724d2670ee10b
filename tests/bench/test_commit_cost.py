"""The cost of a commit, on caches that hold what they say."""

from __future__ import annotations

from dataclasses import replace

from redrafter_mlx.bench.commit_cost import CONFIG, PATH, TREE, filled_cache, time_commit
from redrafter_mlx.models.decoder import Decoder


def test_a_commit_is_timed_and_undone() -> None:
    """Law: the tree's path leaves the straight line, and the context stays as long as it was."""
    config = replace(CONFIG, num_layers=2)
    kv_cache = filled_cache(config, 40)
    assert kv_cache.offset == 40
    assert time_commit(Decoder(config, is_tied=True), kv_cache) > 0.0
    assert kv_cache.offset == 40
    assert list(range(len(PATH))) != PATH
    assert [int(TREE.parents[row]) for row in PATH] == [0, *PATH[:-1]]
