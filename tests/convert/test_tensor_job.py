"""One tensor on its way: runs of rows, the largest magnitude, and what no dtype may lose."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert import tensor_job
from redrafter_mlx.convert.tensor_job import (
    SourceTensor,
    bits_of,
    copy_job,
    float_job,
    have_equal_rows,
    number_type,
    row_runs,
)
from redrafter_mlx.errors import CheckpointError
from tests.convert.run_jobs import run_job

FLOATS = (mx.float16, mx.bfloat16, mx.float32)


def source(array: mx.array, step: int = 2) -> SourceTensor:
    """Return a tensor that gives ``step`` rows at a time."""
    bits = bits_of(array).view(number_type(array.dtype))

    def runs() -> Iterator[Any]:
        for begin in range(0, len(bits), step):
            yield bits[begin : begin + step]

    return SourceTensor("w", array.dtype, array.shape, runs)


def random_rows(dtype: mx.Dtype, shape: tuple[int, ...] = (5, 64), seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


@pytest.mark.parametrize(("num_rows", "row_bytes"), [(0, 8), (1, 8), (7, 10), (7, 10_000), (9, 0)])
def test_runs_cover_every_row_once(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, row_bytes: int
) -> None:
    monkeypatch.setattr(tensor_job, "RUN_BYTES", 25)
    runs = list(row_runs(num_rows, row_bytes))
    assert [row for run in runs for row in range(run.start, run.stop)] == list(range(num_rows))
    assert all((run.stop - run.start) * row_bytes <= max(25, row_bytes) for run in runs)


@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("wanted", FLOATS)
@pytest.mark.parametrize("stored", FLOATS)
def test_runs_change_no_bit_of_a_cast_or_a_quantisation(
    stored: mx.Dtype, wanted: mx.Dtype, step: int
) -> None:
    array = random_rows(stored)
    cast = run_job(float_job(source(array, step), "a.weight", wanted))
    assert cast.keys() == {"a.weight"}
    assert mx.array_equal(cast["a.weight"], array.astype(wanted))
    packed = run_job(float_job(source(array, step), "a.weight", wanted, Quantization(4, 32)))
    whole = mx.quantize(array.astype(wanted), 32, 4)
    names = ("a.weight", "a.scales", "a.biases")
    assert packed.keys() == set(names)
    for name, part in zip(names, whole, strict=True):
        assert packed[name].dtype == part.dtype and mx.array_equal(packed[name], part)


@pytest.mark.parametrize("dtype", [mx.uint32, mx.uint8, *FLOATS])
def test_a_copy_keeps_every_bit(dtype: mx.Dtype) -> None:
    array = mx.random.randint(0, 255, (5, 8)).astype(dtype)
    copied = run_job(copy_job(source(array), "a"))["a"]
    assert copied.dtype == dtype and mx.array_equal(copied, array)


@pytest.mark.parametrize(
    ("dtype", "value", "wanted", "message"),
    [
        (mx.float32, 65505.0, mx.float16, "holds 65505, too large for float16; convert with"),
        (mx.float32, -1e30, mx.float16, "holds 1e+30, too large for float16"),
        (mx.bfloat16, 65536.0, mx.float16, "holds 65536, too large for float16"),
        (mx.float32, 3.4e38, mx.bfloat16, "too large for bfloat16; convert with --dtype float32"),
        (mx.float32, np.nan, mx.float32, "holds NaN or infinity"),
        (mx.bfloat16, -np.inf, mx.float16, "holds NaN or infinity"),
        (mx.float16, np.nan, mx.float16, "holds NaN or infinity"),
    ],
)
@pytest.mark.parametrize("row", [0, 4])
def test_what_a_dtype_cannot_hold_is_refused(
    dtype: mx.Dtype, value: float, wanted: mx.Dtype, message: str, row: int
) -> None:
    array = random_rows(dtype)
    array[row, 3] = value
    with pytest.raises(CheckpointError, match="'w' holds") as refused:
        run_job(float_job(source(array), "a", wanted))
    assert message in str(refused.value)


def test_a_nan_behind_an_overflow_is_told_first() -> None:
    array = random_rows(mx.float32)
    array[0, 0], array[4, 0] = 1e6, np.nan
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        run_job(float_job(source(array), "a", mx.float16))


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_finite_number_and_the_least_pass(dtype: mx.Dtype) -> None:
    info = mx.finfo(dtype)
    array = mx.array([[info.max, info.min, -0.0, 1e-7]]).astype(dtype)
    assert mx.array_equal(run_job(float_job(source(array), "a", dtype))["a"], array)


def test_rows_that_do_not_lie_together_are_put_together() -> None:
    array = random_rows(mx.float32, (6, 4))
    transposed = bits_of(array).view(np.float32).T
    tensor = SourceTensor("w", mx.float32, (4, 6), lambda: iter([transposed[:3], transposed[3:]]))
    assert mx.array_equal(run_job(float_job(tensor, "a", mx.float32))["a"], array.T)
    assert mx.array_equal(run_job(copy_job(tensor, "a"))["a"], array.T)


def test_equal_rows_are_told_from_others() -> None:
    one, other = random_rows(mx.float16), random_rows(mx.float16)
    assert have_equal_rows(source(one), source(other))
    other[4, 63] += 1
    assert not have_equal_rows(source(one), source(other))
    assert not have_equal_rows(source(one), source(one.astype(mx.float32)))
    assert not have_equal_rows(source(one), source(one[:4]))
