"""The tree of drafted tokens that one pass verifies, and the walk that accepts from it."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """Rows of one verification pass; row 0 is ``next_token``, parents come first.

    Attributes:
        tokens: (rows,) int32.
        parents: (rows,) int32; the root is its own parent.
        depths: (rows,) int32; the root has 0.
        ancestors: (rows, rows) bool; ``[i, j]`` where j is i or one of i's ancestors.
        log_probs: (rows,) float32, the drafter's joint log-probability; the root has 0.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    depths: NDArray[np.int32]
    ancestors: NDArray[np.bool_]
    log_probs: NDArray[np.float32]

    @classmethod
    def from_rows(
        cls, tokens: NDArray[np.int32], parents: NDArray[np.int32], log_probs: NDArray[np.float32]
    ) -> DraftTree:
        """Build a tree; each row's parent must be an earlier row, the root's is 0."""
        num_rows = len(tokens)
        depths = np.zeros(num_rows, np.int32)
        ancestors = np.eye(num_rows, dtype=np.bool_)
        for row in range(1, num_rows):
            parent = parents[row]
            assert 0 <= parent < row
            depths[row] = depths[parent] + 1
            ancestors[row] |= ancestors[parent]
        return cls(tokens, parents, depths, ancestors, log_probs)

    @property
    def num_rows(self) -> int:
        """Rows of the pass, the root included."""
        return len(self.tokens)

    @property
    def max_depth(self) -> int:
        """Most draft tokens that a round can keep."""
        return int(self.depths.max())

    @property
    def is_chain(self) -> bool:
        """Whether each row is the child of the row before it."""
        return self.max_depth == self.num_rows - 1

    def pruned(self, max_rows: int, max_depth: int) -> DraftTree:
        """Keep the ``max_rows`` most probable rows that are not deeper than ``max_depth``.

        A row scores its own joint log-probability or its parent's, whichever is lower, and
        ties go to the lower row, so that what is kept is a tree.
        """
        if self.num_rows <= max_rows and self.max_depth <= max_depth:
            return self
        scores = self.log_probs.copy()
        for row in range(1, self.num_rows):
            scores[row] = min(scores[row], scores[self.parents[row]])
        order = np.argsort(-scores, kind="stable")
        order = order[self.depths[order] <= max_depth]
        kept = np.sort(order[: max(1, max_rows)])
        new_rows = np.zeros(self.num_rows, np.int32)
        new_rows[kept] = np.arange(len(kept), dtype=np.int32)
        parents = new_rows[self.parents[kept]]
        return DraftTree.from_rows(self.tokens[kept], parents, self.log_probs[kept])


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """What a round keeps, still on the device.

    Attributes:
        path: (max_depth + 1,) int32, the accepted row at each depth, -1 behind the last.
        last_row: (1,) int32, the last accepted row: the next token is chosen there.
    """

    path: mx.array
    last_row: mx.array


def accept(tree: DraftTree, chosen: mx.array) -> Accepted:
    """Walk from the root to the children that carry the token chosen at their parent.

    Where several rows spell the same prefix, the token chosen at the lowest of them counts
    and the walk goes on with the children of all: each emitted token is then one draw from
    the target, whatever was drafted, so the target's law is kept exactly. Taking the row
    with the longest match instead would bend it.

    Args:
        tree: The rows that were verified.
        chosen: (rows,) int32, the sampler's choice from the target's logits at each row.
    """
    parents, tokens = mx.array(tree.parents), mx.array(tree.tokens)
    depths = mx.array(tree.depths)
    spelled = depths == 0
    row = mx.zeros(1, mx.int32)
    path = [row]
    for depth in range(1, tree.max_depth + 1):
        spelled = spelled[parents] & (depths == depth) & (tokens == chosen[row])
        is_alive = spelled.any(keepdims=True)
        row = mx.where(is_alive, mx.argmax(spelled, keepdims=True).astype(mx.int32), row)
        path.append(mx.where(is_alive, row, -1))
    return Accepted(path=mx.concatenate(path), last_row=row)
