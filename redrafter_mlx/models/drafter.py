"""The recurrent drafter: its weights, and the same bound to a target for drafting."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.matrix import Matrix


class ResBlock(nn.Module):
    """x + SiLU(Ax + c)."""

    def __init__(self, size: int) -> None:
        """Make the square layer."""
        super().__init__()
        self.linear = nn.Linear(size, size)

    def __call__(self, x: mx.array) -> mx.array:
        """Transform x, (rows, size)."""
        return x + nn.silu(self.linear(x))


class RecurrentDrafter(nn.Module):
    """A drafter's own weights, named as Apple's ``Drafter.save_pretrained`` names them.

    Source:
        arXiv:2403.09919, section 3.1, in the form of Apple's code: s_0 = 0,
        s_t = SiLU(W e_t + U s_{t-1} + b), and the head reads [h, s_t] in this order.
    """

    def __init__(self, config: DrafterConfig) -> None:
        """Make the modules that ``config`` asks for; a tied head has none of its own."""
        super().__init__()
        self.config = config
        hidden_size, exit_dim = config.hidden_size, config.exit_dim
        if exit_dim != 2 * hidden_size:
            self.input_proj = nn.Linear(2 * hidden_size, exit_dim)
        self.lm_head: list[nn.Module] = [ResBlock(exit_dim) for _ in range(config.num_draft_layers)]
        if config.head == "own":
            self.lm_head.append(nn.Linear(exit_dim, config.num_head_rows, bias=False))
        if config.rnn:
            self.rnn_u = nn.Linear(hidden_size, hidden_size)
            self.rnn_w = nn.Linear(hidden_size, hidden_size, bias=False)
        if config.draft_vocab_size is not None:
            self.draft_vocab = mx.zeros((config.draft_vocab_size,), mx.int32)

    @property
    def blocks(self) -> list[nn.Module]:
        """The residual blocks."""
        return self.lm_head[: self.config.num_draft_layers]

    def next_state(self, state: mx.array, embeddings: mx.array) -> mx.array:
        """Return s_t from s_{t-1} and the embedding of token t, each (rows, hidden_size)."""
        if not self.config.rnn:
            return state + embeddings
        return nn.silu(self.rnn_w(embeddings) + self.rnn_u(state))


@dataclass(frozen=True, slots=True, eq=False)
class DraftStep:
    """One step of the drafter.

    Attributes:
        state: (rows, hidden_size).
        logits: (rows, num_head_rows), unnormalised; column i is token ``token_ids[i]``.
    """

    state: mx.array
    logits: mx.array


class Drafter:
    """A drafter bound to its target, ready to draft.

    The part of the first affine layer that reads h is computed once a draft
    (``context``), the part that reads s at each step.

    Attributes:
        config: Shape and origin.
        token_ids: (num_head_rows,) int32, the token of each head row; ``None`` where row i
            is token i.
    """

    def __init__(self, network: RecurrentDrafter, target: Decoder) -> None:
        """Bind ``network`` to ``target``; the sizes must have been checked."""
        self.config = network.config
        self._network = network
        self._target = target
        is_cut = self.config.draft_vocab_size is not None
        self.token_ids = network.draft_vocab if is_cut else None
        self._head = self._bind_head()
        self._first = _SplitLinear.of(network)
        mx.eval(self._head.arrays, self._first.arrays if self._first else [])

    @property
    def digest(self) -> str:
        """Hex digest of the configuration and of every vector among the weights."""
        found = hashlib.sha256(json.dumps(self.config.to_dict(), sort_keys=True).encode())
        for _, value in sorted(self._parameters.items()):
            if value.ndim == 1:
                found.update(np.array(value.astype(mx.float32)).tobytes())
        return found.hexdigest()

    @property
    def dtype(self) -> mx.Dtype:
        """What its layers compute in."""
        kinds = (value.dtype for value in self._parameters.values())
        floating = (kind for kind in kinds if mx.issubdtype(kind, mx.floating))
        return next(floating, self._target.dtype)

    @property
    def bytes_read(self) -> int:
        """Bytes of the weights that a draft reads at each step, a tied head among them."""
        own = sum(value.nbytes for name, value in self._parameters.items() if name != "draft_vocab")
        is_tied = self.config.head == "tied"
        return own + (sum(part.nbytes for part in self._head.arrays) if is_tied else 0)

    def context(self, hidden: mx.array) -> mx.array:
        """Return what a whole draft shares.

        Args:
            hidden: (1, hidden_size), the target's hidden state after its final norm.

        Returns:
            (1, exit_dim): the first affine layer's value before s is added to it; h itself
            where no layer reads it.
        """
        return self._first.read_hidden(hidden) if self._first else hidden

    def first_state(self, hidden: mx.array) -> mx.array:
        """Return s_0 = 0, (1, hidden_size)."""
        return mx.zeros_like(hidden)

    def step(
        self, hidden: mx.array, context: mx.array, state: mx.array, tokens: mx.array
    ) -> DraftStep:
        """Take in one token a row and score the next.

        Args:
            hidden: (1, hidden_size), as ``context`` got it.
            context: What ``context`` returned.
            state: (rows, hidden_size), s_{t-1}.
            tokens: (rows,) int32, the token that each row takes in.
        """
        state = self._network.next_state(state, self._target.embed(tokens).astype(state.dtype))
        logits = self._head.apply(self._features(hidden, context, state))
        scale = self.config.head_scale
        return DraftStep(state, logits if scale == 1.0 else logits * scale)

    @property
    def _parameters(self) -> dict[str, mx.array]:
        """Its own weights, by name."""
        parameters: dict[str, mx.array] = dict(tree_flatten(self._network.parameters()))
        return parameters

    def _bind_head(self) -> Matrix:
        if self.config.head == "own":
            return Matrix.of(self._network.lm_head[-1])
        head = Matrix.of(self._target.output_head)
        return head if self.token_ids is None else head.rows(self.token_ids)

    def _features(self, hidden: mx.array, context: mx.array, state: mx.array) -> mx.array:
        blocks, first = self._network.blocks, self._first
        if first is not None and first.is_input_proj:
            x = context + first.read_state(state)
        else:
            x = mx.concatenate([mx.broadcast_to(hidden, state.shape), state], axis=-1)
            if first is not None:
                x = x + nn.silu(context + first.read_state(state))
                blocks = blocks[1:]
        for block in blocks:
            x = block(x)
        return x


@dataclass(frozen=True, slots=True, eq=False)
class _SplitLinear:
    """The affine layer that reads [h, s] first, as a sum of what reads each of them."""

    left: Matrix
    right: Matrix
    bias: mx.array
    is_input_proj: bool

    @classmethod
    def of(cls, network: RecurrentDrafter) -> _SplitLinear | None:
        is_input_proj = "input_proj" in network
        if not is_input_proj and not network.blocks:
            return None
        layer = network.input_proj if is_input_proj else network.blocks[0].linear
        left, right = Matrix.of(layer).halves()
        return cls(left, right, layer.bias, is_input_proj)

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.left.arrays, *self.right.arrays]

    def read_hidden(self, hidden: mx.array) -> mx.array:
        return self.left.apply(hidden) + self.bias

    def read_state(self, state: mx.array) -> mx.array:
        return self.right.apply(state)
