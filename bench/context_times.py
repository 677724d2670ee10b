"""Whole rounds of each shape beside plain steps, on one prompt and one cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import numpy as np

from redrafter_mlx.bench.anatomy import DRAFT, VERIFY
from redrafter_mlx.bench.context_prompts import Context
from redrafter_mlx.config import PLAIN_BEAM_SHAPE, BeamShape, GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.decoder import RowLayout

SHAPES = (BeamShape(1, 4), BeamShape(2, 4))
# What a decode is allowed beyond what is timed, so that its last timed round is a whole one.
SPARE_TOKENS = 4 * max(shape.beam_length for shape in SHAPES)
_NUM_ATTENTION_TRIALS = 3
_BASE = GenerationConfig(ignore_eos=True, use_lookup=False, is_adaptive=False)


@dataclass(frozen=True, slots=True)
class Timing:
    """Rounds of one decode, each of them whole.

    Attributes:
        context: Tokens that the cache held at first, and the one that was run behind them.
        tokens: What the rounds brought, behind prefill's own token.
        num_rounds: Or plain steps.
        num_rows: That they verified.
        seconds: Of all of them.
        part_seconds: By part, where they were timed in parts.
    """

    context: int
    tokens: list[int]
    num_rounds: int
    num_rows: int
    seconds: float
    part_seconds: dict[str, float]

    @property
    def round_seconds(self) -> float:
        """Of one round."""
        return self.seconds / self.num_rounds

    @property
    def tokens_per_second(self) -> float:
        """Without prefill."""
        return len(self.tokens) / self.seconds

    @property
    def tokens_per_round(self) -> float:
        """1 for plain steps."""
        return len(self.tokens) / self.num_rounds


@dataclass(frozen=True, slots=True)
class _Mark:
    """The figures where the first token of a round came, the next round on its way."""

    time: float
    num_rows: int
    part_seconds: dict[str, float]


def time_rounds(
    context: Context, prompt: Sequence[int], config: GenerationConfig, num_tokens: int
) -> Timing:
    """Decode until whole rounds have brought so many tokens behind the first."""
    stats = DecodeStats()
    config = replace(config, max_tokens=num_tokens + SPARE_TOKENS)
    marks: list[_Mark] = []
    tokens: list[int] = []
    with closing(decode(context.model, context.kv_cache, prompt, config, stats)) as decoded:
        for token in decoded:
            if stats.num_rounds == len(marks):
                now = time.perf_counter()
                marks.append(_Mark(now, stats.verified_rows, dict(stats.part_seconds)))
                if len(tokens) > num_tokens:
                    break
            tokens.append(token)
    mx.synchronize()  # a round is still on its way
    # The last mark only tells that the round before it is over.
    first, last = marks[0], marks[-2]
    past = first.part_seconds
    parts = {name: total - past.get(name, 0.0) for name, total in last.part_seconds.items()}
    return Timing(
        context=stats.cached_tokens + 1,
        tokens=tokens[1:],
        num_rounds=len(marks) - 2,
        num_rows=last.num_rows - first.num_rows,
        seconds=last.time - first.time,
        part_seconds=parts,
    )


@dataclass(frozen=True, slots=True)
class ShapeTimes:
    """One shape beside plain steps on one prompt; what is told in steps is in those.

    Attributes:
        plain: Plain steps.
        rounds: Untouched.
        timed: In parts.
        plain_attention: Seconds of attention alone in a plain step.
        attention: The same in a pass over as many rows as a round has on average.
    """

    plain: Timing
    rounds: Timing
    timed: Timing
    plain_attention: float
    attention: float

    @property
    def plain_speed(self) -> float:
        """Tokens a second."""
        return self.plain.tokens_per_second

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.rounds.tokens_per_second

    @property
    def speedup(self) -> float:
        """Speed over plain speed."""
        return self.speed / self.plain_speed

    @property
    def tokens_per_round(self) -> float:
        """Over all rounds."""
        return len(self.rounds.tokens) / self.rounds.num_rounds

    @property
    def round_steps(self) -> float:
        """A round."""
        return self.rounds.round_seconds / self.plain.round_seconds

    @property
    def draft_steps(self) -> float:
        """The drafting in a round."""
        return self._part_steps(DRAFT)

    @property
    def verify_steps(self) -> float:
        """The target's pass in a round."""
        return self._part_steps(VERIFY)

    @property
    def rest_steps(self) -> float:
        """All else in a round."""
        return sum(map(self._part_steps, self.timed.part_seconds.keys() - {DRAFT, VERIFY}))

    @property
    def plain_attention_steps(self) -> float:
        """Attention in a plain step."""
        return self.plain_attention / self.plain.round_seconds

    @property
    def attention_steps(self) -> float:
        """Attention in a round."""
        return self.attention / self.plain.round_seconds

    @property
    def verify_speedup(self) -> float:
        """The speedup if a round were its verify alone."""
        return self.tokens_per_round / self.verify_steps

    @property
    def plain_milliseconds_left(self) -> float:
        """A plain step, attention left out."""
        return 1e3 * (self.plain.round_seconds - self.plain_attention)

    @property
    def milliseconds_left(self) -> float:
        """A round, attention left out."""
        return 1e3 * (self.rounds.round_seconds - self.attention)

    @property
    def is_text_equal(self) -> bool:
        """Whether the texts of all sides are one, as far as each goes."""
        sides = [side.tokens for side in (self.plain, self.rounds, self.timed)]
        length = min(map(len, sides))
        return all(tokens[:length] == sides[0][:length] for tokens in sides)

    def _part_steps(self, part: str) -> float:
        return self.timed.part_seconds[part] / self.timed.num_rounds / self.plain.round_seconds


