"""Which positions each step trains on: a function of the seed and the lengths alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.training.corpus import Ids, Sample, answer_offsets
from redrafter_mlx.training.features import Hidden, HiddenReader, Shard

# Sequences whose chunks are shuffled together: their hidden states are in memory at once.
POOL_SAMPLES = 256
PADDING = -1

Chunks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Consecutive rows of several answers.

    Row r of a chunk holds the state from which answer token r was chosen, and that token.

    Attributes:
        hidden: (chunks, chunk_length + draft_length, hidden_size) float16.
        tokens: (chunks, chunk_length + draft_length) int32.
        num_rows: (chunks,) int32, rows that hold something; the rest is 0.
    """

    hidden: Hidden
    tokens: Ids
    num_rows: Ids


class SampleSet:
    """Sequences with their hidden states, on disk or run anew when asked for."""

    def __init__(self, target: Decoder, shards: Sequence[Shard]) -> None:
        """Number the sequences of all shards."""
        self._target = target
        self._shards = shards
        self._offsets = [answer_offsets(shard.samples) for shard in shards]
        self._places = [
            (number, place)
            for number, shard in enumerate(shards)
            for place in range(len(shard.samples))
        ]

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._places)

    def sample(self, index: int) -> Sample:
        """Return a sequence."""
        shard, place = self._places[index]
        return self._shards[shard].samples[place]

    def hidden(self, index: int) -> Hidden:
        """Return its hidden states, (answer tokens, hidden_size), the same ones each time."""
        shard, place = self._places[index]
        stored = self._shards[shard].hidden
        if stored is None:
            # By a new reader: what another has read before moves the last bits.
            return HiddenReader(self._target).read(self.sample(index))
        start, end = self._offsets[shard][place : place + 2]
        return np.asarray(stored[start:end])


def choose_held_out(num_samples: int, share: float, seed: int) -> list[int]:
    """Return the sequences to hold out, at least one if share > 0, and at most all but one.

    They come in random order, so that the first ones stand for the whole corpus.
    """
    order = np.random.default_rng([seed, 1]).permutation(num_samples)
    num_held = min(max(round(share * num_samples), int(share > 0)), max(num_samples - 1, 0))
    return order[:num_held].tolist()


def chunks_of(index: int, num_answer_tokens: int, length: int) -> Chunks:
    """Return (chunks, 2): the sequence and the row where each of its chunks begins."""
    # The last row is a label at most, never a position.
    starts = np.arange(0, num_answer_tokens - 1, length)
    return np.stack([np.full_like(starts, index), starts], axis=1)


def plan_epoch(
    sizes: Sequence[tuple[int, int]], length: int, num_chunks: int, seed: Sequence[int]
) -> Iterator[list[Chunks]]:
    """Yield the batches of an epoch, pool by pool.

    Args:
        sizes: Index and answer tokens of every sequence to train on.
        length: Positions a chunk.
        num_chunks: Chunks a batch; the last batch of a pool is padded.
        seed: Fixes the order.

    Yields:
        Batches of a pool, (num_chunks, 2) each: sequence and first row, ``PADDING`` where
        there is none.
    """
    random = np.random.default_rng(list(seed))
    order = random.permutation(len(sizes))
    for first in range(0, len(order), POOL_SAMPLES):
        pool = [sizes[place] for place in order[first : first + POOL_SAMPLES]]
        chunks = np.concatenate([chunks_of(index, size, length) for index, size in pool])
        chunks = random.permutation(chunks)
        missing = -len(chunks) % num_chunks
        chunks = np.concatenate([chunks, np.full((missing, 2), PADDING)])
        yield list(chunks.reshape(-1, num_chunks, 2))


def plan_steps(
    sizes: Sequence[tuple[int, int]], length: int, num_chunks: int, seed: int
) -> Iterator[list[Chunks]]:
    """Yield the pools of one epoch after another, without end."""
    for epoch in count():
        yield from plan_epoch(sizes, length, num_chunks, [seed, 2, epoch])


def gather(samples: SampleSet, pool: Sequence[Chunks], num_rows: int) -> Iterator[Batch]:
    """Yield a pool's batches, each sequence's hidden states fetched once.

    Args:
        samples: Where the sequences come from.
        pool: Batches as ``plan_epoch`` gives them.
        num_rows: Rows a chunk, those behind its positions included.
    """
    hidden: dict[int, Hidden] = {}
    for chunks in pool:
        for index in sorted(set(chunks[:, 0].tolist()) - hidden.keys() - {PADDING}):
            hidden[index] = samples.hidden(index)
        yield _batch(samples, hidden, chunks, num_rows)


def _batch(samples: SampleSet, hidden: dict[int, Hidden], chunks: Chunks, num_rows: int) -> Batch:
    width = next(iter(hidden.values())).shape[1]
    batch = Batch(
        np.zeros((len(chunks), num_rows, width), np.float16),
        np.zeros((len(chunks), num_rows), np.int32),
        np.zeros(len(chunks), np.int32),
    )
    for row, (index, start) in enumerate(chunks.tolist()):
        if index == PADDING:
            continue
        rows = hidden[index][start : start + num_rows]
        batch.hidden[row, : len(rows)] = rows
        batch.tokens[row, : len(rows)] = samples.sample(index).answer[start : start + num_rows]
        batch.num_rows[row] = len(rows)
    return batch
