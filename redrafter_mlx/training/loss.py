"""The loss of a drafter at every position and depth, and the guesses behind it.

Row r of an answer has the target's hidden state h_r, from which its token a_r was chosen.
At position r the drafter knows h_r and takes in a_r, a_{r+1}, ...; at depth d (1, 2, ...) it
has taken in a_r ... a_{r+d-1} and guesses a_{r+d}, which the target chose from h_{r+d}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import RecurrentDrafter
from redrafter_mlx.models.matrix import Matrix
from redrafter_mlx.training.batches import Batch
from redrafter_mlx.training.settings import TrainingConfig

OUTSIDE = -1
# Bytes of one depth's logits that a pass may hold; a batch over it goes in several passes.
MAX_LOGITS_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """A batch's loss and guesses.

    Attributes:
        loss: Scalar, the weighted mean over the contributing (position, depth) pairs.
        weight: Scalar, how much all of these count together.
        guesses: (depths, chunks, positions) int32, the drafter's most probable column.
        choices: Likewise the target's, at the row that each pair predicts.
        mask: Likewise bool: the pairs that contribute.
    """

    loss: mx.array
    weight: mx.array
    guesses: mx.array
    choices: mx.array
    mask: mx.array


class Objective:
    """The loss of drafters that one target teaches over one (draft) vocabulary."""

    def __init__(
        self, target: Decoder, config: TrainingConfig, token_ids: mx.array | None = None
    ) -> None:
        """Take the rows of the target's head that belong to the draft vocabulary."""
        self._target = target
        self._config = config
        head = Matrix.of(target.output_head)
        head = head if token_ids is None else head.rows(token_ids)
        self.head = head if head.scales is not None else Matrix(head.weight.astype(mx.float32))
        self.columns = _columns(token_ids, target.config.vocab_size)
        mx.eval(self.head.arrays, self.columns)

    def weights(self, tokens: mx.array, num_rows: mx.array) -> mx.array:
        """Return how much each pair counts, (depths, chunks, positions) float32.

        A pair counts where its label lies inside the answer and every token from the first
        guess to the label is in the draft vocabulary: the drafter cannot get there else.

        Args:
            tokens: (chunks, rows) int32.
            num_rows: (chunks,) int32.
        """
        depths = self._config.draft_length
        positions = tokens.shape[1] - depths
        is_open = (mx.arange(tokens.shape[1]) < num_rows[:, None]) & (self.columns[tokens] >= 0)
        weights, reached = [], mx.ones((tokens.shape[0], positions), mx.bool_)
        for depth in range(1, depths + 1):
            reached = reached & is_open[:, depth : depth + positions]
            weights.append(reached * self._config.depth_decay ** (depth - 1))
        return mx.stack(weights).astype(mx.float32)

    def scores(self, network: RecurrentDrafter, batch: Batch, scale: float | None = None) -> Scores:
        """Return the loss of a batch.

        Args:
            network: The drafter in training.
            batch: What to score.
            scale: The sum of weights to divide by; ``None`` takes this batch's own.
        """
        hidden, tokens = mx.array(batch.hidden).astype(mx.float32), mx.array(batch.tokens)
        weights = self.weights(tokens, mx.array(batch.num_rows))
        embeddings = self._target.embed(tokens).astype(mx.float32)
        features = draft_features(network, hidden, embeddings, self._config.draft_length)
        taught = Teaching.of(mx.stop_gradient(self.head.apply(hidden[:, 1:])), self._config.labels)
        per_depth = [
            self._score_depth(network, part, taught.rows(depth, part.shape[1]))
            for depth, part in enumerate(features)
        ]
        losses = mx.stack([losses for losses, _ in per_depth])
        weight = _total(weights)
        return Scores(
            loss=_total(weights * losses) / (mx.maximum(weight, 1e-6) if scale is None else scale),
            weight=weight,
            guesses=mx.stack([guesses for _, guesses in per_depth]),
            choices=mx.stack(
                [taught.rows(depth, features.shape[2]).choices for depth in range(len(per_depth))]
            ),
            mask=weights > 0,
        )

    def _score_depth(
        self, network: RecurrentDrafter, features: mx.array, taught: Teaching
    ) -> tuple[mx.array, mx.array]:
        logits = head_logits(network, self.head, features)
        return taught.loss(logits), mx.argmax(logits, axis=-1).astype(mx.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Teaching:
    """What the target says at some rows.

    Attributes:
        choices: (chunks, rows) int32, its most probable column.
        probs: (chunks, rows, columns) float32, for soft labels; ``None`` for hard ones.
        negative_entropy: (chunks, rows), sum p log p; likewise.
    """

    choices: mx.array
    probs: mx.array | None = None
    negative_entropy: mx.array | None = None

    @classmethod
    def of(cls, logits: mx.array, labels: str) -> Teaching:
        """Read the target's logits, (chunks, rows, columns), in float32."""
        logits = logits.astype(mx.float32)
        choices = mx.argmax(logits, axis=-1).astype(mx.int32)
        if labels == "hard":
            return cls(choices)
        norm, probs = _normalise(logits)
        return cls(choices, probs, (probs * logits).sum(axis=-1) - norm)

    def rows(self, first: int, count: int) -> Teaching:
        """Return some of the rows."""
        kept = slice(first, first + count)
        if self.probs is None or self.negative_entropy is None:
            return Teaching(self.choices[:, kept])
        return Teaching(self.choices[:, kept], self.probs[:, kept], self.negative_entropy[:, kept])

    def loss(self, logits: mx.array) -> mx.array:
        """Return what a drafter's logits lose at each row, in float32.

        With soft labels KL(p || q), p the target's and q the drafter's distribution, both over
        the draft vocabulary; with hard ones -log q of the choice.
        """
        logits = logits.astype(mx.float32)
        if self.probs is None or self.negative_entropy is None:
            losses, _ = _label_cross_entropy(logits, self.choices)
            return losses
        losses, _ = _cross_entropy(logits, self.probs)
        return self.negative_entropy + losses


def _total(pairs: mx.array) -> mx.array:
    """Add up (depths, chunks, positions) axis by axis: a long sum in float32 drifts."""
    return pairs.sum(axis=2).sum(axis=1).sum()


def chunks_at_once(network: RecurrentDrafter, config: TrainingConfig) -> int:
    """Return how many chunks a pass may score."""
    chunk_bytes = 4 * network.config.num_head_rows * config.chunk_length
    return max(1, MAX_LOGITS_BYTES // chunk_bytes)


def draft_features(
    network: RecurrentDrafter, hidden: mx.array, embeddings: mx.array, depths: int
) -> mx.array:
    """Return what the head reads at every depth, (depths, chunks, positions, exit_dim).

    Args:
        network: The drafter.
        hidden: (chunks, positions + depths, hidden_size).
        embeddings: Likewise, of the tokens.
        depths: Guesses a position.
    """
    positions = hidden.shape[1] - depths
    states = _states(network, embeddings, positions, depths)
    known = hidden[:, :positions]
    blocks = network.blocks
    first = network.input_proj if "input_proj" in network else None
    if first is None and blocks:
        first = blocks[0].linear
    if first is None:
        return mx.concatenate([mx.broadcast_to(known, states.shape), states], axis=-1)
    # [h, s] W^T = h W_h^T + s W_s^T: the first part is the same at every depth.
    width = hidden.shape[-1]
    x = known @ first.weight[:, :width].T + first.bias + states @ first.weight[:, width:].T
    if "input_proj" not in network:
        x = mx.concatenate([mx.broadcast_to(known, states.shape), states], axis=-1) + nn.silu(x)
        blocks = blocks[1:]
    for block in blocks:
        x = block(x)
    return x


def head_logits(network: RecurrentDrafter, target_head: Matrix, features: mx.array) -> mx.array:
    """Return the drafter's logits, (..., num_head_rows)."""
    if network.config.head == "own":
        return network.lm_head[-1](features)
    return target_head.apply(features * network.config.head_scale)


# Autodiff would take every exponential twice, and on a CPU they cost as much as the head.
def _cross_entropy_of(logits: mx.array, probs: mx.array) -> tuple[mx.array, mx.array]:
    """Return -sum p log q, and q."""
    norm, drafted = _normalise(logits)
    return norm - (probs * logits).sum(axis=-1), drafted


def _label_cross_entropy_of(logits: mx.array, labels: mx.array) -> tuple[mx.array, mx.array]:
    """Return -log q of the label, and q."""
    norm, drafted = _normalise(logits)
    return norm - mx.take_along_axis(logits, labels[..., None], axis=-1)[..., 0], drafted


_cross_entropy: Any = mx.custom_function(_cross_entropy_of)
_label_cross_entropy: Any = mx.custom_function(_label_cross_entropy_of)


def _cross_entropy_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    probs = primals[1]
    return cotangents[0][..., None] * (outputs[1] - probs), mx.zeros_like(probs)


def _label_cross_entropy_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    labels = primals[1][..., None]
    at_label = mx.take_along_axis(outputs[1], labels, axis=-1) - 1.0
    gradient = mx.put_along_axis(outputs[1], labels, at_label, axis=-1)
    return cotangents[0][..., None] * gradient, mx.zeros_like(primals[1])


_cross_entropy.vjp(_cross_entropy_vjp)
_label_cross_entropy.vjp(_label_cross_entropy_vjp)


def _normalise(logits: mx.array) -> tuple[mx.array, mx.array]:
    """Return log sum exp and the probabilities."""
    largest = logits.max(axis=-1)
    if mx.default_device().type == mx.cpu:
        # Its powers take less than half the time of its exponentials (docs/training.md).
        powers = mx.power(math.e, logits - largest[..., None])
        total = powers.sum(axis=-1)
        return largest + mx.log(total), powers / total[..., None]
    probs = mx.softmax(logits, axis=-1, precise=True)
    return largest - mx.log(probs.max(axis=-1)), probs


def _states(
    network: RecurrentDrafter, embeddings: mx.array, positions: int, depths: int
) -> mx.array:
    """Return s_1, s_2, ... of every position, (depths, chunks, positions, hidden_size)."""
    shape = (embeddings.shape[0], positions, embeddings.shape[2])
    read = network.rnn_w(embeddings) if network.config.rnn else embeddings
    state, states = mx.zeros(shape), []
    for depth in range(depths):
        taken = read[:, depth : depth + positions]
        is_rnn = network.config.rnn
        state = nn.silu(taken + network.rnn_u(state)) if is_rnn else state + taken
        states.append(state)
    return mx.stack(states)


def _columns(token_ids: mx.array | None, vocab_size: int) -> mx.array:
    """Return the head's column of each token, ``OUTSIDE`` for one that it cannot propose."""
    if token_ids is None:
        return mx.arange(vocab_size, dtype=mx.int32)
    columns = np.full(vocab_size, OUTSIDE, np.int32)
    columns[np.array(token_ids)] = np.arange(len(token_ids))
    return mx.array(columns)
