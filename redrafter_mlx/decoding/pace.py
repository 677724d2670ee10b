"""When drafting pays: what passes cost, what rounds yield, and which rows are worth verifying.

Costs are counted in plain decoding steps, so that a value of 1 is what plain decoding gives:
one token a step.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

# A running mean forgets a round after about this many.
_WINDOW = 16
# Rounds that are tried before any are judged.
_MIN_ROUNDS = 8
# Under this value rounds do not pay; a little below 1, for the mean is a noisy one.
_PARK_BELOW = 0.95
# A round counts as no better than this, so that a good stretch is soon forgotten.
_MAX_VALUE = 2.0
# Plain steps between probes while parked: doubled after each probe that was wrong.
_FIRST_WAIT, _LAST_WAIT = 2, 16
# Right ones among the last few probes after which drafting goes on.
_RIGHT_TO_RETURN, _LAST_PROBES = 2, 4
# What rounds are taken to be worth then, until they have shown it.
_CREDIT, _MAX_SHARE = 1.1, 0.75
# Plain steps that measure what one costs, before drafting begins; the first is not timed.
YARDSTICK_STEPS = 4
# Medians of the last few times, at least some, for a machine has other things to do.
_NUM_TIMES, _MIN_TIMES = 16, 3
_MAX_STRETCH = 2.0


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What the parts of a round cost, in plain decoding steps.

    Attributes:
        verify: A pass over 1, 2, ... rows; the first is 1. Beyond the last entry the cost
            goes on as between the last two.
        draft_step: One step of the drafter.
        overhead: What is neither draft nor pass.
        context: Tokens before the pass at which all this holds.
        growth: What each token beyond them adds to a pass over 1, 2, ... rows; as long as
            ``verify``, or empty where it is not known.
    """

    verify: tuple[float, ...] = (1.0, 1.05)
    draft_step: float = 0.05
    overhead: float = 0.02
    context: int = 0
    growth: tuple[float, ...] = ()

    def at(self, context: int) -> RoundCosts:
        """Return the costs after ``context`` tokens, in the plain steps that are taken there.

        A shorter context than the measured one is taken to cost as much.
        """
        longer = context - self.context
        if longer <= 0 or not self.growth:
            return self
        step = 1 + longer * self.growth[0]
        verify = (
            (cost + longer * growth) / step
            for cost, growth in zip(self.verify, self.growth, strict=True)
        )
        return RoundCosts(tuple(verify), self.draft_step / step, self.overhead / step, context)

    def of_rows(self, rows: int) -> float:
        """Return the cost of a pass over ``rows`` rows."""
        beyond = rows - len(self.verify)
        if beyond <= 0:
            return self.verify[rows - 1]
        return self.verify[-1] + beyond * (self.verify[-1] - self.verify[-2])

    def of_round(self, rows: int, num_draft_steps: int) -> float:
        """Return the cost of a whole round."""
        return self.of_rows(rows) + num_draft_steps * self.draft_step + self.overhead


# On a CPU rows come in fours, as OpenBLAS multiplies them: two cost about what four cost. On
# a GPU a pass over few rows is bound by reading the weights.
CPU_COSTS = RoundCosts(
    verify=(1.0, 1.1, 1.1, 1.1, 1.35, 1.35, 1.35, 1.35, 1.6, 1.65), draft_step=0.04
)
GPU_COSTS = RoundCosts(verify=(1.0, 1.03))


@dataclass(slots=True)
class _Mean:
    """A mean over about the last ``_WINDOW`` values, ``None`` before the first."""

    value: float | None = None
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        weight = 1 / min(self.count, _WINDOW)
        self.value = value if self.value is None else self.value + weight * (value - self.value)

    def reset(self, value: float) -> None:
        self.value, self.count = value, _WINDOW


