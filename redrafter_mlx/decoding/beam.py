"""Beam search over the drafter: the draft that a round will verify."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from redrafter_mlx.config import BeamShape
from redrafter_mlx.models.drafter import Drafter

# Up to here a pass for each is cheaper than a partition, which is a full sort on Metal.
_MAX_PASSES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """The kept (beam, token) pairs of every step, on the device; row 0 is ``next_token``.

    Attributes:
        tokens: (nodes,) int32; node i becomes row i + 1 of the tree.
        parents: (nodes,) int32, the row that each node continues.
        log_probs: (nodes,) float32, joint over the nodes from the root.
    """

    tokens: mx.array
    parents: mx.array
    log_probs: mx.array


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """The beams after a step: source beam, column of the head, joint log-probability."""

    beams: mx.array
    columns: mx.array
    log_probs: mx.array


def draft(drafter: Drafter, hidden: mx.array, next_token: mx.array, shape: BeamShape) -> Draft:
    """Search for the most probable continuations of ``next_token``.

    Each (beam, token) pair that a step keeps is one node, so no prefix is there twice.

    Args:
        drafter: Bound to the target that ``hidden`` is from.
        hidden: (1, hidden_size), the state from which ``next_token`` was chosen.
        next_token: (1,) int32.
        shape: ``beam_width`` beams, ``beam_length - 1`` steps.

    Source:
        arXiv:2403.09919, section 3.2; scores are joint log-softmax values over the whole
        (draft) vocabulary.
    """
    context = drafter.context(hidden)
    state, tokens = drafter.first_state(hidden), next_token
    log_probs = mx.zeros((1,), mx.float32)
    steps: list[Draft] = []
    first_row = 0
    for _ in range(shape.num_draft_steps):
        scored = drafter.step(hidden, context, state, tokens)
        best = best_continuations(scored.logits, log_probs, shape.beam_width)
        tokens = best.columns if drafter.token_ids is None else drafter.token_ids[best.columns]
        state = scored.state if shape.beam_width == 1 else scored.state[best.beams]
        log_probs = best.log_probs
        steps.append(Draft(tokens, best.beams + first_row, log_probs))
        first_row += scored.logits.shape[0]
    return Draft(
        tokens=mx.concatenate([step.tokens for step in steps]).astype(mx.int32),
        parents=mx.concatenate([step.parents for step in steps]).astype(mx.int32),
        log_probs=mx.concatenate([step.log_probs for step in steps]),
    )


def best_continuations(logits: mx.array, log_probs: mx.array, width: int) -> _Step:
    """Return the ``width`` best (beam, column) pairs, or all where there are fewer.

    Only the best ``width`` columns of a row can be among them, so the whole table is never
    ranked.

    Args:
        logits: (beams, columns), unnormalised.
        log_probs: (beams,) float32, joint so far.
        width: Pairs to keep.
    """
    logits = logits.astype(mx.float32)
    width_in_row = min(width, logits.shape[1])
    columns = _best_columns(logits, width_in_row)
    norm = mx.logsumexp(logits, axis=-1, keepdims=True)
    joint = mx.take_along_axis(logits, columns, axis=-1) - norm + log_probs[:, None]
    if logits.shape[0] == 1:
        return _Step(mx.zeros(width_in_row, mx.int32), columns[0], joint[0])
    flat = joint.reshape(-1)
    kept = mx.argsort(-flat)[:width].astype(mx.int32)
    return _Step(kept // width_in_row, columns.reshape(-1)[kept], flat[kept])


def _best_columns(logits: mx.array, count: int) -> mx.array:
    """Return (rows, count) int32, a row's ``count`` best columns."""
    if count == logits.shape[1]:
        return mx.broadcast_to(mx.arange(count, dtype=mx.int32), logits.shape)
    if count > _MAX_PASSES:
        return mx.argpartition(-logits, count - 1, axis=-1)[:, :count].astype(mx.int32)
    found = [mx.argmax(logits, axis=-1, keepdims=True)]
    while len(found) < count:
        logits = mx.put_along_axis(logits, found[-1], mx.array(-mx.inf), axis=-1)
        found.append(mx.argmax(logits, axis=-1, keepdims=True))
    return mx.concatenate(found, axis=-1).astype(mx.int32)
