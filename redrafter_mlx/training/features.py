"""The target's hidden states over a corpus, computed once and kept in half precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.segments import common_prefix_length
from redrafter_mlx.training.corpus import Corpus, Ids, Sample, answer_offsets, read_shard
from redrafter_mlx.training.files import LOAD_ERRORS, write_whole

HIDDEN_FOLDER = "hidden"
PREFILL_STEP = 512

Hidden = npt.NDArray[np.float16]


class HiddenReader:
    """Runs the target over samples, one after another.

    What a sample shares with the one before it, as a system prompt, is not run again.
    """

    def __init__(self, target: Decoder) -> None:
        """Begin with nothing read."""
        self._target = target
        self._kv_cache = target.make_kv_cache()
        self._cached = np.zeros(0, np.int32)

    def read(self, sample: Sample) -> Hidden:
        """Return what the target thought before each answer token.

        Returns:
            (answer tokens, hidden_size) float16, after the final norm: row j is the state
            from which answer token j was, or would have been, chosen.

        Raises:
            CheckpointError: A hidden state does not fit half precision.
        """
        num_answer_tokens = sample.num_answer_tokens
        if num_answer_tokens == 0:
            return np.zeros((0, self._target.config.hidden_size), np.float16)
        tokens = sample.tokens[:-1]
        shared = common_prefix_length(tokens.tolist(), self._cached.tolist())
        start = min(shared, sample.prompt_length - 1)
        self._kv_cache.rewind(start)
        self._cached = tokens
        hidden = np.concatenate([self._run(chunk) for chunk in _chunks(tokens[start:])])
        hidden = hidden[-num_answer_tokens:]
        _require_finite(hidden)
        return hidden

    def _run(self, tokens: Ids) -> Hidden:
        hidden = self._target(mx.array(tokens), self._kv_cache).astype(mx.float16)
        self._kv_cache.commit(range(len(tokens)))
        mx.eval(hidden, self._kv_cache.arrays)
        return np.array(hidden)


def _require_finite(hidden: Hidden) -> None:
    if not np.isfinite(hidden).all():
        raise CheckpointError(
            "The target's hidden states do not fit half precision, in which they are kept; choose "
            "another model."
        )


def _chunks(tokens: Ids) -> list[Ids]:
    return [tokens[start : start + PREFILL_STEP] for start in range(0, len(tokens), PREFILL_STEP)]


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A shard in memory, its hidden states on disk or not kept.

    Attributes:
        samples: Its sequences.
        hidden: (answer tokens of all samples, hidden_size) float16, mapped from disk;
            ``None`` where they are recomputed.
    """

    samples: list[Sample]
    hidden: Hidden | None


@dataclass(frozen=True, slots=True)
class FeatureProgress:
    """How far the pass over the corpus is: positions done, and all that are to be kept."""

    num_done: int
    num_positions: int


def prepare_features(
    target: Decoder,
    corpus: Corpus,
    max_bytes: int,
    report: Callable[[FeatureProgress], None],
) -> list[Shard]:
    """Open every shard, computing the hidden states that are not on disk yet.

    Each shard's hidden states are written whole, so a killed run goes on with the next.

    Args:
        target: The model that made the corpus.
        corpus: What to read.
        max_bytes: Most bytes of hidden states on disk; shards beyond it get none, but what
            ``distill`` kept is used.
        report: Called after each sample that was run.
    """
    hidden_size, vocab_size = target.config.hidden_size, target.config.vocab_size
    files = [hidden_path(path) for path in corpus.shards]
    shards = [read_shard(path, vocab_size) for path in corpus.shards]
    sizes = [int(answer_offsets(samples)[-1]) for samples in shards]
    fits = 2 * hidden_size * np.cumsum(sizes, dtype=np.int64) <= max_bytes
    is_kept = [fit or file.exists() for fit, file in zip(fits.tolist(), files, strict=True)]
    num_positions = sum(size for size, kept in zip(sizes, is_kept, strict=True) if kept)
    num_done, opened = 0, []
    for file, samples, size, kept in zip(files, shards, sizes, is_kept, strict=True):
        if not kept:
            opened.append(Shard(samples, None))
            continue
        if not file.exists():
            _compute(target, samples, file, num_done, num_positions, report)
        num_done += size
        opened.append(Shard(samples, _open_hidden(file, size, hidden_size)))
    return opened


def hidden_path(shard: Path) -> Path:
    """Return where a shard's hidden states lie."""
    return shard.parent / HIDDEN_FOLDER / f"{shard.stem}.npy"


def write_hidden(file: Path, parts: Sequence[Hidden]) -> None:
    """Write a shard's hidden states whole or not at all.

    Raises:
        CheckpointError: They cannot be written, or do not fit half precision.
    """
    joined = np.concatenate(parts)
    _require_finite(joined)
    write_whole(file, lambda opened: np.save(opened, joined, allow_pickle=False))


def _compute(
    target: Decoder,
    samples: list[Sample],
    file: Path,
    num_before: int,
    num_positions: int,
    report: Callable[[FeatureProgress], None],
) -> None:
    parts = [np.zeros((0, target.config.hidden_size), np.float16)]
    reader = HiddenReader(target)
    for sample in samples:
        parts.append(reader.read(sample))
        num_before += sample.num_answer_tokens
        report(FeatureProgress(num_before, num_positions))
    write_hidden(file, parts)


def _open_hidden(file: Path, num_rows: int, hidden_size: int) -> Hidden:
    try:
        hidden = np.load(file, mmap_mode="r", allow_pickle=False)
    except LOAD_ERRORS as error:
        raise CheckpointError(f"{file} cannot be read ({error}); remove it.") from error
    if hidden.shape != (num_rows, hidden_size) or hidden.dtype != np.float16:
        raise CheckpointError(
            f"{file} holds {hidden.dtype} of shape {hidden.shape}, its shard needs float16 of "
            f"{(num_rows, hidden_size)}; remove it."
        )
    return np.asarray(hidden) if num_rows == 0 else hidden
