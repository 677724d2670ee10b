"""Small corpora in memory and on disk, of random targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from redrafter_mlx.loading.target import identify
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.training.batches import Batch, SampleSet
from redrafter_mlx.training.corpus import (
    Corpus,
    Sample,
    create_corpus,
    open_corpus,
    shard_path,
    write_shard,
)
from redrafter_mlx.training.features import HiddenReader, Shard


def greedy_sample(target: Decoder, prompt: Sequence[int], num_tokens: int) -> Sample:
    """Let a target answer, one token a pass and without a cache."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        hidden = target(mx.array(tokens), target.make_kv_cache())
        tokens.append(int(np.array(mx.argmax(target.logits(hidden[-1:])))))
    return Sample(np.array(tokens, np.int32), len(prompt), 0.0)


def random_samples(num: int, seed: int = 0, vocab_size: int = 50) -> list[Sample]:
    """Return sequences of random tokens, marked as greedy answers."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 20, (num, 2))
    return [
        Sample(random.integers(0, vocab_size, prompt + answer).astype(np.int32), int(prompt), 0.0)
        for prompt, answer in sizes
    ]


def sample_set(target: Decoder, samples: Sequence[Sample]) -> SampleSet:
    """Run the target over samples and keep the hidden states in memory."""
    reader = HiddenReader(target)
    hidden = np.concatenate([reader.read(sample) for sample in samples])
    return SampleSet(target, [Shard(list(samples), hidden)])


def whole_batch(target: Decoder, sample: Sample, num_rows: int) -> Batch:
    """Return one chunk that begins with a sample's answer."""
    hidden = HiddenReader(target).read(sample)[:num_rows]
    size = len(hidden)
    batch = Batch(
        np.zeros((1, num_rows, hidden.shape[1]), np.float16),
        np.zeros((1, num_rows), np.int32),
        np.array([size], np.int32),
    )
    batch.hidden[0, :size], batch.tokens[0, :size] = hidden, sample.answer[:size]
    return batch


def corpus_on_disk(
    folder: Path, target: Decoder, samples: Sequence[Sample], shard_size: int = 4
) -> Corpus:
    """Write a corpus of shards of ``shard_size`` samples."""
    create_corpus(folder, identify("toy", target))
    for number, start in enumerate(range(0, len(samples), shard_size)):
        write_shard(shard_path(folder, "toy", number), samples[start : start + shard_size])
    return open_corpus(folder)
