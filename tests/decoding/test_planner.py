"""The planner: what it learns from a round."""

import numpy as np
import pytest

from redrafter_mlx.config import BeamShape
from redrafter_mlx.decoding.lookup import LookupIndex
from redrafter_mlx.decoding.pace import Pace, RoundCosts
from redrafter_mlx.decoding.planner import Planner
from redrafter_mlx.decoding.tree import DraftTree


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
