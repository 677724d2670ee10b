"""The decode loop: one round is draft, verify, choose, accept, commit."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from redrafter_mlx.config import MAX_ROWS, GenerationConfig
from redrafter_mlx.decoding.anatomy import Stopwatch
from redrafter_mlx.decoding.lookup import LookupIndex
from redrafter_mlx.decoding.planner import Planner
from redrafter_mlx.decoding.prefill import OnPrefill, prefill
from redrafter_mlx.decoding.round import Engine, Flight, Outcome, Tip
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.decoding.wired import WIRED_LIMIT
from redrafter_mlx.errors import PromptError
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.kv_cache import KVCache

_MAX_WAIT = 0.8  # of a round, beyond which its time says nothing of the device
# A text that grows needs ever larger buffers, and MLX would keep all the smaller ones.
_TOKENS_BETWEEN_CLEARINGS = 256


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that a pass brought, in order.

    Attributes:
        tokens: Ids.
        sources: What drafted each of the first ones; the target chose those behind them.
    """

    tokens: list[int]
    sources: list[str]

    def source(self, place: int) -> str | None:
        """Return what drafted a token, ``None`` for the target's own."""
        return self.sources[place] if place < len(self.sources) else None


@dataclass(slots=True)
class DecodeState:
    """What one decode carries from pass to pass.

    Attributes:
        tip: Where the text ends.
        num_left: Tokens that may still be emitted; 0 once the answer has ended.
        stop_ids: Tokens that end the answer.
    """

    tip: Tip
    num_left: int
    stop_ids: frozenset[int]

    def take(self, tokens: list[int], sources: list[str] | None = None) -> Run:
        """Cut what a pass brought where the answer ends, and count what is left of it."""
        tokens = tokens[: self.num_left]
        self.num_left -= len(tokens)
        for place, token in enumerate(tokens):
            if token in self.stop_ids:
                self.num_left = 0
                tokens = tokens[: place + 1]
                break
        return Run(tokens, sources or [])


def decode(
    model: LoadedModel,
    kv_cache: KVCache,
    prompt: Sequence[int],
    config: GenerationConfig,
    stats: DecodeStats,
    on_prefill: OnPrefill | None = None,
) -> Generator[int, None, None]:
    """Yield the answer's token ids; an end-of-sequence token is the last one yielded.

    Closed or exhausted at any point, it leaves ``kv_cache`` holding the prompt and every
    yielded token but the last.

    Args:
        model: The target, with or without a drafter; the text is the same.
        kv_cache: Holds ``prompt[: kv_cache.offset]``; the rest, at least the last token, is
            prefilled.
        prompt: Token ids.
        config: Limits, sampling and the draft's shape.
        stats: Updated before each token is yielded.
        on_prefill: See ``OnPrefill``; an answer that it stops has no token.

    Raises:
        PromptError: The prompt is empty or leaves no room for an answer.
    """
    num_left = _room_for_answer(model.target, prompt, config)
    kv_cache.rewind(len(prompt) - 1)
    stop_ids = frozenset() if config.ignore_eos else model.eos_ids
    stats.prompt_tokens, stats.cached_tokens = len(prompt), kv_cache.offset
    num_emitted = 0
    engine = Engine(model.target, model.drafter, kv_cache, config.sampling)
    with WIRED_LIMIT.raised():
        try:
            hidden = prefill(model.target, kv_cache, prompt[kv_cache.offset :], on_prefill)
            if hidden is None:
                return
            state = DecodeState(engine.tip(hidden), num_left, stop_ids)
            planner = _planner(model, prompt, config)
            for run in _runs(engine, state, planner, stats, config.timed_every):
                for place, token in enumerate(run.tokens):
                    num_emitted += 1
                    stats.record_token(place + 1, run.source(place))
                    if num_emitted % _TOKENS_BETWEEN_CLEARINGS == 0:
                        mx.clear_cache()
                    yield token
        finally:
            # The first token is prefill's, and the last one is never in the cache.
            kv_cache.rewind(len(prompt) + max(num_emitted - 1, 0))


def _room_for_answer(target: Decoder, prompt: Sequence[int], config: GenerationConfig) -> int:
    if not prompt:
        raise PromptError("The prompt is empty; give at least one token.")
    max_positions = target.config.max_positions
    if len(prompt) >= max_positions:
        raise PromptError(
            f"The prompt has {len(prompt)} tokens and the model's context holds {max_positions} "
            "with the answer; shorten the prompt."
        )
    return most_tokens(config.max_tokens, len(prompt), max_positions)


