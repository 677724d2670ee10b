"""What each round drafts and verifies: row budget, lookup branch and parking."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redrafter_mlx.config import BeamShape
from redrafter_mlx.decoding.lookup import LookupIndex, Proposal
from redrafter_mlx.decoding.pace import YARDSTICK_STEPS, Pace, joint_probability
from redrafter_mlx.decoding.tree import DraftTree

PROBE_SHAPE = BeamShape(beam_width=1, beam_length=2)
MAX_LOOKUP_DEPTH = 8
FOREVER = sys.maxsize


@dataclass(slots=True)
class _Shadow:
    """A proposal that was not verified, held against the text that came instead."""

    proposal: Proposal
    num_right: int = 0

    def meets(self, token: int) -> bool:
        """Take the next token of the text; return whether the proposal goes on."""
        if self.proposal.tokens[self.num_right] != token:
            return False
        self.num_right += 1
        return self.num_right < len(self.proposal.tokens)


class Planner:
    """Decides for one answer, on the host, what each round drafts and verifies.

    Whatever it decides, the text stays the target's own.
    """

    def __init__(
        self,
        pace: Pace,
        shape: BeamShape | None,
        *,
        lookup: LookupIndex | None,
        is_adaptive: bool = True,
        max_rows: int,
    ) -> None:
        """Begin an answer.

        Args:
            pace: The model's experience, kept across answers.
            shape: Of the draft, ``None`` without a drafter.
            lookup: Holds the prompt; ``None`` drafts without lookups.
            is_adaptive: Whether the shape, the rows and parking follow the experience.
            max_rows: Most rows that a pass verifies, lookups among them; the shape has the most
                of the drafter's.
        """
        self._pace = pace
        self._shape = shape
        self._lookup = lookup
        self._is_adaptive = is_adaptive
        self._max_rows = max_rows
        self._shadow: _Shadow | None = None
        self._since_probe = 0

    @property
    def next_shape(self) -> BeamShape | None:
        """What to draft together with the coming round, for the one after it."""
        return None if self._is_parked else self._shape

    @property
    def draft_shape(self) -> BeamShape | None:
        """What to draft for the coming round, ``None`` for nothing."""
        if not self._is_parked:
            return self._shape
        return PROBE_SHAPE if self._since_probe >= self._pace.wait else None

    @property
    def num_plain_steps(self) -> int:
        """Plain steps before the next round, if no lookup is worth one earlier."""
        if self.wants_round:
            return 0
        if self._shape is None:
            return FOREVER
        if not self._is_adaptive:
            return 0
        if not self._pace.knows_step:
            return YARDSTICK_STEPS
        return max(self._pace.wait - self._since_probe, 0) if self._pace.is_parked else 0

    @property
    def wants_round(self) -> bool:
        """Whether the latest tokens stood together before, and what followed is worth trying."""
        proposal = self._propose(MAX_LOOKUP_DEPTH)
        if proposal is None or self._lookup is None:
            return False
        if not self._is_adaptive:
            return True
        chances = [joint_probability(value) for value in self._lookup.log_probs(proposal)]
        return self._pace.num_rows_that_pay(chances) > 1

    def observe(self, tokens: Sequence[int]) -> None:
        """Take in emitted tokens."""
        if self._lookup is None:
            return
        for token in tokens:
            if self._shadow is not None and not self._shadow.meets(token):
                self._end_shadow()
        self._lookup.extend(tokens)
        if self._shadow is None:
            proposal = self._propose(MAX_LOOKUP_DEPTH)
            self._shadow = _Shadow(proposal) if proposal else None

    def tree(self, drafted: DraftTree, max_depth: int) -> DraftTree:
        """Return the rows to verify.

        Args:
            drafted: The drafter's nodes, or ``next_token`` alone.
            max_depth: Draft tokens that the answer has room for.
        """
        if self._is_parked and drafted.num_rows > 1:
            return drafted.pruned(self._max_rows, max_depth)
        if self._shape is not None:
            drafted = drafted.pruned(self._shape.max_rows, max_depth)
        tree = self._with_lookup(drafted, max_depth)
        max_rows = self._max_rows
        if self._is_adaptive:
            max_rows = min(max_rows, self._pace.num_rows_that_pay(self._chances(tree)))
        return tree.pruned(max_rows, max_depth).likeliest_first()

    def record(self, tree: DraftTree, path: Sequence[int], seconds: float | None) -> None:
        """Learn from a round: what was verified, which rows were kept, how long it took."""
        if self._shape is None or not self._is_adaptive:
            return
        is_drafted = ~tree.is_looked_up
        is_drafted[0] = False
        num_right = int(is_drafted[list(path)].sum())
        if self._is_parked:
            self._since_probe += 1
            if is_drafted.any():
                self._record_probe(tree, seconds, is_right=num_right > 0)
            return
        if seconds is not None:
            self._pace.record_time(seconds, self._cost(tree.num_rows))
        if tree.is_looked_up.any():
            return  # what a lookup won says nothing against the drafter
        promised = sum(map(joint_probability, tree.log_probs[is_drafted].tolist()))
        self._pace.record_round(
            num_tokens=1 + num_right,
            cost=self._cost(tree.num_rows),
            expected_tokens=promised,
        )

    def record_step(self, seconds: float | None) -> None:
        """Count a plain step, and learn how long it took where that is known."""
        self._since_probe += 1
        if seconds is not None:
            self._pace.record_step(seconds)

    def _record_probe(self, tree: DraftTree, seconds: float | None, *, is_right: bool) -> None:
        self._since_probe = 0
        if seconds is not None:  # its draft was read before
            self._pace.record_time(seconds, self._pace.costs.of_round(tree.num_rows, 0))
        self._pace.record_probe(is_right=is_right)

    def _cost(self, num_rows: int) -> float:
        """Return what a round is expected to cost that drafts the next one's rows, too."""
        num_steps = self._shape.num_draft_steps if self._shape is not None else 0
        return self._pace.costs.of_round(num_rows, num_steps)

    @property
    def _is_parked(self) -> bool:
        return self._is_adaptive and self._pace.is_parked

    def _propose(self, max_tokens: int) -> Proposal | None:
        return self._lookup.propose(max_tokens) if self._lookup is not None else None

    def _with_lookup(self, drafted: DraftTree, max_depth: int) -> DraftTree:
        steps = MAX_LOOKUP_DEPTH
        if not self._is_adaptive and self._shape is not None:
            steps = self._shape.num_draft_steps
        proposal = self._propose(min(steps, max_depth))
        if proposal is None or self._lookup is None:
            return drafted
        return drafted.with_chain(proposal.tokens, self._lookup.log_probs(proposal))

    def _chances(self, tree: DraftTree) -> list[float]:
        """Return each drafted row's chance to be accepted, the likeliest first."""
        scores = tree.scores()
        order = np.argsort(-scores, kind="stable")
        chances = []
        for row in order[order > 0].tolist():
            chance = joint_probability(float(scores[row]))
            chances.append(chance if tree.is_looked_up[row] else self._pace.calibrated(chance))
        return chances

    def _end_shadow(self) -> None:
        shadow, self._shadow = self._shadow, None
        assert shadow is not None and self._lookup is not None
        proposal = shadow.proposal
        tested = min(shadow.num_right + 1, len(proposal.tokens))
        self._lookup.record(proposal.match_length, tested, shadow.num_right)
