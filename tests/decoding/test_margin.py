"""The margin of a choice, against logits that are known."""

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import SamplingConfig
from redrafter_mlx.decoding.margin import choice_margin
from redrafter_mlx.decoding.sampling import scores
from tests.toy import toy_target

PREFIX = [7, 3, 9, 1]


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(), SamplingConfig(temperature=0.8, seed=4)], ids=["greedy", "T0.8"]
)
def test_it_is_the_gap_between_the_two_best_scores(sampling: SamplingConfig) -> None:
    target = toy_target()
    logits = target.logits(target(mx.array(PREFIX), target.make_kv_cache()))[-1:]
    row = np.array(scores(logits, sampling, len(PREFIX) - 1))[0]
    best = int(row.argmax())
    gap = row[best] - np.delete(row, best).max()
    assert choice_margin(target, PREFIX, sampling) == pytest.approx(float(gap), abs=1e-5)


def test_there_is_none_where_the_filters_leave_one_token() -> None:
    sampling = SamplingConfig(temperature=1.0, top_k=1)
    assert choice_margin(toy_target(), PREFIX, sampling) is None
