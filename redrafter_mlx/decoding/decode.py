"""The decode loop: one round is draft, verify, choose, accept, commit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from redrafter_mlx.config import BeamShape, GenerationConfig, SamplingConfig
from redrafter_mlx.decoding.beam import Draft, draft
from redrafter_mlx.decoding.sampling import choose
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.decoding.tree import Accepted, DraftTree, accept
from redrafter_mlx.decoding.wired import WIRED_LIMIT
from redrafter_mlx.errors import PromptError
from redrafter_mlx.loading.model import LoadedModel, default_beam_shape
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter
from redrafter_mlx.models.kv_cache import KVCache

GPU_PREFILL_STEP = 512
# Each chunk is what Ctrl-C waits for, and smaller ones cost a CPU nothing.
CPU_PREFILL_STEP = 128

# Called between the chunks of a prompt with the tokens that are read and their number in
# all, those that the cache held left out; where it returns False, reading ends there.
OnPrefill = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that a pass brought, in order; the first ``num_drafted`` were draft tokens."""

    tokens: list[int]
    num_drafted: int


@dataclass(slots=True)
class DecodeState:
    """What one decode carries from pass to pass.

    Attributes:
        kv_cache: Holds every emitted token but the last.
        hidden: (1, hidden_size), the target's last hidden state after its final norm.
        next_token: (1,) int32, chosen from ``hidden`` and not yet run.
        num_left: Tokens that may still be emitted; 0 once the answer has ended.
        stop_ids: Tokens that end the answer.
    """

    kv_cache: KVCache
    hidden: mx.array
    next_token: mx.array
    num_left: int
    stop_ids: frozenset[int]

    def take(self, tokens: list[int], num_drafted: int = 0) -> Run:
        """Cut what a pass brought where the answer ends, and count what is left of it."""
        tokens = tokens[: self.num_left]
        self.num_left -= len(tokens)
        for place, token in enumerate(tokens):
            if token in self.stop_ids:
                self.num_left = 0
                tokens = tokens[: place + 1]
                break
        return Run(tokens, num_drafted)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one host read brings.

    Attributes:
        path: Accepted rows, from the root.
        next_token: The target's own token behind them.
        tree: The next round's draft.
    """

    path: list[int]
    next_token: int
    tree: DraftTree


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
    with WIRED_LIMIT.raised():
        try:
            hidden = _prefill(model.target, kv_cache, prompt[kv_cache.offset :], on_prefill)
            if hidden is None:
                return
            next_token = _choose_next(model.target, hidden, kv_cache, config.sampling)
            state = DecodeState(kv_cache, hidden, next_token, num_left, stop_ids)
            for run in _runs(model, state, config, stats):
                for place, token in enumerate(run.tokens):
                    num_emitted += 1
                    stats.record_token(place + 1 if place < run.num_drafted else None)
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


def prefill_step() -> int:
    """Return how many tokens of a prompt are run at once."""
    return GPU_PREFILL_STEP if mx.default_device().type == mx.gpu else CPU_PREFILL_STEP


def _prefill(
    target: Decoder, kv_cache: KVCache, prompt: Sequence[int], on_prefill: OnPrefill | None
) -> mx.array | None:
    """Run the prompt in chunks, so that no command is very long.

    Returns:
        The last hidden state, (1, hidden_size); ``None`` where ``on_prefill`` ended it.
    """
    tokens = mx.array(np.asarray(prompt, np.int32))
    step = prefill_step()
    for start in range(0, len(prompt), step):
        if start > 0:
            mx.eval(kv_cache.arrays)
            if on_prefill is not None and on_prefill(start, len(prompt)) is False:
                return None
        chunk = tokens[start : start + step]
        hidden = target(chunk, kv_cache)
        kv_cache.commit(range(chunk.shape[0]))
    return hidden[-1:]


def _choose_next(
    target: Decoder, hidden: mx.array, kv_cache: KVCache, sampling: SamplingConfig
) -> mx.array:
    """Choose the token behind everything in the cache, (1,) int32."""
    return choose(target.logits(hidden), sampling, kv_cache.offset - 1)


def _runs(
    model: LoadedModel, state: DecodeState, config: GenerationConfig, stats: DecodeStats
) -> Iterator[Run]:
    shape = config.beam or default_beam_shape()
    if model.drafter is None or shape.num_draft_steps == 0 or shape.max_rows == 1:
        return _decode_plainly(model.target, state, config.sampling, stats)
    return _decode_in_rounds(model.target, model.drafter, state, shape, config.sampling, stats)


def _decode_plainly(
    target: Decoder, state: DecodeState, sampling: SamplingConfig, stats: DecodeStats
) -> Iterator[Run]:
    """Yield one token a pass; each pass is begun before the last one's token is read."""
    mx.async_eval(state.next_token)
    while state.num_left:
        token = state.next_token
        if state.num_left > 1:
            state.hidden = target(token, state.kv_cache)
            state.kv_cache.commit([0])
            state.next_token = _choose_next(target, state.hidden, state.kv_cache, sampling)
            mx.async_eval(state.next_token)
        if stats.emitted_tokens:
            stats.record_round(rows=1, depth=0)
        yield state.take(np.array(token).tolist())


def _decode_in_rounds(
    target: Decoder,
    drafter: Drafter,
    state: DecodeState,
    shape: BeamShape,
    sampling: SamplingConfig,
    stats: DecodeStats,
) -> Iterator[Run]:
    """Yield a round's tokens together: accepted draft tokens, then the target's own."""
    kv_cache = state.kv_cache
    drafted = draft(drafter, state.hidden, state.next_token, shape)
    result = _read_round(None, state.next_token, drafted)
    yield state.take([result.next_token])
    while state.num_left:
        tree = result.tree.pruned(shape.max_rows, max_depth=state.num_left - 1)
        hidden = target(mx.array(tree.tokens), kv_cache, tree)
        chosen = choose(target.logits(hidden), sampling, kv_cache.offset, tree.depths)
        accepted = accept(tree, chosen)
        state.hidden = hidden[accepted.last_row]
        state.next_token = chosen[accepted.last_row]
        drafted = draft(drafter, state.hidden, state.next_token, shape)
        result = _read_round(accepted, state.next_token, drafted)
        kv_cache.commit(result.path)
        stats.record_round(tree.num_rows, tree.max_depth)
        drafted_tokens = tree.tokens[result.path[1:]].tolist()
        yield state.take([*drafted_tokens, result.next_token], len(drafted_tokens))


def _read_round(accepted: Accepted | None, next_token: mx.array, drafted: Draft) -> RoundResult:
    """Read a round's outcome and the next round's draft off the device at once."""
    path = accepted.path if accepted else mx.zeros(1, mx.int32)
    parts = [path, next_token, drafted.tokens, drafted.parents]
    parts.append(drafted.log_probs.view(mx.int32))
    numbers = np.array(mx.concatenate(parts))
    ends = np.cumsum([part.shape[0] for part in parts])[:-1]
    rows, token, tokens, parents, bits = np.split(numbers, ends)
    root = np.zeros(1, np.int32)
    tree = DraftTree.from_rows(
        tokens=np.concatenate([token, tokens]),
        parents=np.concatenate([root, parents]),
        log_probs=np.concatenate([root, bits]).view(np.float32),
    )
    return RoundResult(rows[rows >= 0].tolist(), int(token[0]), tree)