def most_tokens(max_tokens: int, num_prompt_tokens: int, max_positions: int) -> int:
    """Return how long an answer can be: prompt and answer fill the context at most."""
    return min(max_tokens, max_positions - num_prompt_tokens)


def _planner(model: LoadedModel, prompt: Sequence[int], config: GenerationConfig) -> Planner:
    shape = config.beam or model.beam_shape
    has_drafter = model.drafter is not None and config.use_drafter
    is_drafting = shape.num_draft_steps > 0 and shape.max_rows > 1
    # A shape that was measured to be plain says nothing against lookups.
    has_lookup = config.use_lookup and (is_drafting or config.beam is None)
    model.pace.begin_answer(len(prompt))
    return Planner(
        model.pace,
        shape if has_drafter and is_drafting else None,
        lookup=LookupIndex(prompt) if has_lookup else None,
        is_adaptive=config.is_adaptive,
        # A tuned shape's budget is for the drafter's rows; a lookup's may repay more.
        max_rows=MAX_ROWS if config.is_adaptive and config.beam is None else shape.max_rows,
    )


def _runs(
    engine: Engine, state: DecodeState, planner: Planner, stats: DecodeStats, timed_every: int
) -> Generator[Run, None, None]:
    """Yield what each pass brings, once the device is at work on the next one."""
    shape = None if planner.num_plain_steps else planner.next_shape
    first = engine.read_tip(state.tip, shape)
    outcome: Outcome | None = first
    next_timed = 0  # plain steps are counted, too, but never timed: the next round makes up for one
    run = state.take([first.next_token])
    planner.observe(run.tokens)
    while state.num_left:
        if planner.num_plain_steps:
            run = yield from _plain_steps(engine, state, planner, stats, run)
            outcome = None
            continue
        if outcome is None or (planner.draft_shape is not None and outcome.tree.num_rows == 1):
            # The pass before drafted nothing: it was a plain one, or drafting was parked.
            outcome = engine.read_tip(state.tip, planner.draft_shape)
        started = time.perf_counter()
        is_timed = timed_every > 0 and stats.num_rounds >= next_timed
        next_timed = stats.num_rounds + timed_every if is_timed else next_timed
        watch = Stopwatch(stats, is_running=is_timed)
        tree = planner.tree(outcome.tree, state.num_left - 1)
        watch.lap("host")
        flight = Flight(engine, tree, planner.next_shape, watch)
        given_at = time.perf_counter()
        yield run
        wait = time.perf_counter() - given_at
        watch.skip()
        outcome = flight.land()
        watch.stop()
        state.tip = flight.tip
        seconds = time.perf_counter() - started
        # A reader who takes longer than the device hides what the round took.
        is_known = not is_timed and wait < _MAX_WAIT * seconds
        planner.record(tree, outcome.path, seconds if is_known else None)
        run = _landed(state, tree, outcome, stats)
        planner.observe(run.tokens)
    yield run


def _landed(state: DecodeState, tree: DraftTree, outcome: Outcome, stats: DecodeStats) -> Run:
    """Return a round's tokens: the accepted draft tokens, then the target's own."""
    stats.record_round(tree.num_rows, tree.max_depth)
    rows = outcome.path[1:]
    sources = ["lookup" if tree.is_looked_up[row] else "drafter" for row in rows]
    return state.take([*tree.tokens[rows].tolist(), outcome.next_token], sources)


def _plain_steps(
    engine: Engine, state: DecodeState, planner: Planner, stats: DecodeStats, run: Run
) -> Generator[Run, None, Run]:
    """Yield one token a pass, each pass begun before the last one's token is read.

    Args:
        engine: The model.
        state: Its tip is the token before.
        planner: Says how many steps there are, and when a lookup ends them earlier.
        stats: Counts them.
        run: What was brought before.

    Returns:
        What the last step brought, not yielded.
    """
    num_steps = min(planner.num_plain_steps, state.num_left)
    state.tip = engine.step(state.tip)
    read_at = None
    for number in range(1, num_steps + 1):
        yield run
        token = state.tip.next_token
        is_last = number == num_steps or planner.wants_round
        if not is_last:
            state.tip = engine.step(state.tip)
        run = state.take(np.array(token).tolist())
        now = time.perf_counter()
        planner.record_step(now - read_at if read_at is not None else None)
        read_at = now
        stats.record_round(rows=1, depth=0)
        planner.observe(run.tokens)
        if is_last or not state.num_left:
            break
    return run
