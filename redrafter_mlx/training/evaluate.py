"""What a drafter would save: its guesses walked along texts that its target wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.config import BeamShape
from redrafter_mlx.decoding.beam import draft
from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.drafter import Drafter, RecurrentDrafter
from redrafter_mlx.training.batches import Batch, Chunks, SampleSet, chunks_of, gather
from redrafter_mlx.training.corpus import Ids
from redrafter_mlx.training.loss import Objective, Scores, chunks_at_once
from redrafter_mlx.training.settings import TrainingConfig

_CHUNKS_AT_ONCE = 16

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Measured:
    """How a drafter does on sequences that it was not trained on.

    Attributes:
        loss: Mean loss of the pairs, weighted as in training.
        accuracy_by_depth: Share of right guesses at each depth, all before it given.
        tokens_per_round: Of a single beam as long as the drafted depths.
    """

    loss: float
    accuracy_by_depth: tuple[float, ...]
    tokens_per_round: float


@dataclass(frozen=True, slots=True)
class Walk:
    """A text gone through in rounds.

    Attributes:
        num_emitted: Tokens but the first, which prefill gives.
        num_rounds: Target passes that they took.
    """

    num_emitted: int
    num_rounds: int

    def __add__(self, other: Walk) -> Walk:
        """Return both together."""
        return Walk(self.num_emitted + other.num_emitted, self.num_rounds + other.num_rounds)

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens a target pass."""
        return self.num_emitted / self.num_rounds if self.num_rounds else 1.0


def measure(
    objective: Objective,
    network: RecurrentDrafter,
    samples: SampleSet,
    indexes: Sequence[int],
    config: TrainingConfig,
) -> Measured:
    """Measure a drafter on whole sequences.

    A guess is right if its pair counts (``Objective.weights``) and it is the target's own
    choice: the next token of a greedy answer; elsewhere the most probable token of the draft
    vocabulary.
    """
    tally = _Tally(samples, indexes, config.draft_length)
    num_chunks = min(_CHUNKS_AT_ONCE, chunks_at_once(network, config))
    groups = _all_chunks(samples, indexes, config.chunk_length, num_chunks)
    num_rows = config.chunk_length + config.draft_length
    for chunks, batch in zip(groups, gather(samples, groups, num_rows), strict=True):
        tally.add(chunks, batch, objective, objective.scores(network, batch))
    return tally.measured()


class _Tally:
    """Adds up how the chunks of some sequences do."""

    def __init__(self, samples: SampleSet, indexes: Sequence[int], depths: int) -> None:
        self._samples = samples
        sizes = {index: samples.sample(index).num_answer_tokens for index in indexes}
        self._hits = {index: np.zeros((size, depths), np.bool_) for index, size in sizes.items()}
        self._loss = self._weight = 0.0
        self._right, self._count = np.zeros(depths), np.zeros(depths)

    def add(self, chunks: Chunks, batch: Batch, objective: Objective, scores: Scores) -> None:
        is_right = self._is_right(chunks, batch, objective, scores)
        weight = float(np.array(scores.weight))
        self._loss += float(np.array(scores.loss)) * weight
        self._weight += weight
        self._right += is_right.sum(axis=(1, 2))
        self._count += np.array(scores.mask).sum(axis=(1, 2))
        for place, (index, start) in enumerate(chunks.tolist()):
            rows = self._hits[index][start : start + is_right.shape[2]]
            rows[:] = is_right[:, place, : len(rows)].T

    def _is_right(
        self, chunks: Chunks, batch: Batch, objective: Objective, scores: Scores
    ) -> Flags:
        """Return which guesses are right, (depths, chunks, positions)."""
        columns = objective.columns[mx.array(batch.tokens)]
        kinds = [self._samples.sample(index).is_greedy for index in chunks[:, 0].tolist()]
        labels = _labels(columns, scores.choices, mx.array(kinds))
        return np.array((scores.guesses == labels) & scores.mask)

    def measured(self) -> Measured:
        walks = sum((walk_hits(hits) for hits in self._hits.values()), Walk(0, 0))
        accuracy = self._right / np.maximum(self._count, 1)
        loss = self._loss / max(self._weight, 1e-9)
        return Measured(loss, tuple(accuracy.tolist()), walks.tokens_per_round)


def walk_hits(hits: Flags) -> Walk:
    """Go through a text with a single beam.

    Args:
        hits: (rows, depths), whether the guess at each depth behind a row is right.
    """
    accepted = np.cumprod(hits, axis=1).sum(axis=1)
    row = num_rounds = 0
    last = len(hits) - 1
    while row < last:
        row += int(accepted[row]) + 1
        num_rounds += 1
    return Walk(max(last, 0), num_rounds)


def walk_text(
    drafter: Drafter, hidden: npt.NDArray[np.floating], tokens: Ids, shape: BeamShape
) -> Walk:
    """Go through a text with the beams that decoding drafts.

    Args:
        drafter: Bound to its target.
        hidden: (tokens, hidden_size), the state from which each token was chosen.
        tokens: (tokens,), each the target's own choice.
        shape: Of the draft.
    """
    row = num_rounds = 0
    last = len(tokens) - 1
    if shape.num_draft_steps == 0:
        return Walk(max(last, 0), max(last, 0))
    while row < last:
        state = mx.array(hidden[row : row + 1]).astype(mx.float32)
        drafted = draft(drafter, state, mx.array(tokens[row : row + 1]), shape)
        tree = DraftTree.from_rows(
            np.concatenate([tokens[row : row + 1], np.array(drafted.tokens)]),
            np.concatenate([np.zeros(1, np.int32), np.array(drafted.parents)]),
            np.concatenate([np.zeros(1, np.float32), np.array(drafted.log_probs)]),
        )
        row += accepted_depth(tree, tokens[row + 1 : last]) + 1
        num_rounds += 1
    return Walk(max(last, 0), num_rounds)


def accepted_depth(tree: DraftTree, tokens: Ids) -> int:
    """Return how many of the tokens that follow the root a tree holds as a path."""
    alive = {0}
    for depth, token in enumerate(tokens.tolist()):
        alive = {
            row
            for row in range(1, tree.num_rows)
            if tree.parents[row] in alive and tree.tokens[row] == token
        }
        if not alive:
            return depth
    return len(tokens)


def _all_chunks(
    samples: SampleSet, indexes: Sequence[int], length: int, num_chunks: int
) -> list[Chunks]:
    """Return the chunks of some sequences, ``num_chunks`` together."""
    chunks = [
        chunks_of(index, samples.sample(index).num_answer_tokens, length) for index in indexes
    ]
    joined = np.concatenate(chunks) if chunks else np.zeros((0, 2), np.int64)
    return [joined[start : start + num_chunks] for start in range(0, len(joined), num_chunks)]


def _labels(columns: mx.array, choices: mx.array, is_greedy: mx.array) -> mx.array:
    """Return the column that is right for each pair, (depths, chunks, positions)."""
    depths, _, positions = choices.shape
    said = mx.stack([columns[:, depth : depth + positions] for depth in range(1, depths + 1)])
    return mx.where(is_greedy[None, :, None], said, choices)
