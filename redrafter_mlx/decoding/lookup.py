"""Guesses by lookup: what followed the last time that the latest few tokens stood together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MATCH_LENGTHS = (4, 3, 2)  # tried in this order: a longer match is right more often

# How often the first proposed token was right, and a further one where all before it were.
# Measured on SmolLM2-135M-Instruct's answers to 800 varied prompts, half of them greedy and
# half at temperature 0.8, decoded by lookup alone with 8 tokens a proposal: 12,594 proposals
# of match length 2, 814 of 3 and 4,125 of 4.
PRIOR_CONFIDENCE = {2: (0.46, 0.67), 3: (0.53, 0.72), 4: (0.88, 0.95)}
# Both from a grid on the same answers; the log loss moves by less than 1% from half to double.
PRIOR_WEIGHT = 8.0  # the prior counts as much as this many proposals
DECAY = 0.9  # each proposal weighs this much less than the next of its match length

_TOKEN_BITS = 32
_KEY_MASKS = {length: (1 << _TOKEN_BITS * length) - 1 for length in MATCH_LENGTHS}
_LONGEST_MASK = _KEY_MASKS[max(MATCH_LENGTHS)]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What followed an earlier match of the latest tokens.

    Attributes:
        tokens: The tokens expected after the latest one, as many as were asked for.
        match_length: How many of the latest tokens the match has in common.
    """

    tokens: tuple[int, ...]
    match_length: int


@dataclass(slots=True)
class _Rate:
    """A share of right tokens that leans on its prior and forgets."""

    prior: float
    num_right: float = 0.0
    num_tested: float = 0.0

    def record(self, num_right: int, num_tested: int) -> None:
        self.num_right = self.num_right * DECAY + num_right
        self.num_tested = self.num_tested * DECAY + num_tested

    @property
    def value(self) -> float:
        return (self.prior * PRIOR_WEIGHT + self.num_right) / (PRIOR_WEIGHT + self.num_tested)


class LookupIndex:
    """The n-grams of a prompt and its answer, where each occurred last, and how they fared."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        """Index ``tokens``, token ids below 2**32."""
        self._tokens: list[int] = []
        self._latest_key = 0  # the latest tokens as one number, the last in its lowest bits
        self._next_positions: dict[int, dict[int, int]] = {n: {} for n in MATCH_LENGTHS}
        self._rates = {n: tuple(map(_Rate, PRIOR_CONFIDENCE[n])) for n in MATCH_LENGTHS}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end, in constant time each."""
        known, key = self._tokens, self._latest_key
        tables = [(n, _KEY_MASKS[n], self._next_positions[n]) for n in MATCH_LENGTHS]
        for token in map(int, tokens):
            position = len(known)
            # What stood last until now is an earlier n-gram from now on.
            for length, mask, next_positions in tables:
                if position >= length:
                    next_positions[key & mask] = position
            known.append(token)
            key = (key << _TOKEN_BITS | token) & _LONGEST_MASK
        self._latest_key = key

    def propose(self, max_tokens: int) -> Proposal | None:
        """Return what followed the latest earlier occurrence of the longest match.

        A copy that reaches the end of what is known goes on with what it has itself
        proposed: ``a b a b`` is followed by ``a b a b ...``.

        Returns:
            ``max_tokens`` tokens, or ``None`` without a match or with nothing asked for.
        """
        if max_tokens < 1:
            return None
        for length in MATCH_LENGTHS:
            start = self._next_positions[length].get(self._latest_key & _KEY_MASKS[length])
            if start is not None:
                period = len(self._tokens) - start
                steps = range(max_tokens)
                copied = tuple(self._tokens[start + step % period] for step in steps)
                return Proposal(copied, length)
        return None

    def record(self, match_length: int, num_proposed: int, num_accepted: int) -> None:
        """Count how a proposal fared; ``num_proposed`` are its tokens that were verified."""
        assert 0 <= num_accepted <= num_proposed
        if num_proposed == 0:
            return
        num_tested = min(num_accepted + 1, num_proposed)  # the first wrong one ends the test
        first, further = self._rates[match_length]
        first.record(min(num_accepted, 1), 1)
        further.record(max(num_accepted - 1, 0), num_tested - 1)

    def confidence(self, match_length: int, depth: int = 1) -> float:
        """Return the chance that the token at ``depth``, from 1, is right if all before are."""
        first, further = self._rates[match_length]
        return first.value if depth == 1 else further.value

    def log_probs(self, proposal: Proposal) -> tuple[float, ...]:
        """Return each proposed token's joint log-probability, to rank it among drafted ones."""
        depths = range(1, len(proposal.tokens) + 1)
        steps = (math.log(self.confidence(proposal.match_length, depth)) for depth in depths)
        return tuple(accumulate(steps))
