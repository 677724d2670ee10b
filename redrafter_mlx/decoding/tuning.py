"""The choice of a draft's shape: what each one promises, and what the best ones give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise, starmap

import numpy as np

from redrafter_mlx.config import PLAIN_BEAM_SHAPE, BeamShape, GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.measuring import WIDEST, Measurements, Sample, measure
from redrafter_mlx.decoding.profile import Profile, profile_key
from redrafter_mlx.decoding.round import Engine
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.decoding.time_limit import TimeLimit
from redrafter_mlx.generation import chat_prompt
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.prompts import tune_prompts

MAX_STEPS = 300  # what tuning may take, in plain steps
_NUM_MEASURED = 3
_NUM_TOKENS = 24
_FIXED = GenerationConfig(ignore_eos=True, use_lookup=False, is_adaptive=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape with what is expected of it, and what was measured.

    Attributes:
        shape: With its row budget.
        tokens_per_round: Expected.
        predicted_per_second: Tokens; likewise ``measured_per_second``, ``None`` where the
            time did not allow it.
    """

    shape: BeamShape
    tokens_per_round: float
    predicted_per_second: float
    measured_per_second: float | None = None

    @property
    def round_seconds(self) -> float:
        """What a round is expected to take."""
        return self.tokens_per_round / self.predicted_per_second


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning found.

    Attributes:
        candidates: Best first.
        profile: For the best one.
    """

    candidates: tuple[Candidate, ...]
    profile: Profile


def step_seconds(model: LoadedModel) -> float:
    """Return what a plain step takes, from a few."""
    stats = DecodeStats()
    config = replace(_FIXED, max_tokens=8, beam=PLAIN_BEAM_SHAPE)
    prompt = chat_prompt(model, tune_prompts()[0].text)
    for _ in decode(model, model.target.make_kv_cache(), prompt, config, stats):
        pass
    return stats.decode_seconds / max(stats.num_rounds, 1)


def tune(model: LoadedModel, seconds: float, on_progress: Callable[[float], None]) -> Tuned:
    """Measure and choose the shape that gives the most tokens per second.

    Args:
        model: With a drafter.
        seconds: Time that may be spent; what has been measured by then must do.
        on_progress: Gets the share that is done, from 0 to 1.
    """
    limit = TimeLimit(seconds)
    prompts = [chat_prompt(model, prompt.text) for prompt in tune_prompts()]
    engine = Engine(model.target, model.drafter, model.target.make_kv_cache(), _FIXED.sampling)
    measured = measure(engine, prompts[::3], limit, lambda done: on_progress(0.8 * done))
    candidates = rank(measured)
    trial = _Trial(model, prompts[1::3], measured.prompt_seconds)
    for place in range(min(_NUM_MEASURED, len(candidates))):
        rest = _NUM_MEASURED - place
        candidates[place] = trial.run(candidates[place], limit.share(1 / rest))
        on_progress(1.0 - 0.2 * (rest - 1) / _NUM_MEASURED)
    return Tuned(tuple(candidates), _profile(model, measured, candidates[0]))


def rank(measured: Measurements) -> list[Candidate]:
    """Return each shape that was measured with its best row budget, and plain decoding.

    The best comes first by what is predicted; the runs that then check it are short.
    """
    best = [Candidate(PLAIN_BEAM_SHAPE, 1.0, 1.0 / measured.step_seconds)]
    for shape in starmap(BeamShape, measured.draft_seconds):
        full = 1 + shape.beam_width * shape.num_draft_steps
        budgets = (
            _candidate(measured, replace(shape, max_rows=rows)) for rows in range(2, full + 1)
        )
        best.append(max(budgets, key=lambda candidate: candidate.predicted_per_second))
    return sorted(best, key=lambda candidate: -candidate.predicted_per_second)


def acceptance_by_depth(texts: Iterable[Sequence[Sample]]) -> tuple[float, ...]:
    """Return the share of drafts with a right node at depth 1, 2, ... if all above are right."""
    reached = np.zeros(WIDEST.beam_length + 1)
    for sample in (sample for text in texts for sample in text):
        depth = max(
            d for d, right in zip(sample.tree.depths, sample.accepted, strict=True) if right
        )
        reached[: depth + 1] += 1
    pairs = zip(reached[1:-1], reached[:-2], strict=True)
    return tuple(float(here / above) if above else 0.0 for here, above in pairs)


def acceptance_by_log_prob(
    texts: Iterable[Sequence[Sample]], edges: Sequence[float] = (-8.0, -5.0, -3.0, -2.0, -1.0, -0.5)
) -> tuple[tuple[float, float, int], ...]:
    """Return (lower bound, share accepted, rows) for bins of the joint log-probability."""
    rows = [
        (float(value), right)
        for text in texts
        for sample in text
        for value, right in zip(sample.tree.log_probs[1:], sample.accepted[1:], strict=True)
    ]
    bounds = (-np.inf, *edges, 0.0)
    bins = []
    for low, high in pairwise(bounds):
        inside = [right for value, right in rows if low < value <= high]
        bins.append((max(low, -1e9), float(np.mean(inside)) if inside else 0.0, len(inside)))
    return tuple(bins)


def _profile(model: LoadedModel, measured: Measurements, best: Candidate) -> Profile:
    assert model.drafter is not None
    return Profile(
        key=profile_key(model.target, model.drafter),
        shape=best.shape,
        costs=measured.costs(best.shape),
        step_seconds=measured.step_seconds,
        acceptance_by_depth=acceptance_by_depth(measured.texts),
        acceptance_by_log_prob=acceptance_by_log_prob(measured.texts),
    )


class _Trial:
    """Decodes with one shape after the other, on prompts that are read once."""

    def __init__(
        self, model: LoadedModel, prompts: Sequence[Sequence[int]], prompt_seconds: float
    ) -> None:
        """Begin without anything read; a token of a prompt takes ``prompt_seconds``."""
        self._model = model
        self._texts = [(prompt, model.target.make_kv_cache()) for prompt in prompts]
        self._prompt_seconds = prompt_seconds

    def run(self, candidate: Candidate, limit: TimeLimit) -> Candidate:
        """Return the candidate with the tokens per second that it gave, if there was time."""
        stats = []
        for prompt, kv_cache in self._texts:
            reading = self._prompt_seconds * (len(prompt) - kv_cache.offset)
            if not limit.allows(reading + candidate.round_seconds):
                break
            stats.append(self._decode(candidate, prompt, kv_cache, limit))
        num_tokens = sum(one.emitted_tokens - 1 for one in stats)
        seconds = sum(one.decode_seconds for one in stats)
        return replace(candidate, measured_per_second=num_tokens / seconds if seconds else None)

    def _decode(
        self, candidate: Candidate, prompt: Sequence[int], kv_cache: KVCache, limit: TimeLimit
    ) -> DecodeStats:
        config = replace(_FIXED, max_tokens=_NUM_TOKENS, beam=candidate.shape)
        stats = DecodeStats()
        with closing(decode(self._model, kv_cache, prompt, config, stats)) as decoded:
            for _ in decoded:
                mean = stats.decode_seconds / max(stats.num_rounds, 1)
                if not limit.allows(max(mean, candidate.round_seconds)):
                    break
        return stats


def _candidate(measured: Measurements, shape: BeamShape) -> Candidate:
    num_tokens = _tokens_per_round(measured.texts, shape)
    cost = measured.costs(shape).of_round(shape.max_rows, shape.num_draft_steps)
    return Candidate(shape, num_tokens, num_tokens / (cost * measured.step_seconds))


def _tokens_per_round(texts: Iterable[Sequence[Sample]], shape: BeamShape) -> float:
    """Return the mean over walks along the texts, from every one of the first tokens.

    A narrower or shorter draft is taken for the part of the widest one that it would find.
    """
    num_tokens = num_rounds = 0
    for text in texts:
        kept = [1 + _num_accepted(sample, shape) for sample in text]
        for start in range(min(WIDEST.beam_length, len(kept))):
            place = start
            while place < len(kept):
                num_tokens += kept[place]
                num_rounds += 1
                place += kept[place]
    return num_tokens / max(num_rounds, 1)


def _num_accepted(sample: Sample, shape: BeamShape) -> int:
    tree = sample.tree
    order = np.argsort(-tree.scores(), kind="stable").tolist()
    fits: set[int] = set()
    for row in order:
        is_within = tree.depths[row] < shape.beam_length and sample.ranks[row] < shape.beam_width
        if row == 0 or (is_within and int(tree.parents[row]) in fits):
            fits.add(row)
        if len(fits) == shape.max_rows:
            break
    return max(int(tree.depths[row]) for row in fits if sample.accepted[row])
