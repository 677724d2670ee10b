"""The tree of drafted tokens that one pass verifies, and the walk that accepts from it."""

from __future__ import annotations

from collections.abc import Sequence
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
        twins: (rows,) int32, the lowest row that spells the same tokens from the root: the
            row itself unless it is a duplicate.
        log_probs: (rows,) float32, the joint log-probability of being accepted, as far as
            who drafted the row knows it; the root has 0.
        is_looked_up: (rows,) bool, whether a lookup proposed the row and the drafter did not.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    depths: NDArray[np.int32]
    ancestors: NDArray[np.bool_]
    twins: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    is_looked_up: NDArray[np.bool_]

    @classmethod
    def from_rows(
        cls,
        tokens: NDArray[np.int32],
        parents: NDArray[np.int32],
        log_probs: NDArray[np.float32],
        is_looked_up: NDArray[np.bool_] | None = None,
    ) -> DraftTree:
        """Build a tree; each row's parent must be an earlier row, the root's is 0."""
        num_rows = len(tokens)
        depths = np.zeros(num_rows, np.int32)
        twins = np.arange(num_rows, dtype=np.int32)
        ancestors = np.eye(num_rows, dtype=np.bool_)
        spelled: dict[tuple[int, int], int] = {}
        for row, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
            if row == 0:
                continue
            assert 0 <= parent < row
            depths[row] = depths[parent] + 1
            ancestors[row] |= ancestors[parent]
            twins[row] = spelled.setdefault((int(twins[parent]), token), row)
        if is_looked_up is None:
            is_looked_up = np.zeros(num_rows, np.bool_)
        return cls(tokens, parents, depths, ancestors, twins, log_probs, is_looked_up)

    @classmethod
    def of_root(cls, token: int) -> DraftTree:
        """Return the tree of ``next_token`` alone."""
        return cls.from_rows(
            np.array([token], np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32)
        )

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

    def with_chain(self, tokens: Sequence[int], log_probs: Sequence[float]) -> DraftTree:
        """Add one more continuation of the root; what is there already is not added again.

        Args:
            tokens: The continuation.
            log_probs: Their joint log-probabilities; a row that is there takes the greater.
        """
        children = {
            (int(parent), int(token)): row + 1
            for row, (parent, token) in enumerate(
                zip(self.parents[1:], self.tokens[1:], strict=True)
            )
        }
        known = self.log_probs.copy()
        row, num_shared = 0, 0
        while num_shared < len(tokens) and (row, tokens[num_shared]) in children:
            row = children[row, tokens[num_shared]]
            known[row] = max(known[row], log_probs[num_shared])
            num_shared += 1
        num_new = len(tokens) - num_shared
        parents = [row, *range(self.num_rows, self.num_rows + num_new - 1)][:num_new]
        return DraftTree.from_rows(
            np.concatenate([self.tokens, np.array(tokens[num_shared:], np.int32)]),
            np.concatenate([self.parents, np.array(parents, np.int32)]),
            np.concatenate([known, np.array(log_probs[num_shared:], np.float32)]),
            np.concatenate([self.is_looked_up, np.ones(num_new, np.bool_)]),
        )

    def scores(self) -> NDArray[np.float32]:
        """Return (rows,) float32, a row's joint log-probability or its parent's if lower."""
        scores = self.log_probs.copy()
        for row in range(1, self.num_rows):
            scores[row] = min(scores[row], scores[self.parents[row]])
        return scores

    def pruned(self, max_rows: int, max_depth: int) -> DraftTree:
        """Keep the ``max_rows`` most probable rows that are not deeper than ``max_depth``.

        They are ranked by ``scores``, and ties go to the lower row, so that what is kept is
        a tree.
        """
        if self.num_rows <= max_rows and self.max_depth <= max_depth:
            return self
        order = np.argsort(-self.scores(), kind="stable")
        order = order[self.depths[order] <= max_depth]
        return self._with_rows(np.sort(order[: max(1, max_rows)]))

    def likeliest_first(self) -> DraftTree:
        """Order the rows depth first, the likelier child before its siblings.

        Accepting the likeliest path then moves no keys, and any other path few, which lie
        side by side.
        """
        children: list[list[int]] = [[] for _ in range(self.num_rows)]
        for row in np.argsort(self.log_probs, kind="stable").tolist():
            if row:
                children[self.parents[row]].append(row)
        order, waiting = [], [0]
        while waiting:
            row = waiting.pop()
            order.append(row)
            waiting += children[row]
        return self if order == sorted(order) else self._with_rows(np.array(order))

    def _with_rows(self, rows: NDArray[np.int64]) -> DraftTree:
        """Return the tree of these rows in this order; each comes behind its parent."""
        new_rows = np.zeros(self.num_rows, np.int32)
        new_rows[rows] = np.arange(len(rows), dtype=np.int32)
        return DraftTree.from_rows(
            self.tokens[rows],
            new_rows[self.parents[rows]],
            self.log_probs[rows],
            self.is_looked_up[rows],
        )


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
    """Keep the rows whose every token is the one chosen at its parent.

    Where several rows spell the same prefix, the token chosen at the lowest of them counts
    and the children of all may go on: each emitted token is then one draw from the target,
    whatever was drafted, so the target's law is kept exactly. Taking the row with the
    longest match instead would bend it.

    Args:
        tree: The rows that were verified.
        chosen: (rows,) int32, the sampler's choice from the target's logits at each row.
    """
    if tree.num_rows == 1:
        root = mx.zeros(1, mx.int32)
        return Accepted(path=root, last_row=root)
    is_root = tree.depths == 0
    choosers = mx.array(tree.twins[tree.parents])
    is_right = (mx.array(tree.tokens) == chosen[choosers]) | mx.array(is_root)
    is_kept = (is_right | mx.array(~tree.ancestors)).all(axis=1)
    levels = mx.array(np.arange(tree.max_depth + 1)[:, None] == tree.depths)
    at_depth = levels & is_kept
    path = mx.where(at_depth.any(axis=1), mx.argmax(at_depth, axis=1).astype(mx.int32), -1)
    return Accepted(path=path, last_row=path.max(keepdims=True))
