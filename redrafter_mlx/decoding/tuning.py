"""The choice of a draft's shape: what each one promises, and what the best ones give."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise, starmap

import numpy as np
import numpy.typing as npt

from redrafter_mlx.config import PLAIN_BEAM_SHAPE, BeamShape, GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.measuring import Measurements, measure
from redrafter_mlx.decoding.profile import Profile, profile_key
from redrafter_mlx.decoding.round import Engine
from redrafter_mlx.decoding.samples import WIDEST, Opening, Sample
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.decoding.time_limit import TimeLimit
from redrafter_mlx.generation import chat_prompt
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.prompts import tune_prompts

MAX_STEPS = 300  # what tuning may take, in plain steps
_MEASURE_SHARE = 0.7  # of the time; the rest checks the best shapes
_NUM_CHECKED = 5
_NUM_ROUNDS = 3  # of one shape at a turn
_MAX_SWEEPS = 12
_TRUST = 5.0  # rows that a drafter is taken to have guessed as well as it promised
_FIXED = GenerationConfig(ignore_eos=True, use_lookup=False, is_adaptive=False)

Chances = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape with what is expected of it, and what was measured.

    Attributes:
        shape: With its row budget.
        tokens_per_round: Along texts that the model wrote.
        predicted_seconds: A round, from the times of its parts.
        trials: Of the decode loop, in turn with those of the other shapes; empty where the
            time did not allow any.
    """

    shape: BeamShape
    tokens_per_round: float
    predicted_seconds: float
    trials: tuple[DecodeStats, ...] = ()

    @property
    def predicted_per_second(self) -> float:
        """Tokens per second from predicted rounds."""
        return self.tokens_per_round / self.predicted_seconds

    @property
    def measured_per_second(self) -> float | None:
        """Tokens per second from measured rounds."""
        if not self.trials:
            return None
        seconds = statistics.median(trial.seconds_per_round for trial in self.trials)
        return self.tokens_per_round / seconds


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning found.

    Attributes:
        candidates: Best first: by what was measured, then the others by what is predicted.
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
    return stats.seconds_per_round


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
    measured = measure(
        engine,
        prompts[::2],
        limit.share(_MEASURE_SHARE),
        lambda done: on_progress(_MEASURE_SHARE * done),
    )
    candidates = _checked(model, rank(measured), measured.openings, limit)
    candidates.sort(key=lambda found: -(found.measured_per_second or 0.0))
    on_progress(1.0)
    return Tuned(tuple(candidates), _profile(model, measured, candidates[0]))


def rank(measured: Measurements) -> list[Candidate]:
    """Return each shape that was measured with its best row budget, and plain decoding.

    The best comes first by what is predicted.
    """
    best = [Candidate(PLAIN_BEAM_SHAPE, 1.0, measured.step_seconds)]
    calibration = _calibration(measured.texts)
    for shape in starmap(BeamShape, measured.draft_seconds):
        full = 1 + shape.beam_width * shape.num_draft_steps
        budgets = (
            _candidate(measured, replace(shape, max_rows=rows), calibration)
            for rows in range(2, full + 1)
        )
        best.append(max(budgets, key=lambda candidate: candidate.predicted_per_second))
    return sorted(best, key=lambda candidate: -candidate.predicted_per_second)


def acceptance_by_depth(texts: Iterable[Sequence[Sample]]) -> tuple[float, ...]:
    """Return the share of drafts with a right node at depth 1, 2, ... if all above are right."""
    reached = np.zeros(WIDEST.beam_length)
    for sample in _judged(texts):
        depth = max(
            d for d, right in zip(sample.tree.depths, sample.accepted, strict=True) if right
        )
        reached[: depth + 1] += 1
    return tuple(float(here / above) if above else 0.0 for above, here in pairwise(reached))