def measure_prompt(context: Context, number: int, num_tokens: int) -> dict[BeamShape, ShapeTimes]:
    """Time every side on one prompt, beginning with another side on each."""
    prompt = context.read(number)
    sides = [(PLAIN_BEAM_SHAPE, 0), *((shape, every) for every in (0, 1) for shape in SHAPES)]
    start = number % len(sides)
    found: dict[tuple[BeamShape, int], Timing] = {}
    for shape, every in sides[start:] + sides[:start]:
        config = replace(_BASE, beam=shape, timed_every=every)
        found[shape, every] = time_rounds(context, prompt, config, num_tokens)
    plain_attention = attention_seconds(context, PLAIN_BEAM_SHAPE, 1)
    times = {}
    for shape in SHAPES:
        rounds = found[shape, 0]
        attention = attention_seconds(context, shape, round(rounds.num_rows / rounds.num_rounds))
        plain, timed = found[PLAIN_BEAM_SHAPE, 0], found[shape, 1]
        times[shape] = ShapeTimes(plain, rounds, timed, plain_attention, attention)
    return times


def attention_seconds(context: Context, shape: BeamShape, num_rows: int) -> float:
    """Return what attention alone takes in all layers of a pass, the median of a few trials."""
    config, buffers = context.model.target.config, context.kv_cache.arrays
    end = context.num_tokens + num_rows
    # Below each row the shape's width of branches: a chain where it is 1.
    parents = np.maximum(np.arange(num_rows, dtype=np.int32) - shape.beam_width, 0)
    tree = DraftTree.from_rows(np.zeros_like(parents), parents, np.zeros(num_rows, np.float32))
    mask = RowLayout.for_pass(num_rows, context.num_tokens, tree).mask
    # What they hold costs nothing, unless it made the scores underflow.
    queries = mx.zeros((1, config.num_heads, num_rows, config.head_dim), buffers[0].dtype)
    mx.eval(queries)
    attend = partial(mx.fast.scaled_dot_product_attention, queries, scale=1.0, mask=mask)
    pairs = list(zip(buffers[::2], buffers[1::2], strict=True))
    seconds = []
    for _ in range(_NUM_ATTENTION_TRIALS):
        started = time.perf_counter()
        mx.eval([attend(k=keys[:, :, :end], v=values[:, :, :end]) for keys, values in pairs])
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def measure(
    context: Context, num_tokens: int, on_progress: Callable[[str], object]
) -> list[dict[BeamShape, ShapeTimes]]:
    """Time every prompt, after one that warms up."""
    on_progress("reading")
    measure_prompt(context, 0, num_tokens)
    found = []
    for number in range(len(context.prompts)):
        on_progress(f"prompt {number + 1} of {len(context.prompts)}")
        found.append(measure_prompt(context, number, num_tokens))
    return found
