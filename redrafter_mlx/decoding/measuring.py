"""What the parts of a round take on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import numpy as np

from redrafter_mlx.config import MAX_ROWS, BeamShape
from redrafter_mlx.decoding.pace import RoundCosts
from redrafter_mlx.decoding.round import Engine, Tip
from redrafter_mlx.decoding.samples import WIDEST, Opening, Sample, samples_of, write_all
from redrafter_mlx.decoding.time_limit import TimeLimit
from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.kv_cache import KVCache

# From coarse to fine, so that what the time does not allow lies between what was measured.
ROWS = (1, 2, 4, 8, 16, 32, 24, 12, 6, 3, 10, 14, 5, 7, 9, 11, 13, 15, 20, 28)
FAR_ROWS = (1, 2, 4, 8, 16)  # measured again at FAR_CONTEXT
FAR_CONTEXT = 2048
# What each part may take of the time that the parts before it leave.
_TEXTS_SHARE, _VERIFY_SHARE, _FAR_SHARE, _DRAFTS_SHARE = 0.55, 0.65, 0.4, 0.9
_NUM_TRIALS = 2


@dataclass(frozen=True, slots=True)
class Measurements:
    """What a machine takes for the parts of a round, as far as there was time to measure it.

    Attributes:
        step_seconds: A plain step.
        verify_seconds: A pass, by rows, at a short context.
        far_verify_seconds: The same at a long one.
        contexts: Tokens of the short context and of the long one.
        draft_seconds: A draft, by (beam_width, beam_length).
        texts: For each text the samples along it.
        openings: What each text began with.
    """

    step_seconds: float
    verify_seconds: dict[int, float]
    far_verify_seconds: dict[int, float]
    contexts: tuple[int, int]
    draft_seconds: dict[tuple[int, int], float]
    texts: tuple[tuple[Sample, ...], ...]
    openings: tuple[Opening, ...] = ()

    def costs(self, shape: BeamShape) -> RoundCosts:
        """Return the costs of a shape's rounds, in plain steps.

        A step of the drafter takes what it takes in that shape, or in the first one measured
        where that shape was not.
        """
        verify = _by_rows(self.verify_seconds, max(self.verify_seconds))
        size = shape.beam_width, shape.beam_length
        width, length = size if size in self.draft_seconds else next(iter(self.draft_seconds))
        return RoundCosts(
            verify=tuple((verify / verify[0]).tolist()),
            draft_step=self.draft_seconds[width, length] / (length - 1) / self.step_seconds,
            context=self.contexts[0],
            growth=tuple((self._growth() / verify[0]).tolist()),
        )

    def _growth(self) -> np.ndarray:
        """Return the seconds that a token of context adds to a pass over 1, 2, ... rows.

        None where the long context is no longer, or too little was measured there.
        """
        short, long = self.contexts
        both = sorted(self.verify_seconds.keys() & self.far_verify_seconds.keys())
        if len(both) < 2 or long <= short:
            return np.zeros(0)
        added = {
            rows: (self.far_verify_seconds[rows] - self.verify_seconds[rows]) / (long - short)
            for rows in both
        }
        return np.maximum(_by_rows(added, max(self.verify_seconds)), 0.0)


def shapes_to_try() -> Iterator[BeamShape]:
    """Yield every width and length up to ``WIDEST``."""
    for width in range(1, WIDEST.beam_width + 1):
        for length in range(2, WIDEST.beam_length + 1):
            yield BeamShape(width, length)


def measure(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    limit: TimeLimit,
    on_progress: Callable[[float], None],
) -> Measurements:
    """Measure the parts of a round.

    Args:
        engine: A model with a drafter; its cache is not used.
        prompts: Token ids; an answer to each is begun.
        limit: Where it is over, what has been measured by then must do.
        on_progress: Gets the share that is done, from 0 to 1.
    """
    written = write_all(
        engine, prompts, limit.share(_TEXTS_SHARE), lambda done: on_progress(0.5 * done)
    )
    step = float(np.median([step for text in written for step in text.step_seconds]))
    on_progress(0.5)
    engine = replace(engine, kv_cache=written[-1].opening.kv_cache)
    verify = _verify_seconds(engine, ROWS, limit.share(_VERIFY_SHARE), {1: step}, at_least=2)
    on_progress(0.8)
    short = engine.kv_cache.offset
    _lengthen(engine.kv_cache, min(FAR_CONTEXT, engine.target.config.max_positions - MAX_ROWS))
    contexts = short, engine.kv_cache.offset
    far = _verify_seconds(engine, FAR_ROWS, limit.share(_FAR_SHARE), verify)
    on_progress(0.9)
    drafts = _draft_seconds(engine, written[-1].tip, limit.share(_DRAFTS_SHARE))
    on_progress(1.0)
    return Measurements(
        step_seconds=step,
        verify_seconds=verify,
        far_verify_seconds=far,
        contexts=contexts,
        draft_seconds=drafts,
        texts=tuple(tuple(samples_of(text)) for text in written),
        openings=tuple(text.opening for text in written),
    )


def _by_rows(seconds: dict[int, float], last: int) -> np.ndarray:
    """Return (last,) seconds of 1, 2, ... rows, as between the last two beyond them."""
    counts = sorted(seconds)
    # More rows never cost less, and what disturbs a measurement mostly adds to it.
    known = np.minimum.accumulate([seconds[rows] for rows in reversed(counts)])[::-1]
    found = np.interp(np.arange(1, last + 1), counts, known)
    if last > counts[-1]:
        slope = (known[-1] - known[-2]) / (counts[-1] - counts[-2])
        found[counts[-1] :] += slope * np.arange(1, last - counts[-1] + 1)
    return found


def _verify_seconds(
    engine: Engine,
    counts: Sequence[int],
    limit: TimeLimit,
    known: dict[int, float],
    at_least: int = 0,
) -> dict[int, float]:
    """Return the time of a pass by rows, the better of two.

    The second comes when all have had their first: a slow moment of the machine then spoils
    one of them, and not the comparison.

    Args:
        engine: Its cache is the context.
        counts: Rows, the most telling first.
        limit: What would not end within it is left out.
        known: About the time of some passes.
        at_least: How many are measured at all events.
    """
    found: dict[int, float] = {}
    first = limit.share(1 / 2)
    for place, rows in enumerate(counts):
        if place < at_least or first.allows(_expected(known | found, rows)):
            found[rows] = _timed(partial(_verify, engine, rows))
    for rows, seconds in found.items():
        if limit.allows(seconds):
            found[rows] = min(seconds, _timed(partial(_verify, engine, rows)))
    return dict(sorted(found.items()))


def _expected(known: dict[int, float], rows: int) -> float:
    """Return what a pass takes, at most as much a row as the largest known one."""
    counts = sorted(known)
    within = float(np.interp(rows, counts, [known[count] for count in counts]))
    return within * max(1.0, rows / counts[-1])


def _verify(engine: Engine, rows: int) -> mx.array:
    """Run a tree that branches at the root, and get its logits."""
    tokens = np.arange(rows, dtype=np.int32) % engine.target.config.vocab_size
    parents = np.maximum(np.arange(rows, dtype=np.int32) - 2, 0)
    tree = DraftTree.from_rows(tokens, parents, np.zeros(rows, np.float32))
    hidden = engine.target(mx.array(tokens), engine.kv_cache, tree)
    return engine.target.logits(hidden)


def _draft_seconds(engine: Engine, tip: Tip, limit: TimeLimit) -> dict[tuple[int, int], float]:
    """Return the time of a draft by width and length, the narrow ones first."""
    found: dict[tuple[int, int], float] = {}
    for shape in shapes_to_try():
        # A shape twice as long or wide as any before takes at most about twice the time.
        if found and not limit.allows((_NUM_TRIALS + 1) * 2 * max(found.values())):
            break
        build = partial(_draft, engine, tip, shape)
        mx.eval(build())
        found[shape.beam_width, shape.beam_length] = _best(build)
    return found


def _draft(engine: Engine, tip: Tip, shape: BeamShape) -> mx.array:
    drafted = engine.draft(tip, shape)
    assert drafted is not None
    return drafted.log_probs


def _best(build: Callable[[], mx.array]) -> float:
    return min(_timed(build) for _ in range(_NUM_TRIALS))


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
