"""Keys and values of every position that the target has run, preallocated in steps."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

_Pair = tuple[mx.array, mx.array]


class KVCache:
    """The one mutable object of a decode: a buffer of keys and one of values a layer.

    A pass writes its rows behind ``offset`` (``start_pass``, then ``extend`` for each
    layer) and ``commit`` says which of them stay. MLX updates a buffer in place only while
    nothing else holds it, so nothing outside may keep the arrays that ``extend`` returns.

    Attributes:
        offset: Positions held; what lies behind it in the buffers has no meaning.
    """

    STEP = 256

    def __init__(self) -> None:
        """Make an empty cache; the buffers come with the first pass."""
        self.offset = 0
        self._num_rows = 0
        self._keeps_rows = False
        # Keys and values of each layer: whole buffers, and the last pass's own rows.
        self._buffers: list[_Pair] = []
        self._new_rows: list[_Pair] = []

    @property
    def arrays(self) -> list[mx.array]:
        """Every buffer, to be evaluated."""
        return [buffer for pair in self._buffers for buffer in pair]

    @property
    def capacity(self) -> int:
        """Positions that the buffers have room for."""
        return self._buffers[0][0].shape[2] if self._buffers else 0

    def start_pass(self, num_rows: int, *, keeps_rows: bool) -> None:
        """Begin a pass over ``num_rows`` rows.

        Args:
            num_rows: Rows that each layer will write.
            keeps_rows: Whether ``commit`` may pick rows that are not the first ones; then
                the pass's own keys and values are held until the next pass.
        """
        self._num_rows = num_rows
        self._keeps_rows = keeps_rows
        self._new_rows = []
        if self._buffers and self.offset + num_rows > self.capacity:
            # Swapped in together: whatever breaks off, all layers stay of one size.
            size = self._round_up(self.offset + num_rows)
            self._buffers = [self._grown(pair, size) for pair in self._buffers]

    def extend(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write this pass's rows of one layer; return all its keys and values.

        Args:
            layer: Layers come in order, from 0.
            keys: (1, kv_heads, rows, head_dim).
            values: As ``keys``.

        Returns:
            Keys and values, (1, kv_heads, offset + rows, head_dim) each.
        """
        if layer == len(self._buffers):
            self._buffers.append(self._empty(keys, values))
        if self._keeps_rows:
            self._new_rows.append((keys, values))
        end = self.offset + self._num_rows
        all_keys, all_values = self._buffers[layer]
        all_keys[:, :, self.offset : end] = keys
        all_values[:, :, self.offset : end] = values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def commit(self, path: Sequence[int]) -> None:
        """Keep the rows of ``path`` of the last pass and move ``offset`` behind them.

        Args:
            path: Rows in the order of their positions, ascending. Rows that already lie
                where they belong (0, 1, 2, ...) are not written.
        """
        first = next((place for place, row in enumerate(path) if row != place), len(path))
        if first < len(path):
            self._move_rows(path[first:], self.offset + first)
        self.offset += len(path)

    def rewind(self, offset: int) -> None:
        """Forget the positions from ``offset`` on; a larger one than is held changes nothing."""
        assert offset >= 0
        self.offset = min(self.offset, offset)

    def _move_rows(self, rows: Sequence[int], start: int) -> None:
        # From the pass's own keys and values: reading the cache and writing it in one
        # graph would copy the whole of it.
        assert self._keeps_rows
        first, end = rows[0], start + len(rows)
        is_run = list(rows) == list(range(first, first + len(rows)))
        picked = slice(first, first + len(rows)) if is_run else mx.array(list(rows))
        for pair, new_pair in zip(self._buffers, self._new_rows, strict=True):
            for buffer, new in zip(pair, new_pair, strict=True):
                buffer[:, :, start:end] = new[:, :, picked]
        # Begun now, it runs while the host prepares the next pass, and leaves no lazy
        # array to a thread that may not own this stream.
        mx.async_eval(self.arrays)

    def _empty(self, keys: mx.array, values: mx.array) -> _Pair:
        size = max(self.capacity, self._round_up(self.offset + self._num_rows))

        def room_for(rows: mx.array) -> mx.array:
            return mx.zeros((*rows.shape[:2], size, rows.shape[3]), rows.dtype)

        return room_for(keys), room_for(values)

    def _grown(self, pair: _Pair, size: int) -> _Pair:
        def grow(held: mx.array) -> mx.array:
            shape = (*held.shape[:2], size - self.offset, held.shape[3])
            return mx.concatenate([held[:, :, : self.offset], mx.zeros(shape, held.dtype)], axis=2)

        return grow(pair[0]), grow(pair[1])

    def _round_up(self, size: int) -> int:
        return -(-size // self.STEP) * self.STEP
