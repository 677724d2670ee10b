"""What the parts of a round take on this machine, and how a model's own texts go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import numpy as np

from redrafter_mlx.config import MAX_ROWS, BeamShape
from redrafter_mlx.decoding.beam import draft
from redrafter_mlx.decoding.pace import RoundCosts
from redrafter_mlx.decoding.prefill import prefill
from redrafter_mlx.decoding.round import Engine, Tip
from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.kv_cache import KVCache

WIDEST = BeamShape(beam_width=4, beam_length=5)
ROWS = (*range(1, 17), 20, 24, 28, 32)
FAR_ROWS = (1, 2, 4, 8, 16)  # measured again at FAR_CONTEXT
FAR_CONTEXT = 2048
NUM_PLAIN_STEPS = 80


@dataclass(frozen=True, slots=True)
class Sample:
    """A draft below one token of a text that the model wrote, and how it goes on.

    Attributes:
        tree: All nodes of the widest draft.
        ranks: (rows,) each node's rank among those of its depth.
        accepted: (rows,) bool, whether the text goes on as the node says.
    """

    tree: DraftTree
    ranks: tuple[int, ...]
    accepted: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """What a machine takes for the parts of a round.

    Attributes:
        step_seconds: A plain step.
        verify_seconds: A pass, by rows, at a short context.
        far_verify_seconds: The same at ``FAR_CONTEXT`` tokens.
        draft_seconds: A draft, by (beam_width, beam_length).
        texts: For each text the samples along it.
    """

    step_seconds: float
    verify_seconds: dict[int, float]
    far_verify_seconds: dict[int, float]
    draft_seconds: dict[tuple[int, int], float]
    texts: tuple[tuple[Sample, ...], ...]

    def costs(self, shape: BeamShape) -> RoundCosts:
        """Return the costs of a shape's rounds, in plain steps."""
        one = self.verify_seconds[1]
        last = max(self.verify_seconds)
        verify = np.interp(
            np.arange(1, last + 1),
            sorted(self.verify_seconds),
            [self.verify_seconds[rows] / one for rows in sorted(self.verify_seconds)],
        )
        # More rows never cost less: a budget may always leave a row out.
        verify = np.maximum.accumulate(verify)
        drafting = self.draft_seconds.get((shape.beam_width, shape.beam_length), 0.0)
        per_step = drafting / max(shape.num_draft_steps, 1) / self.step_seconds
        return RoundCosts(verify=tuple(verify.tolist()), draft_step=per_step)


def shapes_to_try() -> Iterator[BeamShape]:
    """Yield every width and length up to ``WIDEST``."""
    for width in range(1, WIDEST.beam_width + 1):
        for length in range(2, WIDEST.beam_length + 1):
            yield BeamShape(width, length)


def measure(
    engine: Engine, prompts: Sequence[Sequence[int]], on_progress: Callable[[float], None]
) -> Measurements:
    """Measure the parts of a round, in less than ``MAX_STEPS`` plain steps.

    Args:
        engine: A model with a drafter; its cache is not used.
        prompts: Token ids; an answer to each is begun.
        on_progress: Gets the share that is done, from 0 to 1.
    """
    texts, seconds = [], []
    num_steps = NUM_PLAIN_STEPS // len(prompts)
    for place, prompt in enumerate(prompts):
        engine = replace(engine, kv_cache=engine.target.make_kv_cache())
        written = _write(engine, prompt, num_steps)
        seconds += written.seconds
        texts.append(tuple(_samples(engine, written)))
        on_progress(0.5 * (place + 1) / len(prompts))
    verify = _verify_seconds(engine, ROWS)
    on_progress(0.8)
    _lengthen(engine.kv_cache, min(FAR_CONTEXT, engine.target.config.max_positions - MAX_ROWS))
    far = _verify_seconds(engine, FAR_ROWS)
    on_progress(0.9)
    drafts = {
        (shape.beam_width, shape.beam_length): _draft_seconds(engine, written.tips[-1], shape)
        for shape in shapes_to_try()
    }
    on_progress(1.0)
    return Measurements(float(np.median(seconds)), verify, far, drafts, tuple(texts))


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """A text that the model wrote: its tokens, the tip at each, and the time of each step."""

    tokens: list[int]
    tips: list[Tip]
    seconds: list[float]


