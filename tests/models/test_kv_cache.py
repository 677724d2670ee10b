"""Laws of the cache: what is committed is there, and nothing is copied for it."""

import contextlib

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.models.kv_cache import KVCache

HEADS, DIM, LAYERS = 2, 4, 3


def rows(start: int, count: int) -> mx.array:
    """Return (1, heads, count, dim) in which every row is recognisable."""
    numbers = mx.arange(start, start + count, dtype=mx.float32)[None, None, :, None]
    return mx.broadcast_to(numbers, (1, HEADS, count, DIM)) + mx.zeros((1, HEADS, count, DIM))


def run_pass(kv_cache: KVCache, start: int, count: int, keeps_rows: bool = False) -> list[float]:
    kv_cache.start_pass(count, keeps_rows=keeps_rows)
    for layer in range(LAYERS):
        keys, values = kv_cache.extend(layer, rows(start, count), -rows(start, count))
        assert mx.array_equal(keys, -values)
    return np.array(keys[0, 0, :, 0]).tolist()


def held(kv_cache: KVCache) -> list[float]:
    """Return what the next pass would see of the committed positions, in every layer alike."""
    seen = run_pass(kv_cache, -1, 1)
    for keys, values in zip(kv_cache.arrays[::2], kv_cache.arrays[1::2], strict=True):
        assert keys[0, 1, : len(seen), 2].tolist() == seen
        assert values[0, 1, : len(seen), 2].tolist() == [-number for number in seen]
    return seen[:-1]


def test_a_pass_sees_the_committed_rows_and_its_own():
    kv_cache = KVCache()
    assert run_pass(kv_cache, 10, 3) == [10, 11, 12]
    kv_cache.commit(range(3))
    assert run_pass(kv_cache, 20, 2) == [10, 11, 12, 20, 21]
    assert kv_cache.offset == 3


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 2], [0, 3, 4], [0, 1, 4], [0, 2, 3, 5]])
def test_commit_keeps_the_rows_of_the_path(path):
    kv_cache = KVCache()
    run_pass(kv_cache, 0, 5)
    kv_cache.commit(range(5))
    run_pass(kv_cache, 100, 6, keeps_rows=True)
    kv_cache.commit(path)
    assert kv_cache.offset == 5 + len(path)
    assert held(kv_cache) == [0, 1, 2, 3, 4, *(100 + row for row in path)]


def test_growing_keeps_what_is_held():
    kv_cache = KVCache()
    for start in range(0, 1000, 100):
        run_pass(kv_cache, start, 100)
        kv_cache.commit(range(100))
    assert held(kv_cache) == list(range(1000))
    assert kv_cache.capacity % KVCache.STEP == 0


def test_rewind_forgets_and_never_goes_forward():
    kv_cache = KVCache()
    run_pass(kv_cache, 0, 10)
    kv_cache.commit(range(10))
    kv_cache.rewind(20)
    assert kv_cache.offset == 10
    kv_cache.rewind(4)
    run_pass(kv_cache, 50, 2)
    kv_cache.commit([0, 1])
    assert held(kv_cache) == [0, 1, 2, 3, 50, 51]


def test_no_round_but_a_growing_one_allocates_a_buffer():
    """Law: a round's peak memory does not contain a second copy of the cache."""
    kv_cache = KVCache()
    heads, dim, size = 4, 64, 8192
    big = mx.zeros((1, heads, size - 64, dim))
    kv_cache.start_pass(size - 64, keeps_rows=False)
    mx.eval(*kv_cache.extend(0, big, big))
    kv_cache.commit(range(size - 64))
    mx.eval(kv_cache.arrays)
    buffer_bytes = kv_cache.arrays[0].nbytes
    del big
    for path in ([0], [0, 2], [0, 1, 3]):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        new = mx.ones((1, heads, 4, dim))
        kv_cache.start_pass(4, keeps_rows=True)
        keys, values = kv_cache.extend(0, new, new)
        mx.eval(keys.sum(), values.sum())
        del keys, values
        kv_cache.commit(path)
        mx.eval(kv_cache.arrays)
        assert mx.get_peak_memory() - before < buffer_bytes / 4


@pytest.mark.parametrize("num_run", range(2 * LAYERS))
@pytest.mark.parametrize("size", [5, 300])
def test_a_pass_that_breaks_off_leaves_the_cache_usable(monkeypatch, size, num_run):
    """Law: after an exception anywhere in a pass, the next one works, also where it grows."""
    kv_cache = KVCache()
    run_pass(kv_cache, 0, 4)
    kv_cache.commit(range(4))
    calls = iter(range(100))
    real_zeros = mx.zeros

    def broken_zeros(*arguments):
        if next(calls) == num_run:
            raise KeyboardInterrupt
        return real_zeros(*arguments)

    fresh = KVCache()
    monkeypatch.setattr(mx, "zeros", broken_zeros)
    for cache in (kv_cache, fresh):
        kv = mx.ones((1, HEADS, size, DIM))
        calls = iter(range(100))
        with contextlib.suppress(KeyboardInterrupt):
            cache.start_pass(size, keeps_rows=False)
            for layer in range(LAYERS):
                cache.extend(layer, kv, kv)
    monkeypatch.undo()
    for cache, expected in ((kv_cache, [0, 1, 2, 3]), (fresh, [])):
        assert held(cache) == expected
        run_pass(cache, 20, 700)
        cache.commit(range(700))
        assert held(cache) == [*expected, *range(20, 720)]
