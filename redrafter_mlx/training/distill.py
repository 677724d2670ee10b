"""The target answers prompts in batches; what it wrote and thought goes into a corpus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np

from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.training.batch_decode import BatchState, decode_batch, prefill_batch
from redrafter_mlx.training.corpus import Ids, Sample, read_shard, shard_path, write_shard
from redrafter_mlx.training.features import Hidden, hidden_path, write_hidden
from redrafter_mlx.training.settings import DistillConfig

# A batch whose last sequences are few is compacted when this share of it has ended.
_COMPACT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class DistillProgress:
    """How far the target is.

    Attributes:
        num_prompts: Prompts answered, earlier runs included.
        num_tokens: Answer tokens in the corpus part, unfinished answers included.
        new_tokens: Those of this run.
        seconds: This run's time.
    """

    num_prompts: int
    num_tokens: int
    new_tokens: int
    seconds: float


def distill(
    target: Decoder,
    eos_ids: frozenset[int],
    prompts: Iterable[Ids],
    place: tuple[Path, str],
    config: DistillConfig,
    report: Callable[[DistillProgress], None],
) -> DistillProgress:
    """Answer prompts and add the answers to a corpus, a shard a batch.

    A shard that exists is not made again, so a killed run goes on behind its last one and
    gets the answers that it would have got.

    Args:
        target: The model that answers.
        eos_ids: Tokens that end an answer; the one it ended with is kept.
        prompts: Token ids, the same ones in the same order each time; empty ones and those
            longer than ``longest_prompt`` are left out.
        place: The corpus's folder, and the part of it (``DistillConfig.part``).
        config: How to answer. The end of the target's context ends an answer, too.
        report: Called after each token of the batch.

    Raises:
        CheckpointError: A shard cannot be read or written, or the target's hidden states do
            not fit half precision.
    """
    folder, part = place
    longest = longest_prompt(target, config)
    fitting = (prompt for prompt in prompts if is_fitting(prompt, longest))
    started = time.perf_counter()
    num_prompts = num_tokens = new_tokens = 0

    def progress(in_flight: int = 0) -> DistillProgress:
        seconds = time.perf_counter() - started
        return DistillProgress(num_prompts, num_tokens + in_flight, new_tokens + in_flight, seconds)

    for number, group in enumerate(_groups(fitting, config.batch_size)):
        if config.num_tokens is not None and num_tokens >= config.num_tokens:
            break
        path = shard_path(folder, part, number)
        if not path.exists():
            writer = _Writer(target, eos_ids, group, config, number)
            for in_flight in writer.run():
                report(progress(in_flight))
            samples = writer.save(path)
            new_tokens += sum(sample.num_answer_tokens for sample in samples)
        samples = read_shard(path, target.config.vocab_size)
        num_prompts += len(samples)
        num_tokens += sum(sample.num_answer_tokens for sample in samples)
    return progress()


def longest_prompt(target: Decoder, config: DistillConfig) -> int:
    """Return how many tokens a prompt may have."""
    return min(config.max_prompt_tokens, target.config.max_positions - 1)


def is_fitting(prompt: Ids, longest: int) -> bool:
    """Whether a prompt has a token and not too many."""
    return 0 < len(prompt) <= longest


class _Writer:
    """Answers one batch of prompts."""

    def __init__(
        self,
        target: Decoder,
        eos_ids: frozenset[int],
        prompts: Sequence[Ids],
        config: DistillConfig,
        number: int,
    ) -> None:
        self._target, self._eos_ids, self._config = target, eos_ids, config
        self._prompts = prompts
        context = target.config.max_positions
        self._limits = [min(config.max_tokens, context - len(prompt)) for prompt in prompts]
        first = number * config.batch_size
        self._temperatures = [
            config.temperatures[(first + row) % len(config.temperatures)]
            for row in range(len(prompts))
        ]
        self._key = mx.random.key(config.seed * 1_000_003 + number)
        self._answers: list[list[int]] = [[] for _ in prompts]
        self._hidden: list[list[Hidden]] = [[] for _ in prompts]

    def run(self) -> Iterator[int]:
        """Answer; yield the tokens so far after each step."""
        state = prefill_batch(self._target, self._prompts)
        rows = list(range(len(self._prompts)))
        for _ in range(self._config.max_tokens):
            tokens = self._choose(state, rows)
            hidden = np.array(state.hidden.astype(mx.float16))
            ended = self._record(rows, np.array(tokens).tolist(), hidden)
            yield sum(map(len, self._answers))
            if len(ended) == len(rows):
                break
            if len(ended) > _COMPACT_SHARE * len(rows):
                kept = [place for place in range(len(rows)) if place not in ended]
                state.keep(kept)
                tokens, rows = tokens[mx.array(kept)], [rows[place] for place in kept]
            decode_batch(self._target, state, tokens)
            mx.eval(state.arrays)

    def save(self, path: Path) -> list[Sample]:
        """Write the shard, its hidden states first; return its samples."""
        samples = [
            Sample(np.array([*prompt, *answer], np.int32), len(prompt), temperature)
            for prompt, answer, temperature in zip(
                self._prompts, self._answers, self._temperatures, strict=True
            )
        ]
        if self._config.keeps_hidden:
            write_hidden(hidden_path(path), [np.stack(rows) for rows in self._hidden])
        write_shard(path, samples)
        return samples

    def _choose(self, state: BatchState, rows: Sequence[int]) -> mx.array:
        """Choose each sequence's next token, (rows,) int32."""
        logits = self._target.logits(state.hidden).astype(mx.float32)
        best = mx.argmax(logits, axis=-1).astype(mx.int32)
        temperatures = [self._temperatures[row] for row in rows]
        warm = [place for place, temperature in enumerate(temperatures) if temperature > 0]
        # Drawn for every row of the batch, so that who has ended changes nobody's luck.
        self._key, key = mx.random.split(self._key)
        if not warm:
            return best
        draws = mx.random.uniform(shape=(len(self._prompts),), key=key)[mx.array(list(rows))]
        places = mx.array(warm)
        scaled = logits[places] / mx.array(temperatures)[places][:, None]
        best[places] = sample_rows(scaled, draws[places])
        return best

    def _record(self, rows: Sequence[int], tokens: list[int], hidden: Hidden) -> set[int]:
        """Keep what the running answers got; return the places of those that have ended."""
        ended = set()
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            if not self._has_ended(row):
                self._answers[row].append(token)
                self._hidden[row].append(hidden[place])
            if self._has_ended(row):
                ended.add(place)
        return ended

    def _has_ended(self, row: int) -> bool:
        answer = self._answers[row]
        return len(answer) == self._limits[row] or (bool(answer) and answer[-1] in self._eos_ids)


def sample_rows(logits: mx.array, draws: mx.array) -> mx.array:
    """Draw a token from each row's distribution, (rows,) int32.

    Args:
        logits: (rows, vocab_size).
        draws: (rows,), uniform in [0, 1).
    """
    sums = mx.cumsum(mx.softmax(logits, axis=-1), axis=-1)
    # Rounding may leave the sum under 1: the draw is taken of what there is.
    return (sums <= draws[:, None] * sums[:, -1:]).sum(axis=-1).astype(mx.int32)


def _groups(prompts: Iterable[Ids], size: int) -> Iterator[list[Ids]]:
    remaining = iter(prompts)
    while group := list(islice(remaining, size)):
        yield group
