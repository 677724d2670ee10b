"""What counts as a constant times the target's head."""

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.tied_head import dequantize_stepwise, find_head_scale
from tests.convert.tiny_drafter import H, V


@pytest.mark.parametrize("entry", [0.5, 0.99, 1.0, 1.5, 1.99, 2.0**-20])
@pytest.mark.parametrize("ulps", [1, 2, -2])
def test_two_units_in_the_last_place_of_one_entry_break_a_tie(entry: float, ulps: int) -> None:
    """One unit is rounding, two are not, wherever the entry lies between powers of two."""
    target_head = mx.random.normal((V, H), key=mx.random.key(1)).astype(mx.float16)
    target_head[7, 5] = entry
    head = np.array(target_head)
    head[7, 5] += ulps * np.spacing(head[7, 5], dtype=np.float16)
    scale = find_head_scale(mx.array(head), target_head.astype(mx.float32))
    assert (scale is not None) == (abs(ulps) == 1)


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_a_head_without_a_constant_is_not_tied(factor: float) -> None:
    head = mx.random.normal((V, H), key=mx.random.key(1))
    assert find_head_scale(head, factor * head) is None
    assert find_head_scale(factor * head, head) is None


def test_a_tie_is_found_over_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrafter_mlx.convert.tied_head._BLOCK_ENTRIES", 3 * H)
    head = mx.random.normal((V, H), key=mx.random.key(1))
    assert find_head_scale((-0.3 * head).astype(mx.float16), head) == pytest.approx(-0.3, rel=1e-3)
    assert find_head_scale(mx.concatenate([head[:-1], -head[-1:]]), head) is None


def test_a_quantised_targets_head_is_rounded_step_by_step() -> None:
    """Product and sum are rounded apart, whatever the backend's own kernel does."""
    quantization = Quantization(8, 32)
    packed = mx.quantize(mx.random.normal((V, H)).astype(mx.float16), 32, 8)
    levels = np.array(packed[0]).view(np.uint8).reshape(V, H).astype(np.float16)
    scales, biases = (np.repeat(np.array(part), 32, axis=1) for part in packed[1:])
    expected = (levels * scales + biases).astype(np.float32)
    assert np.array_equal(np.array(dequantize_stepwise(*packed, quantization)), expected)


def test_zero_is_no_rounding_of_a_normal_number() -> None:
    target_head = mx.random.normal((V, H), key=mx.random.key(1))
    target_head[7, 5] = 2.0**-13
    head = target_head.astype(mx.float16)
    assert find_head_scale(head, target_head) is not None
    head[7, 5] = 0.0
    assert find_head_scale(head, target_head) is None
