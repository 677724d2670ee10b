"""The planner: what it learns from a round."""

import numpy as np
import pytest

from redrafter_mlx.config import BeamShape
from redrafter_mlx.decoding.lookup import LookupIndex
from redrafter_mlx.decoding.pace import Pace, RoundCosts
from redrafter_mlx.decoding.planner import Planner
from redrafter_mlx.decoding.tree import DraftTree


def chain(*tokens: int) -> DraftTree:
    """Return a likely draft of one beam."""
    rows = np.arange(len(tokens), dtype=np.int32)
    return DraftTree.from_rows(
        np.array(tokens, np.int32), np.maximum(rows - 1, 0), -0.01 * rows.astype(np.float32)
    )


def test_a_shapes_budget_bounds_the_drafters_rows_and_not_a_lookups():
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 9
    shape = BeamShape(1, 5, max_rows=3)
    free = Pace(RoundCosts(verify=(1.0, 1.0), draft_step=0.0))
    planner = Planner(free, shape, lookup=LookupIndex(text), max_rows=64)
    planner.observe([1, 2] * 9 + text)  # lookups of that length have been right since
    tree = planner.tree(chain(8, 20, 21, 22, 23), max_depth=16)
    assert 22 not in tree.tokens
    assert int((~tree.is_looked_up).sum()) == 3
    assert int(tree.is_looked_up.sum()) > 3
    alone = Planner(free, shape, lookup=None, max_rows=64)
    assert alone.tree(chain(8, 20, 21, 22, 23), max_depth=16).num_rows == 3


@pytest.mark.parametrize("has_lookup", [True, False])
def test_a_drafter_is_parked_for_its_own_mistakes_and_not_for_what_a_lookup_won(has_lookup):
    pace = Pace(RoundCosts())
    planner = Planner(pace, BeamShape(1, 3), lookup=LookupIndex([1, 2]), max_rows=8)
    tree = DraftTree.from_rows(
        tokens=np.array([7, 8, 9], np.int32),
        parents=np.array([0, 0, 1], np.int32),
        log_probs=np.array([0.0, -0.5, -1.0], np.float32),
    )
    if has_lookup:
        tree = tree.with_chain([5, 6], np.array([-0.1, -0.2], np.float32))
    path = [0, 3, 4] if has_lookup else [0]
    for _ in range(40):
        planner.record(tree, path, seconds=None)
    assert pace.is_parked != has_lookup
