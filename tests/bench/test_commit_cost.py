"""The cost of a commit, on caches that hold what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redrafter_mlx.bench import commit_cost
from redrafter_mlx.bench.commit_cost import PATH, TREE, filled_cache, time_commit
from redrafter_mlx.models.decoder import Decoder


def test_a_commit_is_timed_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the tree's path leaves the straight line, and the context stays as long as it was."""
    monkeypatch.setattr(commit_cost, "CONFIG", replace(commit_cost.CONFIG, num_layers=2))
    kv_cache = filled_cache(40)
    assert kv_cache.offset == 40
    assert time_commit(Decoder(commit_cost.CONFIG, is_tied=True), kv_cache) > 0.0
    assert kv_cache.offset == 40
    assert list(range(len(PATH))) != PATH
    assert [int(TREE.parents[row]) for row in PATH] == [0, *PATH[:-1]]
