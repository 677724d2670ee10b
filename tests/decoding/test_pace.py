"""The pace: what is worth verifying, when drafting parks and when it returns."""

import pytest

from redrafter_mlx.decoding.pace import Pace, RoundCosts

COSTS = RoundCosts(verify=(1.0, 1.1, 1.2, 1.6), draft_step=0.05, overhead=0.02)


def run_rounds(pace: Pace, num_tokens: int, count: int, cost: float = 1.3) -> int:
    """Record equal rounds until the pace parks; return how many there were."""
    for number in range(count):
        if pace.is_parked:
            return number
        pace.record_round(num_tokens=num_tokens, cost=cost, expected_tokens=1.0)
    return count


def test_costs_go_on_as_between_the_last_two_entries() -> None:
    assert COSTS.of_rows(1) == 1.0
    assert COSTS.of_rows(4) == 1.6
    assert COSTS.of_rows(6) == pytest.approx(2.4)
    assert COSTS.of_round(3, 2) == pytest.approx(1.2 + 0.1 + 0.02)


def test_each_answer_begins_with_the_costs_at_its_own_length() -> None:
    """Law: a long answer before it changes nothing, nor does it for one without experience."""
    costs = RoundCosts(verify=(1.0, 1.1), context=100, growth=(0.001, 0.003))
    pace = Pace(costs)
    pace.begin_answer(1100)
    assert pace.costs == costs.at(1100)
    assert pace.costs.verify == pytest.approx((1.0, (1.1 + 3.0) / 2.0))
    assert pace.costs.context == 1100
    assert pace.fresh().costs == costs
    pace.begin_answer(50)
    assert pace.costs == costs


def test_rows_are_verified_as_long_as_together_they_repay_their_cost() -> None:
    pace = Pace(COSTS)
    assert pace.num_rows_that_pay([]) == 1
    assert pace.num_rows_that_pay([0.05]) == 1
    assert pace.num_rows_that_pay([0.5]) == 2
    assert pace.num_rows_that_pay([0.5, 0.2, 0.1]) == 3
    # The fourth row costs 0.4: alone it does not pay, and as a likely one it does.
    assert pace.num_rows_that_pay([0.9, 0.8, 0.5]) == 4
    # A row that is too dear may be repaid by those behind it.
    assert Pace(RoundCosts(verify=(1.0, 1.3, 1.31))).num_rows_that_pay([0.25, 0.25]) == 3


def test_when_rounds_bring_more_a_row_must_bring_more() -> None:
    pace = Pace(COSTS)
    run_rounds(pace, num_tokens=4, count=20)
    assert pace.value == pytest.approx(2.0)
    assert pace.num_rows_that_pay([0.19]) == 1
    assert Pace(COSTS).num_rows_that_pay([0.19]) == 2


def test_rounds_that_do_not_pay_are_parked_soon_and_others_never() -> None:
    assert run_rounds(Pace(COSTS), num_tokens=1, count=100) <= 10
    assert run_rounds(Pace(COSTS), num_tokens=2, count=100) == 100


def test_text_that_turns_unpredictable_and_back_parks_and_returns_within_32_tokens() -> None:
    pace = Pace(COSTS)
    run_rounds(pace, num_tokens=4, count=50)
    assert run_rounds(pace, num_tokens=1, count=100) <= 32
    for _ in range(20):
        pace.record_probe(is_right=False)
    num_tokens = 0
    while pace.is_parked:
        num_tokens += pace.wait + 2
        pace.record_probe(is_right=True)
    assert num_tokens <= 32
    assert run_rounds(pace, num_tokens=4, count=50) == 50


def test_probes_grow_rare_while_they_are_wrong() -> None:
    pace = Pace(COSTS)
    run_rounds(pace, num_tokens=1, count=100)
    waits = []
    for _ in range(6):
        waits.append(pace.wait)
        pace.record_probe(is_right=False)
    assert waits == [2, 4, 8, 16, 16, 16]


def test_two_right_probes_of_four_end_the_parking_and_one_does_not() -> None:
    pace = Pace(COSTS)
    for is_right, parks in [(True, True), (False, True), (False, True), (False, True)]:
        if not pace.is_parked:
            run_rounds(pace, num_tokens=1, count=100)
        pace.record_probe(is_right=is_right)
        assert pace.is_parked == parks
    pace.record_probe(is_right=True)
    assert pace.is_parked
    pace.record_probe(is_right=False)
    pace.record_probe(is_right=True)
    assert not pace.is_parked


