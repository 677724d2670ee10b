"""One round on its way: verify, choose, accept and the next draft, built as one graph."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from redrafter_mlx.config import BeamShape, SamplingConfig
from redrafter_mlx.decoding.anatomy import Stopwatch
from redrafter_mlx.decoding.beam import Draft, draft
from redrafter_mlx.decoding.sampling import Choice, choose, choose_quickly
from redrafter_mlx.decoding.tree import Accepted, DraftTree, accept
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter
from redrafter_mlx.models.kv_cache import KVCache


@dataclass(frozen=True, slots=True, eq=False)
class Tip:
    """Where the text ends, on the device.

    Attributes:
        hidden: (1, hidden_size), the target's last hidden state after its final norm.
        next_token: (1,) int32, chosen from ``hidden`` and not yet run.
    """

    hidden: mx.array
    next_token: mx.array


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one host read brings.

    Attributes:
        path: Accepted rows, from the root.
        next_token: The target's own token behind them.
        tree: The next round's draft, below ``next_token``.
    """

    path: list[int]
    next_token: int
    tree: DraftTree


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """What every round of an answer needs.

    Attributes:
        target: The model.
        drafter: Bound to it, or ``None``.
        kv_cache: Holds every emitted token but the last.
        sampling: How tokens are chosen.
    """

    target: Decoder
    drafter: Drafter | None
    kv_cache: KVCache
    sampling: SamplingConfig

    def tip(self, hidden: mx.array) -> Tip:
        """Choose the token behind everything in the cache."""
        logits = self.target.logits(hidden)
        return Tip(hidden, choose(logits, self.sampling, self.kv_cache.offset - 1))

    def step(self, tip: Tip) -> Tip:
        """Run the tip's token and return the tip behind it; the device is at work on it."""
        hidden = self.target(tip.next_token, self.kv_cache)
        self.kv_cache.commit([0])
        tip = self.tip(hidden)
        mx.async_eval(tip.next_token)
        return tip

    def draft(self, tip: Tip, shape: BeamShape | None) -> Draft | None:
        """Draft below the tip; nothing without a drafter or a shape."""
        if self.drafter is None or shape is None:
            return None
        return draft(self.drafter, tip.hidden, tip.next_token, shape)

    def read_tip(self, tip: Tip, shape: BeamShape | None) -> Outcome:
        """Read the next token, and a draft below it."""
        return _unpacked(np.array(_packed(tip, self.draft(tip, shape), mx.zeros(1, mx.int32))), 1)


class Flight:
    """A round that the device is working on.

    Attributes:
        tree: The rows that it verifies.
        tip: Where the text will end.
    """

    def __init__(
        self, engine: Engine, tree: DraftTree, next_shape: BeamShape | None, watch: Stopwatch
    ) -> None:
        """Build the round and set the device to work."""
        self.tree = tree
        self._engine, self._next_shape, self._watch = engine, next_shape, watch
        self._offset = engine.kv_cache.offset
        self._hidden = engine.target(mx.array(tree.tokens), engine.kv_cache, tree)
        self._logits = engine.target.logits(self._hidden)
        watch.lap("verify", self._logits, engine.kv_cache.arrays)
        self._accept(choose_quickly(self._logits, engine.sampling, self._offset, tree.depths))
        mx.async_eval(self._numbers)

    def land(self) -> Outcome:
        """Read the outcome and commit the accepted rows."""
        numbers = np.array(self._numbers)
        if not numbers[0]:
            sampling = self._engine.sampling
            self._accept(Choice(choose(self._logits, sampling, self._offset, self.tree.depths)))
            numbers = np.array(self._numbers)
        outcome = _unpacked(numbers[1:], self.tree.max_depth + 1)
        self._watch.lap("host")
        self._engine.kv_cache.commit(outcome.path)
        self._watch.lap("commit", self._engine.kv_cache.arrays)
        return outcome

    def _accept(self, choice: Choice) -> None:
        """Walk the tree, draft behind what is accepted, and pack it all for one read."""
        accepted = accept(self.tree, choice.tokens)
        last = accepted.last_row
        self.tip = Tip(self._hidden[last], choice.tokens[last])
        self._watch.lap("accept", accepted.path, self.tip.hidden, self.tip.next_token)
        drafted = self._engine.draft(self.tip, self._next_shape)
        packed = _packed(self.tip, drafted, accepted.path)
        self._numbers = mx.concatenate([_is_settled(choice, accepted), packed])
        self._watch.lap("draft", self._numbers)


def _is_settled(choice: Choice, accepted: Accepted) -> mx.array:
    """Return (1,) int32, 0 where a choice on the accepted path must be made again."""
    if choice.is_exact is None:
        return mx.ones(1, mx.int32)
    return choice.is_exact[mx.maximum(accepted.path, 0)].all(keepdims=True).astype(mx.int32)


def _packed(tip: Tip, drafted: Draft | None, path: mx.array) -> mx.array:
    """Return a round's outcome as int32, for one read off the device."""
    parts = [path, tip.next_token]
    if drafted is not None:
        parts += [drafted.tokens, drafted.parents, drafted.log_probs.view(mx.int32)]
    return mx.concatenate(parts)


def _unpacked(numbers: NDArray[np.int32], path_size: int) -> Outcome:
    path, token, nodes = np.split(numbers, [path_size, path_size + 1])
    tokens, parents, bits = nodes.reshape(3, -1)
    root = np.zeros(1, np.int32)
    tree = DraftTree.from_rows(
        tokens=np.concatenate([token, tokens]),
        parents=np.concatenate([root, parents]),
        log_probs=np.concatenate([root, bits]).view(np.float32),
    )
    return Outcome(path[path >= 0].tolist(), int(token[0]), tree)
