"""The target over many sequences at once, one token each: what writing a corpus needs.

The KV cache is padded on the left, so that every sequence writes the same column. What a
sequence gets is what the target alone would give it, up to the order of float additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from redrafter_mlx.models.decoder import Attention, Decoder
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.segments import common_prefix_length
from redrafter_mlx.training.corpus import Ids

_STEP = 64


@dataclass(slots=True, eq=False)
class BatchState:
    """What a batch of sequences carries from token to token.

    Attributes:
        keys: One a layer, (sequences, kv_heads, columns, head_dim); likewise ``values``.
        paddings: (sequences,) int32, columns before a sequence begins.
        length: Columns in use.
        hidden: (sequences, hidden_size), the newest hidden states after the final norm.
    """

    keys: list[mx.array]
    values: list[mx.array]
    paddings: mx.array
    length: int
    hidden: mx.array

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all sequences but these."""
        kept = mx.array(list(rows))
        self.keys = [part[kept] for part in self.keys]
        self.values = [part[kept] for part in self.values]
        self.paddings, self.hidden = self.paddings[kept], self.hidden[kept]

    @property
    def arrays(self) -> list[mx.array]:
        """Everything, to be evaluated."""
        return [*self.keys, *self.values, self.hidden]


def prefill_batch(target: Decoder, prompts: Sequence[Ids]) -> BatchState:
    """Run each prompt, and line their keys and values up at the right."""
    length = max(len(prompt) for prompt in prompts)
    rows: list[list[tuple[mx.array, mx.array]]] = []
    hidden = []
    kv_cache, former = target.make_kv_cache(), list[int]()
    for prompt in prompts:
        # What it shares with the one before it, as a system prompt, is there already.
        kv_cache.rewind(common_prefix_length(prompt[:-1].tolist(), former))
        tokens = mx.array(prompt[kv_cache.offset :])
        hidden.append(target(tokens, kv_cache)[-1])
        kv_cache.commit(range(tokens.shape[0]))
        rows.append(_padded(kv_cache, length))
        mx.eval(hidden[-1], rows[-1], kv_cache.arrays)
        former = prompt.tolist()
    num_layers = len(target.model.layers)
    return BatchState(
        keys=[mx.concatenate([row[layer][0] for row in rows]) for layer in range(num_layers)],
        values=[mx.concatenate([row[layer][1] for row in rows]) for layer in range(num_layers)],
        paddings=mx.array([length - len(prompt) for prompt in prompts], mx.int32),
        length=length,
        hidden=mx.stack(hidden),
    )


def decode_batch(target: Decoder, state: BatchState, tokens: mx.array) -> None:
    """Run one token a sequence; ``state.hidden`` then belongs to them.

    Args:
        target: The model.
        state: Advanced by a column.
        tokens: (sequences,) int32.
    """
    _make_room(state)
    column = state.length
    offsets = column - state.paddings
    mask = (mx.arange(column + 1) >= state.paddings[:, None])[:, None, None]
    x = target.embed(tokens)[:, None]
    for layer, module in enumerate(target.model.layers):
        normed = module.input_layernorm(x)
        x = x + _attend(module.self_attn, normed, state, layer, (offsets, mask))
        x = x + module.mlp(module.post_attention_layernorm(x))
    state.hidden = target.model.norm(x)[:, 0]
    state.length = column + 1


def _attend(
    attention: Attention,
    x: mx.array,
    state: BatchState,
    layer: int,
    place: tuple[mx.array, mx.array],
) -> mx.array:
    """Attend from (sequences, 1, hidden_size), writing the column at ``state.length``."""
    offsets, mask = place
    column = state.length
    queries, keys, values = (part.transpose(0, 2, 1, 3) for part in attention.project(x))
    state.keys[layer][:, :, column : column + 1] = attention.rope(keys, offsets)
    state.values[layer][:, :, column : column + 1] = values
    return attention.attend(
        attention.rope(queries, offsets),
        state.keys[layer][:, :, : column + 1],
        state.values[layer][:, :, : column + 1],
        mask,
    )


def _make_room(state: BatchState) -> None:
    """Add columns where the next one does not fit."""
    if state.length < state.keys[0].shape[2]:
        return
    wider = [(0, 0), (0, 0), (0, _STEP), (0, 0)]
    state.keys = [mx.pad(part, wider) for part in state.keys]
    state.values = [mx.pad(part, wider) for part in state.values]


def _padded(kv_cache: KVCache, length: int) -> list[tuple[mx.array, mx.array]]:
    """Return each layer's keys and values, (1, kv_heads, length, head_dim), zeros at the left."""
    arrays = [part[:, :, : kv_cache.offset] for part in kv_cache.arrays]
    padding = [(0, 0), (0, 0), (length - kv_cache.offset, 0), (0, 0)]
    padded = [mx.pad(part, padding) for part in arrays]
    return list(zip(padded[::2], padded[1::2], strict=True))