def test_a_right_probe_is_followed_by_the_next_at_once() -> None:
    pace = Pace(COSTS)
    run_rounds(pace, num_tokens=1, count=100)
    pace.record_probe(is_right=True)
    assert pace.wait == 0
    pace.record_probe(is_right=False)
    assert pace.wait > 0 and pace.is_parked


def run_timed(pace: Pace, step: float, round_: float, count: int, num_tokens: int = 2) -> None:
    """Record timed steps where they are wanted, and timed rounds until the pace parks."""
    for _ in range(count):
        if pace.is_parked:
            return
        if not pace.knows_step:
            for _ in range(4):
                pace.record_step(step)
        pace.record_time(round_, 1.3)
        pace.record_round(num_tokens=num_tokens, cost=1.3, expected_tokens=1.0)


def test_rounds_that_take_longer_than_expected_are_parked_although_they_bring_tokens() -> None:
    slow, fast = Pace(COSTS), Pace(COSTS)
    run_timed(slow, step=0.1, round_=0.25, count=60)
    assert slow.is_parked
    run_timed(fast, step=0.1, round_=0.15, count=60)
    assert not fast.is_parked


def test_rounds_that_take_less_than_expected_go_on_with_fewer_tokens() -> None:
    pace = Pace(COSTS)
    run_timed(pace, step=0.1, round_=0.13, count=60, num_tokens=1)
    assert pace.is_parked
    pace = Pace(COSTS)
    run_timed(pace, step=0.1, round_=0.08, count=60, num_tokens=1)
    assert not pace.is_parked


def test_disturbed_times_do_not_count() -> None:
    pace = Pace(COSTS)
    for seconds in (0.1, 0.1, 0.1, 5.0):
        pace.record_step(seconds)
    for seconds in (0.13, 0.13, 1.3, 0.13, 0.65):
        pace.record_time(seconds, 1.3)
        pace.record_round(num_tokens=2, cost=1.3, expected_tokens=1.0)
    assert pace.value == pytest.approx(2.0 / 1.3)


def test_a_parked_drafter_whose_rounds_are_too_slow_stays_parked_however_right_it_is() -> None:
    pace = Pace(COSTS)
    run_timed(pace, step=0.1, round_=0.26, count=60, num_tokens=1)
    for is_right in (True, False) * 10:
        pace.record_time(0.2, 1.0)
        pace.record_probe(is_right=is_right)
        assert pace.is_parked


def test_a_drafter_parked_in_a_noisy_moment_returns_when_probes_are_in_time() -> None:
    pace = Pace(COSTS)
    run_timed(pace, step=0.1, round_=0.26, count=60, num_tokens=1)
    num_probes = 0
    while pace.is_parked:
        num_probes += 1
        pace.record_step(0.1)
        pace.record_time(0.1, 1.0)
        pace.record_probe(is_right=num_probes % 2 == 0)
    assert num_probes <= 16


def test_probabilities_are_corrected_by_what_came_true() -> None:
    pace = Pace(COSTS)
    assert pace.calibrated(0.4) == 0.4
    for _ in range(50):
        pace.record_round(num_tokens=2, cost=1.3, expected_tokens=2.0)
    assert pace.calibrated(0.4) == pytest.approx(0.4 * 1.1 / 2.1, rel=0.05)


def test_a_machine_that_became_faster_is_measured_again_and_parks_what_does_not_pay() -> None:
    """Law: steps that were timed in a slow moment make no useless draft look cheap for long."""
    pace = Pace(COSTS)
    for _ in range(3):
        pace.record_step(0.2)
    run_timed(pace, step=0.1, round_=0.13, count=30, num_tokens=1)
    assert pace.is_parked


def test_rounds_that_pay_by_their_times_alone_are_measured_again_once() -> None:
    pace = Pace(COSTS)
    num_steps = 0
    for _ in range(100):
        while not pace.knows_step:
            pace.record_step(0.1)
            num_steps += 1
        pace.record_time(0.08, 1.3)
        pace.record_round(num_tokens=1, cost=1.3, expected_tokens=1.0)
    assert num_steps == 6
    assert not pace.is_parked


def test_a_machine_that_became_slower_is_measured_again_and_goes_on_drafting() -> None:
    pace = Pace(COSTS)
    run_timed(pace, step=0.1, round_=0.13, count=30)
    run_timed(pace, step=0.2, round_=0.26, count=200)
    assert not pace.is_parked
    assert pace.value == pytest.approx(2 / 1.3, rel=0.01)
