"""The choice of a draft's shape: what each one promises, and what the best ones give."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from redrafter_mlx.config import PLAIN_BEAM_SHAPE, BeamShape, GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.measuring import (
    WIDEST,
    Measurements,
    Sample,
    measure,
    shapes_to_try,
)
from redrafter_mlx.decoding.profile import Profile, profile_key
from redrafter_mlx.decoding.round import Engine
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.generation import chat_prompt
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.prompts import tune_prompts

MAX_STEPS = 300  # what tuning may take, in plain steps
_NUM_TEXTS = 4
_NUM_MEASURED = 3
_NUM_TOKENS = 24


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
    _run(model, chat_prompt(model, tune_prompts()[0].text), PLAIN_BEAM_SHAPE, 8, stats)
    return stats.decode_seconds / (stats.emitted_tokens - 1)


def tune(model: LoadedModel, seconds: float, on_progress: Callable[[float], None]) -> Tuned:
    """Measure and choose the shape that gives the most tokens per second.

    Args:
        model: With a drafter.
        seconds: Time that may be spent.
        on_progress: Gets the share that is done, from 0 to 1.
    """
    deadline = time.perf_counter() + seconds
    prompts = [chat_prompt(model, prompt.text) for prompt in tune_prompts()]
    engine = Engine(
        model.target, model.drafter, model.target.make_kv_cache(), GenerationConfig().sampling
    )
    measured = measure(
        engine,
        prompts[:: len(prompts) // _NUM_TEXTS][:_NUM_TEXTS],
        lambda done: on_progress(0.8 * done),
    )
    candidates = rank(measured)
    tried: list[Candidate] = []
    for candidate in candidates[:_NUM_MEASURED]:
        if time.perf_counter() < deadline:
            candidate = _measured(model, prompts[1::5], candidate)
        tried.append(candidate)
    on_progress(1.0)
    candidates = [*_best_first(tried), *candidates[_NUM_MEASURED:]]
    return Tuned(tuple(candidates), _profile(model, measured, candidates[0]))


def rank(measured: Measurements) -> list[Candidate]:
    """Return every shape and row budget worth trying, plain decoding among them, best first."""
    plain = Candidate(PLAIN_BEAM_SHAPE, 1.0, 1.0 / measured.step_seconds)
    best = [plain]
    for shape in shapes_to_try():
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


def _best_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order by what was measured where all were, else by what is predicted."""
    if any(candidate.measured_per_second is None for candidate in candidates):
        return list(candidates)
    # The prediction averages over far more text than the short run that was timed.
    return sorted(candidates, key=lambda found: -found.predicted_per_second)


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


def _measured(
    model: LoadedModel, prompts: Sequence[Sequence[int]], candidate: Candidate
) -> Candidate:
    stats = [DecodeStats() for _ in prompts]
    for prompt, one in zip(prompts, stats, strict=True):
        _run(model, prompt, candidate.shape, _NUM_TOKENS, one)
    num_tokens = sum(one.emitted_tokens - 1 for one in stats)
    return replace(
        candidate, measured_per_second=num_tokens / sum(one.decode_seconds for one in stats)
    )


def _run(
    model: LoadedModel, prompt: Sequence[int], shape: BeamShape, max_tokens: int, stats: DecodeStats
) -> None:
    config = GenerationConfig(
        max_tokens=max_tokens, beam=shape, ignore_eos=True, use_lookup=False, is_adaptive=False
    )
    for _ in decode(model, model.target.make_kv_cache(), prompt, config, stats):
        pass


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