def _write(engine: Engine, prompt: Sequence[int], num_steps: int) -> _Written:
    hidden = prefill(engine.target, engine.kv_cache, prompt)
    assert hidden is not None
    tip = engine.tip(hidden)
    tips, tokens, seconds = [tip], [], []
    mx.eval(tip.next_token)
    for _ in range(num_steps):
        started = time.perf_counter()
        tip = engine.step(tip)
        tokens.append(int(np.array(tips[-1].next_token)[0]))
        mx.eval(tip.hidden, tip.next_token)
        seconds.append(time.perf_counter() - started)
        tips.append(tip)
    tokens.append(int(np.array(tip.next_token)[0]))
    return _Written(tokens, tips, seconds)


def _samples(engine: Engine, written: _Written) -> Iterator[Sample]:
    """Yield the widest draft at each token that the text goes on far enough behind."""
    for place in range(len(written.tokens) - WIDEST.num_draft_steps):
        tree = engine.read_tip(written.tips[place], WIDEST).tree
        following = written.tokens[place + 1 : place + 1 + WIDEST.num_draft_steps]
        accepted = [True]
        for row in range(1, tree.num_rows):
            depth, parent = int(tree.depths[row]), int(tree.parents[row])
            accepted.append(accepted[parent] and int(tree.tokens[row]) == following[depth - 1])
        yield Sample(tree, _ranks(tree), tuple(accepted))


def _ranks(tree: DraftTree) -> tuple[int, ...]:
    """Return each node's place among those of its depth, by joint log-probability."""
    ranks = [0] * tree.num_rows
    for depth in range(1, tree.max_depth + 1):
        rows = np.flatnonzero(tree.depths == depth)
        for place, row in enumerate(sorted(rows.tolist(), key=lambda row: -tree.log_probs[row])):
            ranks[row] = place
    return tuple(ranks)


def _verify_seconds(engine: Engine, counts: Sequence[int]) -> dict[int, float]:
    """Return the time of a pass by rows, the better of two."""
    return {rows: min(_timed(partial(_verify, engine, rows)) for _ in range(2)) for rows in counts}


def _verify(engine: Engine, rows: int) -> mx.array:
    """Run a tree that branches at the root, and get its logits."""
    tokens = np.arange(rows, dtype=np.int32) % engine.target.config.vocab_size
    parents = np.maximum(np.arange(rows, dtype=np.int32) - 2, 0)
    tree = DraftTree.from_rows(tokens, parents, np.zeros(rows, np.float32))
    hidden = engine.target(mx.array(tokens), engine.kv_cache, tree)
    return engine.target.logits(hidden)


def _draft_seconds(engine: Engine, tip: Tip, shape: BeamShape) -> float:
    assert engine.drafter is not None
    drafter = engine.drafter

    def once() -> mx.array:
        return draft(drafter, tip.hidden, tip.next_token, shape).log_probs

    mx.eval(once())
    return min(_timed(once) for _ in range(2))


def _timed(build: Callable[[], mx.array]) -> float:
    started = time.perf_counter()
    mx.eval(build())
    return time.perf_counter() - started


def _lengthen(kv_cache: KVCache, num_positions: int) -> None:
    """Fill the cache up to ``num_positions`` with zeros: what they are costs nothing else."""
    num_new = num_positions - kv_cache.offset
    if num_new <= 0:
        return
    shapes = [array.shape for array in kv_cache.arrays]
    dtype = kv_cache.arrays[0].dtype
    kv_cache.start_pass(num_new, keeps_rows=False)
    for layer in range(len(shapes) // 2):
        shape = shapes[2 * layer]
        rows = mx.zeros((shape[0], shape[1], num_new, shape[3]), dtype)
        kv_cache.extend(layer, rows, rows)
    kv_cache.commit(range(num_new))
    mx.eval(kv_cache.arrays)
