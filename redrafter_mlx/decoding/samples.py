"""Texts that the model writes, a draft at each of their tokens, and how they go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from redrafter_mlx.config import BeamShape
from redrafter_mlx.decoding.prefill import prefill
from redrafter_mlx.decoding.round import Engine, Tip
from redrafter_mlx.decoding.time_limit import TimeLimit
from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.kv_cache import KVCache

WIDEST = BeamShape(beam_width=4, beam_length=5)
NUM_PLAIN_STEPS = 96


@dataclass(frozen=True, slots=True)
class Sample:
    """A draft below one token of a text that the model wrote, and how it goes on.

    Attributes:
        tree: All nodes of the widest draft.
        ranks: (rows,) each node's rank among those of its depth.
        accepted: (rows,) bool, whether the text goes on as the node says; empty where it ends
            before the draft does.
    """

    tree: DraftTree
    ranks: tuple[int, ...]
    accepted: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A prompt, and a cache that begins with it."""

    prompt: Sequence[int]
    kv_cache: KVCache


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A text that the model wrote.

    Attributes:
        opening: Its cache holds the text, too.
        trees: The widest draft at each of its tokens, which is the draft's root.
        tip: Behind the last of them.
        step_seconds: Each step.
    """

    opening: Opening
    trees: list[DraftTree]
    tip: Tip
    step_seconds: list[float]


def write_all(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    limit: TimeLimit,
    on_progress: Callable[[float], None],
) -> list[Written]:
    """Begin an answer to each prompt; one at least, and no further one without the time for it.

    Args:
        engine: A model with a drafter; its cache is not used.
        prompts: Token ids.
        limit: Where it is over, what has been written by then must do.
        on_progress: Gets the share that is done, from 0 to 1.
    """
    written: list[Written] = []
    longest = 0.0
    for place, prompt in enumerate(prompts):
        if not limit.allows(longest):
            break
        started = time.perf_counter()
        engine = replace(engine, kv_cache=engine.target.make_kv_cache())
        num_steps = NUM_PLAIN_STEPS // len(prompts)
        written.append(_write(engine, prompt, num_steps, limit.share(1 / (len(prompts) - place))))
        longest = max(longest, time.perf_counter() - started)
        on_progress((place + 1) / len(prompts))
    return written


def _write(engine: Engine, prompt: Sequence[int], num_steps: int, limit: TimeLimit) -> Written:
    """Write a text, long enough for one sample at least."""
    hidden = prefill(engine.target, engine.kv_cache, prompt)
    assert hidden is not None
    tip = engine.tip(hidden)
    mx.eval(tip.next_token)
    trees: list[DraftTree] = []
    seconds: list[float] = []
    latest = 0.0
    while len(trees) < num_steps:
        if len(trees) >= WIDEST.beam_length and not limit.allows(latest):
            break
        started = time.perf_counter()
        trees.append(engine.read_tip(tip, WIDEST).tree)
        drafted = time.perf_counter()
        tip = engine.step(tip)
        mx.eval(tip.hidden, tip.next_token)
        ended = time.perf_counter()
        seconds.append(ended - drafted)
        latest = ended - started
    return Written(Opening(prompt, engine.kv_cache), trees, tip, seconds)


def samples_of(written: Written) -> Iterator[Sample]:
    """Yield the draft at each token."""
    text = [int(tree.tokens[0]) for tree in written.trees]
    text += np.array(written.tip.next_token).tolist()
    for place, tree in enumerate(written.trees):
        following = text[place + 1 :]
        is_known = len(following) >= WIDEST.num_draft_steps
        yield Sample(tree, _ranks(tree), _accepted(tree, following) if is_known else ())


def _accepted(tree: DraftTree, following: Sequence[int]) -> tuple[bool, ...]:
    accepted = [True]
    for row in range(1, tree.num_rows):
        depth, parent = int(tree.depths[row]), int(tree.parents[row])
        accepted.append(accepted[parent] and int(tree.tokens[row]) == following[depth - 1])
    return tuple(accepted)


def _ranks(tree: DraftTree) -> tuple[int, ...]:
    """Return each node's place among those of its depth, by joint log-probability."""
    ranks = [0] * tree.num_rows
    for depth in range(1, tree.max_depth + 1):
        rows = np.flatnonzero(tree.depths == depth)
        for place, row in enumerate(sorted(rows.tolist(), key=lambda row: -tree.log_probs[row])):
            ranks[row] = place
    return tuple(ranks)
