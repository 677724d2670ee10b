"""Drafted and plain decoding of one prompt, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from redrafter_mlx.cli import render
from redrafter_mlx.config import PLAIN_BEAM_SHAPE, GenerationConfig, SamplingConfig

if TYPE_CHECKING:
    from redrafter_mlx.decoding.stats import DecodeStats
    from redrafter_mlx.generation import Answer
    from redrafter_mlx.loading.model import LoadedModel

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast one way of decoding was, over all its timed runs.

    Attributes:
        tokens_per_second: Of decoding, without prefill.
        tokens_per_round: Tokens a target pass.
    """

    tokens_per_second: float
    tokens_per_round: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the token ids differ.

    Attributes:
        index: From 0.
        drafted: The id there, None at the end of a shorter answer; likewise ``plain``.
        margin: Gap there between the two best scores, None where the filters leave one token.
    """

    index: int
    drafted: int | None
    plain: int | None
    margin: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both speeds, and whether the token ids agree.

    Attributes:
        drafted: Of both timed runs; likewise ``plain``.
        counts: What was drafted and accepted in the two drafted runs together.
        num_tokens: Of an answer.
        difference: None where the ids agree.
    """

    drafted: Speed
    plain: Speed
    counts: DecodeStats
    num_tokens: int
    difference: Difference | None

    @property
    def speedup(self) -> float | None:
        """Drafted over plain; None where the answers are too short to be timed."""
        plain = self.plain.tokens_per_second
        return self.drafted.tokens_per_second / plain if plain else None

    @property
    def sentence(self) -> str:
        """The result in one line."""
        speedup = f"{self.speedup:.2f} times as fast; " if self.speedup else ""
        if self.difference is None:
            return f"{speedup}the same {render.counted(self.num_tokens, 'token id')}"
        where = self.difference
        gap = "" if where.margin is None else f"; the two best scores are {where.margin:.2g} apart"
        return (
            f"{speedup}the token ids differ from token {where.index + 1} on (drafted "
            f"{where.drafted}, plain {where.plain}{gap}): in low precision two tokens that are "
            "nearly as likely may change places, --dtype float32 makes that rare"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        values = {**asdict(self), "speedup": self.speedup, "agrees": self.difference is None}
        del values["counts"]
        return values


def compare(model: LoadedModel, prompt: Sequence[int], config: GenerationConfig) -> Comparison:
    """Decode the prompt twice each way.

    Both ways are warmed up, then timed in the order drafted, plain, plain, drafted, so that a
    machine that slows down as it gets warm is unfair to neither. No round is timed in parts,
    which would slow the drafted runs alone.

    Args:
        model: With a drafter, unless lookups draft.
        prompt: Token ids.
        config: The settings of both; only the draft differs.
    """
    from redrafter_mlx.generation import generate

    config = replace(config, timed_every=0)
    plain_config = replace(config, beam=PLAIN_BEAM_SHAPE)
    for settings in (config, plain_config):
        warm_up = replace(settings, max_tokens=min(settings.max_tokens, WARM_UP_TOKENS))
        generate(model, prompt, warm_up)
    order = (config, plain_config, plain_config, config)
    first, second, third, fourth = (generate(model, prompt, settings) for settings in order)
    return Comparison(
        drafted=_speed_of(first, fourth),
        plain=_speed_of(second, third),
        counts=_counts_of(first.stats, fourth.stats),
        num_tokens=len(first.tokens),
        difference=_first_difference(model, first, second, config.sampling),
    )


def _speed_of(*answers: Answer) -> Speed:
    """Return the mean speed, a token counting as much as any other."""
    num_tokens = sum(answer.stats.emitted_tokens - 1 for answer in answers)
    seconds = sum(answer.stats.decode_seconds for answer in answers)
    num_rounds = sum(answer.stats.num_rounds for answer in answers)
    return Speed(
        tokens_per_second=num_tokens / seconds if seconds else 0.0,
        tokens_per_round=num_tokens / num_rounds if num_rounds else 0.0,
    )


def _counts_of(first: DecodeStats, second: DecodeStats) -> DecodeStats:
    """Return the counts of two runs together, without times."""
    from redrafter_mlx.decoding.stats import DecodeStats

    def by_depth(left: list[int], right: list[int]) -> list[int]:
        return [sum(pair) for pair in zip_longest(left, right, fillvalue=0)]

    return DecodeStats(
        emitted_tokens=first.emitted_tokens + second.emitted_tokens,
        num_rounds=first.num_rounds + second.num_rounds,
        num_plain_steps=first.num_plain_steps + second.num_plain_steps,
        verified_rows=first.verified_rows + second.verified_rows,
        drafted_by_depth=by_depth(first.drafted_by_depth, second.drafted_by_depth),
        accepted_by_depth=by_depth(first.accepted_by_depth, second.accepted_by_depth),
        accepted_by_source=dict(
            Counter(first.accepted_by_source) + Counter(second.accepted_by_source)
        ),
    )


def _first_difference(
    model: LoadedModel, drafted: Answer, plain: Answer, sampling: SamplingConfig
) -> Difference | None:
    from redrafter_mlx.decoding.margin import choice_margin

    for index, (left, right) in enumerate(zip_longest(drafted.tokens, plain.tokens)):
        if left != right:
            prefix = [*plain.prompt_tokens, *plain.tokens[:index]]
            margin = choice_margin(model.target, prefix, sampling)
            return Difference(index, left, right, margin)
    return None