class Pace:
    """Whether drafting pays for one model, learned from round to round, across answers.

    Attributes:
        costs: What passes and drafts are expected to cost in this answer.
        is_parked: Whether decoding is plain but for a probe now and then.
    """

    def __init__(self, costs: RoundCosts) -> None:
        """Begin without any experience."""
        self.costs = self._base_costs = costs
        self.is_parked = False
        self._step_seconds: deque[float] = deque(maxlen=_NUM_TIMES)
        self._unit_seconds: deque[float] = deque(maxlen=_NUM_TIMES)
        self._judged_rounds, self._is_suspected = 0, False
        self._tokens, self._cost = _Mean(), _Mean()
        self._right, self._expected = _Mean(), _Mean()
        self._wait = _FIRST_WAIT
        self._probes: deque[bool] = deque(maxlen=_LAST_PROBES)

    @property
    def knows_step(self) -> bool:
        """Whether plain steps have been timed."""
        return len(self._step_seconds) >= _MIN_TIMES

    @property
    def value(self) -> float:
        """Tokens that rounds bring in the time of a plain step; 1 before any are known."""
        if self._tokens.value is None or self._cost.value is None:
            return 1.0
        return self._tokens.value / (self._cost.value * self._stretch)

    @property
    def _stretch(self) -> float:
        """How much longer rounds take than their cost says."""
        if min(len(self._step_seconds), len(self._unit_seconds)) < _MIN_TIMES:
            return 1.0
        ratio = statistics.median(self._unit_seconds) / statistics.median(self._step_seconds)
        return min(max(ratio, 1 / _MAX_STRETCH), _MAX_STRETCH)

    @property
    def _promise(self) -> float:
        """What rounds would be worth if every guess were right as often as the probes'."""
        share = min(sum(self._probes) / _LAST_PROBES, _MAX_SHARE)
        return 1 / (1 - share) / ((self._cost.value or 1.0) * self._stretch)

    @property
    def wait(self) -> int:
        """Plain steps until the next probe of a parked drafter."""
        return 0 if self._probes and self._probes[-1] else self._wait

    def fresh(self) -> Pace:
        """Return one that expects the same of any answer and has no experience."""
        return Pace(self._base_costs)

    def begin_answer(self, num_prompt_tokens: int) -> None:
        """Expect what rounds cost behind so many tokens."""
        self.costs = self._base_costs.at(num_prompt_tokens)

    def record_step(self, seconds: float) -> None:
        """Note how long a plain step took."""
        self._step_seconds.append(seconds)

    def record_time(self, seconds: float, cost: float) -> None:
        """Note how long a round or a probe of some expected cost took."""
        self._unit_seconds.append(seconds / cost)

    def record_round(self, *, num_tokens: int, cost: float, expected_tokens: float) -> None:
        """Note what a round of the drafter brought, and park when rounds no longer pay.

        Args:
            num_tokens: Tokens it brought, the target's own included.
            cost: What it was expected to cost.
            expected_tokens: Draft tokens that the drafter's probabilities promised.
        """
        self._right.add(num_tokens - 1)
        self._expected.add(expected_tokens)
        self._tokens.add(min(num_tokens, _MAX_VALUE * cost * self._stretch))
        self._cost.add(cost)
        self._judged_rounds += 1
        if self._judged_rounds >= _MIN_ROUNDS:
            self._judge()

    def record_probe(self, *, is_right: bool) -> None:
        """Note how a parked drafter's guess fared."""
        self._probes.append(is_right)
        if sum(self._probes) >= _RIGHT_TO_RETURN and self._promise >= 1.0:
            self._return()
        elif not is_right:
            self._wait = min(2 * self._wait, _LAST_WAIT)

    def calibrated(self, probability: float) -> float:
        """Return how likely a row is to be accepted to which the drafter gives ``probability``."""
        right, expected = self._right.value, self._expected.value
        if right is None or expected is None or self._right.count < _MIN_ROUNDS:
            return probability
        share = (right + 0.1) / (expected + 0.1)
        return min(probability * min(max(share, 0.25), 2.0), 1.0)

    def num_rows_that_pay(self, probabilities: Sequence[float]) -> int:
        """Return how many rows to verify, the root included.

        Args:
            probabilities: Chance of each drafted row to be accepted, the likeliest first.
        """
        price = max(self.value, 1.0)
        best_gain, best_rows, expected = 0.0, 1, 0.0
        for rows, probability in enumerate(probabilities, start=2):
            expected += probability
            gain = expected - price * (self.costs.of_rows(rows) - self.costs.of_rows(1))
            if gain > best_gain:
                best_gain, best_rows = gain, rows
        return best_rows

    def _judge(self) -> None:
        """Park where rounds do not pay; where only times decide it, take them again first.

        A machine that became slower since its steps were timed makes rounds look dear, and one
        that became faster, or has a shorter text before it, makes them look cheap.
        """
        pays = self.value >= _PARK_BELOW
        if pays == (self.value * self._stretch >= _PARK_BELOW):
            self._is_suspected = False
        elif not self._is_suspected:
            self._is_suspected = True
            self._judged_rounds = 0
            self._step_seconds.clear()
            self._unit_seconds.clear()
            return
        if not pays:
            self._park()

    def _park(self) -> None:
        self.is_parked, self._is_suspected = True, False
        self._wait = _FIRST_WAIT
        self._probes.clear()

    def _return(self) -> None:
        """Go on drafting, with a little credit."""
        self.is_parked = False
        self._judged_rounds = 0
        self._tokens.reset(_CREDIT * (self._cost.value or 1.0) * self._stretch)


def joint_probability(log_prob: float) -> float:
    """Return the probability of a joint log-probability, 0 where it is -inf."""
    return math.exp(min(log_prob, 0.0))