def acceptance_by_log_prob(
    texts: Iterable[Sequence[Sample]], edges: Sequence[float] = (-8.0, -5.0, -3.0, -2.0, -1.0, -0.5)
) -> tuple[tuple[float, float, int], ...]:
    """Return (lower bound, share accepted, rows) for bins of the joint log-probability."""
    rows = [
        (float(value), right)
        for sample in _judged(texts)
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


def _checked(
    model: LoadedModel,
    candidates: Sequence[Candidate],
    openings: Sequence[Opening],
    limit: TimeLimit,
) -> list[Candidate]:
    """Return the candidates with measured rounds of plain decoding and of the best ones.

    They take turns behind one prompt after the other, until a sweep would not end in time.
    The first turns of plain decoding and of the best one are taken in any case.
    """
    found = list(candidates)
    places = sorted(range(len(found)), key=lambda place: found[place].shape.num_draft_steps > 0)
    places = places[: 1 + _NUM_CHECKED]
    longest = sum((_NUM_ROUNDS + 2) * found[place].predicted_seconds for place in places)
    for sweep, opening in enumerate(islice(cycle(openings), _MAX_SWEEPS)):
        if sweep > 0 and not limit.allows(longest):
            break
        started = time.perf_counter()
        for turn, place in enumerate(places):
            one = found[place]
            if (sweep == 0 and turn < 2) or limit.allows(one.predicted_seconds):
                trial = _trial(model, one.shape, opening, limit)
                if trial.num_rounds:
                    found[place] = replace(one, trials=(*one.trials, trial))
        longest = max(longest, time.perf_counter() - started)
    return _corrected(found)


def _trial(model: LoadedModel, shape: BeamShape, opening: Opening, limit: TimeLimit) -> DecodeStats:
    """Return the figures of a few rounds behind a prompt, of one if there is room for it."""
    config = replace(_FIXED, beam=shape)
    stats = DecodeStats()
    with closing(decode(model, opening.kv_cache, opening.prompt, config, stats)) as decoded:
        for _ in decoded:
            is_over = not limit.allows(stats.seconds_per_round)
            if stats.num_rounds >= _NUM_ROUNDS or (stats.num_rounds and is_over):
                break
    return stats


def _corrected(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Scale what drafts promise by how much of it came true in the trials of all shapes.

    Of the last round of a trial only the first token was taken.
    """
    right = promised = _TRUST
    for candidate in candidates:
        for trial in candidate.trials:
            num_rounds = trial.num_rounds - 1
            right += max(trial.emitted_tokens - 2 - num_rounds, 0)
            promised += num_rounds * (candidate.tokens_per_round - 1)
    share = right / promised
    return [
        replace(one, tokens_per_round=1 + share * (one.tokens_per_round - 1)) for one in candidates
    ]


def _candidate(measured: Measurements, shape: BeamShape, calibration: float) -> Candidate:
    cost = measured.costs(shape).of_round(shape.max_rows, shape.num_draft_steps)
    return Candidate(
        shape, _tokens_per_round(measured.texts, shape, calibration), cost * measured.step_seconds
    )


def _judged(texts: Iterable[Sequence[Sample]]) -> Iterator[Sample]:
    return (sample for text in texts for sample in text if sample.accepted)


def _calibration(texts: Sequence[Sequence[Sample]]) -> float:
    """Return how many drafted rows were right for each one that their probabilities promised."""
    right = promised = _TRUST
    for sample in _judged(texts):
        right += sum(sample.accepted[1:])
        promised += float(np.exp(sample.tree.log_probs[1:]).sum())
    return right / promised


def _tokens_per_round(
    texts: Iterable[Sequence[Sample]], shape: BeamShape, calibration: float
) -> float:
    """Return the mean over all walks along the texts, from every one of the first tokens.

    A round goes on by as many tokens as its rows promise. What was right and wrong sets only
    how far they are trusted: a few dozen drafts are too few to compare shapes by luck.
    """
    num_tokens = num_rounds = 0.0
    for text in texts:
        visits = np.zeros(len(text) + WIDEST.beam_length)
        visits[: WIDEST.beam_length] = 1.0
        for place, sample in enumerate(text):
            reached = _chances_by_depth(sample, shape, calibration)
            num_tokens += visits[place] * reached.sum()
            num_rounds += visits[place]
            ends = reached - np.append(reached[1:], 0.0)
            visits[place + 1 : place + 1 + len(ends)] += visits[place] * ends
    return float(num_tokens / max(num_rounds, 1.0))


def _chances_by_depth(sample: Sample, shape: BeamShape, calibration: float) -> Chances:
    """Return (beam_length,) the chances that a round is right down to depth 0, 1, ...

    A narrower or shorter draft is taken for the part of the widest one that it would find.
    """
    tree = sample.tree
    chances = np.zeros(shape.beam_length)
    for row in _rows_within(sample, shape):
        chances[tree.depths[row]] += calibration * np.exp(tree.log_probs[row])
    chances[0] = 1.0
    return np.minimum(chances, 1.0)


def _rows_within(sample: Sample, shape: BeamShape) -> set[int]:
    tree = sample.tree
    order = np.argsort(-tree.scores(), kind="stable").tolist()
    fits: set[int] = set()
    for row in order:
        is_within = tree.depths[row] < shape.beam_length and sample.ranks[row] < shape.beam_width
        if row == 0 or (is_within and int(tree.parents[row]) in fits):
            fits.add(row)
        if len(fits) == shape.max_rows:
            break
    return fits
