"""The target: a decoder of the Llama family whose one forward serves every pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.models.rope import Rope
from redrafter_mlx.models.target_config import TargetConfig


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """Where the rows of a pass stand and what each may attend to.

    Attributes:
        positions: Position of the first row of a sequence; (rows,) int32 for a tree.
        mask: ``None`` (one row), ``"causal"`` (a sequence), or bool
            (1, 1, rows, offset + rows) for a tree.
    """

    positions: int | mx.array
    mask: mx.array | str | None

    @classmethod
    def for_pass(cls, num_rows: int, offset: int, tree: DraftTree | None) -> RowLayout:
        """Lay out a sequence, or a tree that branches."""
        if num_rows == 1:
            return cls(offset, None)
        if tree is None or tree.is_chain:
            return cls(offset, "causal")
        cached = mx.ones((num_rows, offset), mx.bool_)
        mask = mx.concatenate([cached, mx.array(tree.ancestors)], axis=1)
        return cls(mx.array(tree.depths) + offset, mask[None, None])


class Attention(nn.Module):
    """Grouped-query attention over the cache and this pass's own rows.

    Attributes:
        rope: Rotates what ``project`` gives; see ``Rope``.
    """

    def __init__(self, config: TargetConfig) -> None:
        """Make the projections and, where the family has them, the head norms."""
        super().__init__()
        self.head_dim = config.head_dim
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        query_size = config.num_heads * config.head_dim
        key_size = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.output_bias)
        self.has_head_norms = config.qk_norm
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.rope = Rope(config.head_dim, config.rope)

    def __call__(self, x: mx.array, rows: RowLayout, kv_cache: KVCache, layer: int) -> mx.array:
        """Attend from x, (1, rows, hidden_size)."""
        queries, keys, values = self.project(x)
        # Rotated in one call: building it costs the host more than any other operation.
        rotated = self._rotate(mx.concatenate([queries, keys], axis=2), rows)
        queries, keys = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
        keys, values = kv_cache.extend(layer, keys, values.transpose(0, 2, 1, 3))
        return self.attend(queries, keys, values, rows.mask)

    def project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Return queries, keys and values of x, not rotated yet.

        Args:
            x: (batch, rows, hidden_size).

        Returns:
            (batch, rows, heads, head_dim) each, keys and values of the key heads.
        """
        queries = self._split(self.q_proj(x), self.num_heads)
        keys = self._split(self.k_proj(x), self.num_kv_heads)
        values = self._split(self.v_proj(x), self.num_kv_heads)
        if self.has_head_norms:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        return queries, keys, values

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | str | None
    ) -> mx.array:
        """Return what the queries find, (batch, rows, hidden_size).

        Args:
            queries: (batch, heads, rows, head_dim), rotated.
            keys: (batch, kv_heads, all rows, head_dim), rotated.
            values: As ``keys``.
            mask: As ``RowLayout.mask``.
        """
        attended = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.head_dim**-0.5, mask=mask
        )
        batch, _, num_rows, _ = attended.shape
        return self.o_proj(attended.transpose(0, 2, 1, 3).reshape(batch, num_rows, -1))

    def _split(self, x: mx.array, num_heads: int) -> mx.array:
        return x.reshape(*x.shape[:2], num_heads, self.head_dim)

    def _rotate(self, x: mx.array, rows: RowLayout) -> mx.array:
        """Rotate (1, rows, heads, head_dim) into (1, heads, rows, head_dim)."""
        if isinstance(rows.positions, int):
            return self.rope(x.transpose(0, 2, 1, 3), rows.positions)
        # A position for each row: mx.fast.rope takes one offset a batch entry.
        rotated = self.rope(x.reshape(x.shape[1], x.shape[2], 1, self.head_dim), rows.positions)
        return rotated.transpose(2, 1, 0, 3)


@partial(mx.compile, shapeless=True)
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """Return SiLU(gate) * up."""
    return gate * mx.sigmoid(gate) * up


class FeedForward(nn.Module):
    """The gated feed-forward half of a layer."""

    def __init__(self, config: TargetConfig) -> None:
        """Make the three projections."""
        super().__init__()
        hidden_size, inner_size = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden_size, inner_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(hidden_size, inner_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner_size, hidden_size, bias=config.mlp_bias)

    def __call__(self, x: mx.array) -> mx.array:
        """Transform x, (1, rows, hidden_size)."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a skip connection."""

    def __init__(self, config: TargetConfig) -> None:
        """Make both halves."""
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def __call__(self, x: mx.array, rows: RowLayout, kv_cache: KVCache, layer: int) -> mx.array:
        """Transform x, (1, rows, hidden_size)."""
        x = x + self.self_attn(self.input_layernorm(x), rows, kv_cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class LayerStack(nn.Module):
    """Embedding, layers and final norm, named as checkpoints name them."""

    def __init__(self, config: TargetConfig) -> None:
        """Make the layers."""
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Layer(config) for _ in range(config.num_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Decoder(nn.Module):
    """The target model at batch size 1.

    Attributes:
        config: Sizes and switches.
        fingerprint: Hex digest of the normalisation weights as stored; empty for a model
            that comes from no file.
    """

    def __init__(self, config: TargetConfig, *, is_tied: bool) -> None:
        """Make the modules; ``is_tied``: the output head is the embedding's matrix."""
        super().__init__()
        self.config = config
        self.fingerprint = ""
        self.model = LayerStack(config)
        if not is_tied:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def dtype(self) -> mx.Dtype:
        """What its layers compute in."""
        found: mx.Dtype = self.model.norm.weight.dtype
        return found

    @property
    def is_tied(self) -> bool:
        """Whether the output head is the embedding's matrix."""
        return "lm_head" not in self

    @property
    def output_head(self) -> nn.Module:
        """The module that holds the (vocab_size, hidden_size) output matrix."""
        head: nn.Module = self.model.embed_tokens if self.is_tied else self.lm_head
        return head

    def __call__(
        self, tokens: mx.array, kv_cache: KVCache, tree: DraftTree | None = None
    ) -> mx.array:
        """Run rows behind what the cache holds; ``kv_cache.commit`` then keeps some.

        Args:
            tokens: (rows,) int32.
            kv_cache: Gets this pass's keys and values; its offset does not move.
            tree: How the rows hang together; without it they are a sequence.

        Returns:
            (rows, hidden_size), the hidden states after the final norm.
        """
        num_rows = tokens.shape[0]
        layout = RowLayout.for_pass(num_rows, kv_cache.offset, tree)
        kv_cache.start_pass(num_rows, keeps_rows=isinstance(layout.mask, mx.array))
        x = self.embed(tokens)[None]
        for layer, module in enumerate(self.model.layers):
            x = module(x, layout, kv_cache, layer)
        return self.model.norm(x)[0]

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the input embeddings, (rows, hidden_size)."""
        return self.model.embed_tokens(tokens)

    def logits(self, hidden: mx.array) -> mx.array:
        """Return (rows, vocab_size) from hidden states after the final norm."""
        if self.is_tied:
            return self.model.embed_tokens.as_linear(hidden)
        return self.lm_head(hidden)

    def make_kv_cache(self) -> KVCache:
        """Return an empty cache for this model."""
        return KVCache()
