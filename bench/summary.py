"""What the trials of a bench come to, configuration by configuration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from redrafter_mlx.bench.results import MLX_LM, PLAIN, BenchResults, Trial


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the most beside it.

    Attributes:
        num_values: That they are of; a single one has no spread.
    """

    median: float
    least: float
    most: float
    num_values: int = 1

    @property
    def is_known(self) -> bool:
        """Whether there is more than one value."""
        return self.num_values > 1


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one configuration.

    Attributes:
        tokens_per_second: All tokens over all decoding time of a pass over the questions;
            the spread is over the passes.
        over_plain: Speed over plain decoding's, question by question; the spread is over
            the questions. ``None`` where plain decoding was not run.
        over_mlx_lm: The same over mlx-lm's.
        num_passes: Passes over the questions, but for those that were broken off sooner.
        num_prompts: Questions and turns that it answered.
        tokens_per_round: Tokens but the first of each answer, over all rounds.
        rows_per_round: Rows that the target verified.
        milliseconds_per_round: All decoding time over all rounds.
        plain_share: Share of the rounds that verified no draft.
        acceptance_by_depth: Share of the rounds with a draft that deep which kept it.
        accepted_by_drafter: Tokens kept that the drafter proposed.
        accepted_by_lookup: Tokens kept from the lookup branch.
        time_to_first_token_seconds: Median.
        prompt_tokens_per_second: Prompt tokens over the time to the first token, all together.
        peak_memory_bytes: Most.
        num_answers: Prompts whose texts were held against plain decoding's.
        num_equal: Those of them whose text was the same in every pass.
    """

    name: str
    tokens_per_second: Spread
    over_plain: Spread | None
    over_mlx_lm: Spread | None
    num_passes: int
    num_prompts: int
    tokens_per_round: float
    rows_per_round: float
    milliseconds_per_round: float
    plain_share: float
    acceptance_by_depth: tuple[float, ...]
    accepted_by_drafter: int
    accepted_by_lookup: int
    time_to_first_token_seconds: float
    prompt_tokens_per_second: float
    peak_memory_bytes: int
    num_answers: int
    num_equal: int


def summarize(results: BenchResults, category: str | None = None) -> tuple[Summary, ...]:
    """Return a summary of each configuration that has trials, in their order.

    Args:
        results: What the bench found.
        category: Only the questions of this category.
    """
    trials = [trial for trial in results.trials if category in (None, trial.category)]
    by_name = _grouped(trials)
    names = [one.name for one in results.configurations if one.name in by_name]
    return tuple(_summary(name, by_name) for name in names)


def first_differences(trials: Iterable[Trial]) -> list[Trial]:
    """Return, for each prompt that a side answered otherwise than plainly, the first such trial."""
    found: dict[tuple[str, int, int], Trial] = {}
    for trial in trials:
        if trial.first_difference is not None:
            found.setdefault((trial.configuration, *_prompt(trial)), trial)
    return list(found.values())


def _prompt(trial: Trial) -> tuple[int, int]:
    return trial.question_id, trial.turn


def _grouped(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.configuration].append(trial)
    return dict(groups)


def _summary(name: str, by_name: dict[str, list[Trial]]) -> Summary:
    trials = by_name[name]
    rates = _rates_of_passes(trials)
    num_answers = len({_prompt(trial) for trial in trials if trial.is_compared})
    accepted_by_lookup = sum(trial.accepted_by_lookup for trial in trials)
    # Of nothing, every share is 0.
    rounds = sum(trial.num_rounds for trial in trials) or math.inf
    reading = sum(trial.time_to_first_token_seconds for trial in trials) or math.inf
    return Summary(
        name=name,
        tokens_per_second=spread(rates),
        over_plain=_over(trials, by_name.get(PLAIN)),
        over_mlx_lm=_over(trials, by_name.get(MLX_LM)),
        num_passes=len(rates),
        num_prompts=len({_prompt(trial) for trial in trials}),
        tokens_per_round=sum(trial.emitted_tokens - 1 for trial in trials) / rounds,
        rows_per_round=sum(trial.verified_rows for trial in trials) / rounds,
        milliseconds_per_round=1e3 * sum(trial.decode_seconds for trial in trials) / rounds,
        plain_share=sum(trial.num_plain_steps for trial in trials) / rounds,
        acceptance_by_depth=_acceptance(trials),
        accepted_by_drafter=sum(sum(one.accepted_by_depth) for one in trials) - accepted_by_lookup,
        accepted_by_lookup=accepted_by_lookup,
        time_to_first_token_seconds=median(one.time_to_first_token_seconds for one in trials),
        prompt_tokens_per_second=sum(trial.prompt_tokens for trial in trials) / reading,
        peak_memory_bytes=max(trial.peak_memory_bytes for trial in trials),
        num_answers=num_answers,
        num_equal=num_answers - len(first_differences(trials)),
    )


def have_no_spread(summaries: Sequence[Summary]) -> bool:
    """Whether all speeds are of a single pass, so that chance may explain any difference."""
    return bool(summaries) and not any(one.tokens_per_second.is_known for one in summaries)


def spread(values: Sequence[float]) -> Spread:
    """Return the median, the least and the most of at least one value."""
    return Spread(median(values), min(values), max(values), len(values))


def _rates_of_passes(trials: list[Trial]) -> list[float]:
    """Return a rate for each pass; one that was broken off counts only where all were."""
    passes: dict[int, list[Trial]] = defaultdict(list)
    for trial in trials:
        passes[trial.number].append(trial)
    longest = max(len(group) for group in passes.values())
    return [_rate(group) for group in passes.values() if len(group) == longest]


def _rate(trials: list[Trial]) -> float:
    seconds = sum(trial.decode_seconds for trial in trials)
    decoded = sum(trial.emitted_tokens - 1 for trial in trials)
    return decoded / seconds if seconds > 0 else 0.0


def _over(trials: list[Trial], baseline: list[Trial] | None) -> Spread | None:
    """Return the ratios of the median speeds, over the questions that both sides answered."""
    own, other = _median_rates(trials), _median_rates(baseline or [])
    ratios = [own[key] / other[key] for key in own if other.get(key, 0.0) > 0.0]
    return spread(ratios) if ratios else None


def _median_rates(trials: list[Trial]) -> dict[tuple[int, int], float]:
    rates: dict[tuple[int, int], list[float]] = defaultdict(list)
    for trial in trials:
        rates[_prompt(trial)].append(trial.tokens_per_second)
    return {key: median(values) for key, values in rates.items()}


def _acceptance(trials: list[Trial]) -> tuple[float, ...]:
    depth = max(len(trial.drafted_by_depth) for trial in trials)
    shares = []
    for level in range(depth):
        deep = [trial for trial in trials if len(trial.drafted_by_depth) > level]
        drafted = sum(trial.drafted_by_depth[level] for trial in deep)
        accepted = sum(trial.accepted_by_depth[level] for trial in deep)
        shares.append(accepted / drafted if drafted else 0.0)
    return tuple(shares)
