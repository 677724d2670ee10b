"""The choice of a shape: what is simulated from drafts, and what is done with the costs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import PLAIN_BEAM_SHAPE, BeamShape, SamplingConfig
from redrafter_mlx.decoding import measuring, samples, tuning
from redrafter_mlx.decoding.measuring import Measurements, measure, shapes_to_try
from redrafter_mlx.decoding.profile import find_profile, save_profile
from redrafter_mlx.decoding.round import Engine
from redrafter_mlx.decoding.samples import Sample
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.decoding.time_limit import TimeLimit
from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.decoding.tuning import Candidate
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter
from tests.toy import Oracle, toy_drafter, toy_model, toy_target

PROMPTS = [[7, 3, 9, 1, 22], [4, 4, 8]]


def chain_sample(num_right: int, rank: int = 0, log_prob: float = -1.0) -> Sample:
    """Return a sample of one chain of four nodes, of which the first ``num_right`` are right.

    Each node has ``log_prob``, given those before it.
    """
    tree = DraftTree.from_rows(
        np.arange(5, dtype=np.int32),
        np.array([0, 0, 1, 2, 3], np.int32),
        log_prob * np.arange(5, dtype=np.float32),
    )
    accepted = [row <= num_right for row in range(5)]
    return Sample(tree, (0, rank, 0, 0, 0), tuple(accepted))


def measured(texts: list[list[Sample]], per_row: float = 0.1) -> Measurements:
    rows = {count: 0.1 * (1 + per_row * (count - 1)) for count in (1, 2, 4, 8, 16, 32)}
    drafts = {
        (shape.beam_width, shape.beam_length): 0.002 * shape.num_draft_steps
        for shape in shapes_to_try()
    }
    return Measurements(0.1, rows, rows, (100, 100), drafts, tuple(map(tuple, texts)))


def test_a_draft_that_is_always_right_is_followed_as_far_as_the_shape_goes() -> None:
    samples = [chain_sample(4, log_prob=0.0) for _ in range(40)]
    best, *_ = tuning.rank(measured([samples]))
    assert best.shape == BeamShape(1, 5, 5)
    assert best.tokens_per_round == pytest.approx(5.0)
    cost = 1.4 + 4 * 0.02 + 0.02
    assert best.predicted_per_second == pytest.approx(5.0 / (0.1 * cost))


def test_a_draft_that_is_never_right_leaves_plain_decoding_first() -> None:
    best, *_ = tuning.rank(measured([[chain_sample(0, log_prob=-9.0)] * 40]))
    assert best.shape.num_draft_steps == 0
    assert best.predicted_per_second == pytest.approx(10.0)


def test_rows_that_cost_a_step_each_leave_plain_decoding_first() -> None:
    best, *_ = tuning.rank(measured([[chain_sample(1)] * 40], per_row=1.0))
    assert best.shape.num_draft_steps == 0


def test_a_right_node_of_the_second_rank_needs_two_beams() -> None:
    """Law: nor is anything below it found with one."""
    for found in tuning.rank(measured([[chain_sample(4, rank=1, log_prob=0.0)] * 40])):
        is_found = found.shape.num_draft_steps > 0 and found.shape.beam_width > 1
        assert (found.tokens_per_round > 1.9) == is_found
        assert found.tokens_per_round == 1.0 or is_found


def test_each_shape_gets_the_rows_that_repay_their_cost() -> None:
    [found] = [
        found
        for found in tuning.rank(measured([[chain_sample(1)] * 40]))
        if (found.shape.beam_width, found.shape.beam_length) == (1, 5)
    ]
    trust = (5 + 37) / (5 + 37 * sum(np.exp(-depth) for depth in range(1, 5)))
    chances = [trust * np.exp(-depth) for depth in (1, 2)]
    assert found.shape.max_rows == 3
    assert found.tokens_per_round == pytest.approx(1 + sum(chances), rel=0.01)


def test_rows_in_between_cost_what_lies_between_and_never_more_than_further_ones() -> None:
    one = measured([[chain_sample(1)]])
    costs = replace(one, verify_seconds={1: 0.1, 2: 0.13, 3: 0.12, 5: 0.16}).costs(BeamShape(2, 3))
    assert costs.verify == pytest.approx((1.0, 1.2, 1.2, 1.4, 1.6))
    assert costs.draft_step == pytest.approx(0.02)


def test_a_disturbed_pass_does_not_hide_what_a_longer_context_costs() -> None:
    """Law: each row takes as much more as more rows do, also beyond those measured there."""
    near = {1: 0.1, 2: 0.1, 4: 0.1, 8: 0.1, 16: 0.15, 32: 0.15}  # the 16 were disturbed
    far = {1: 0.2, 2: 0.22, 4: 0.24, 8: 0.28, 16: 0.3}
    one = replace(measured([[]]), verify_seconds=near, far_verify_seconds=far, contexts=(100, 1100))
    costs = one.costs(BeamShape(2, 3))
    assert costs.growth[:3] == pytest.approx((0.001, 0.0012, 0.0013))
    assert costs.growth[7:] == pytest.approx((0.0015,) * 25)


@pytest.mark.parametrize(
    ("far", "contexts"), [({}, (100, 2100)), ({1: 0.2}, (100, 2100)), ({1: 0.2, 2: 0.2}, (9, 9))]
)
def test_costs_stay_as_they_are_where_no_longer_context_was_measured(
    far: dict[int, float], contexts: tuple[int, int]
) -> None:
    one = replace(measured([[]]), far_verify_seconds=far, contexts=contexts)
    costs = one.costs(BeamShape(2, 3))
    assert costs.at(5000) == costs


def test_a_pass_that_was_faster_at_a_longer_context_makes_none_cheaper() -> None:
    one = replace(
        measured([[]]), far_verify_seconds={1: 0.05, 2: 0.06, 4: 0.2}, contexts=(100, 2100)
    )
    costs = one.costs(BeamShape(2, 3))
    assert costs.growth[:2] == (0.0, 0.0)
    assert costs.at(5000).verify[:2] == costs.verify[:2]


def test_a_drafters_step_costs_what_it_took_in_that_shape() -> None:
    one = replace(measured([[]]), draft_seconds={(1, 2): 0.002, (2, 3): 0.01})
    assert one.costs(BeamShape(2, 3)).draft_step == pytest.approx(0.05)


def test_where_plain_decoding_is_best_a_draft_that_is_asked_for_still_costs_something() -> None:
    costs = measured([[]]).costs(PLAIN_BEAM_SHAPE)
    assert costs.draft_step == pytest.approx(0.02)
    assert costs.of_round(1, PLAIN_BEAM_SHAPE.num_draft_steps) == pytest.approx(1.02)


def test_a_longer_context_makes_rows_dearer_and_drafts_cheaper() -> None:
    far = {rows: 0.2 * (1 + 0.2 * (rows - 1)) for rows in (1, 2, 4)}
    costs = replace(
        measured([[]]), far_verify_seconds=far, contexts=(100, 2100), step_seconds=0.1
    ).costs(BeamShape(2, 3))
    assert costs.at(100) == costs.at(0) == costs
    assert costs.at(2100).verify[:5] == pytest.approx((1.0, 1.2, 1.4, 1.6, 1.8))
    assert costs.at(4100).verify[3] == pytest.approx((0.13 + 2 * 0.19) / 0.3)
    assert costs.at(2100).draft_step == pytest.approx(costs.draft_step / 2)


def test_a_round_is_counted_by_what_its_rows_promise_and_how_far_they_were_right() -> None:
    """Law: with rows right half as often as they say, guesses count half, along every walk."""
    half = chain_sample(0, log_prob=np.log(0.5))
    texts = [[half] * 40]
    shape = BeamShape(1, 3)
    assert tuning._tokens_per_round(texts, shape, 1.0) == pytest.approx(1.75, rel=0.01)
    assert tuning._tokens_per_round(texts, shape, 0.5) == pytest.approx(1.375, rel=0.01)
    assert tuning._tokens_per_round(texts, shape, 9.0) == pytest.approx(3.0)
    assert tuning._calibration(texts) == pytest.approx(5 / (5 + 40 * 0.9375))


def test_walks_pass_over_what_rounds_brought() -> None:
    """Law: sure guesses at the first token leave the next two to it."""
    sure, none = chain_sample(2, log_prob=0.0), chain_sample(0, log_prob=-99.0)
    text = [sure, sure, sure, none, none] * 8
    found = tuning._tokens_per_round([text], BeamShape(1, 3), 1.0)
    assert 1.0 < found < 2.0
    # Every walk comes to a first sure token: 3 tokens, then two plain rounds.
    assert found == pytest.approx(5 / 3, rel=0.05)


def test_walks_begin_at_each_of_the_first_tokens() -> None:
    sure, none = chain_sample(4, log_prob=0.0), chain_sample(0, log_prob=-99.0)
    found = tuning._tokens_per_round([[sure, none, none, none, none]], BeamShape(1, 5), 1.0)
    # From the first one a round to the end; from the others their rounds of one token.
    assert found == pytest.approx((5 + 4 + 3 + 2 + 1) / (1 + 4 + 3 + 2 + 1))


def test_acceptance_is_told_by_depth_and_by_joint_log_probability() -> None:
    samples = [chain_sample(right) for right in (0, 1, 4, 4)]
    assert tuning.acceptance_by_depth([samples]) == pytest.approx((3 / 4, 2 / 3, 1.0, 1.0))
    bins = tuning.acceptance_by_log_prob([samples], edges=(-2.5,))
    assert bins == ((-1e9, 0.5, 8), (-2.5, 5 / 8, 8))


def test_samples_say_how_the_models_own_text_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: along a text that the drafter knows, every sample is right to its end."""
    monkeypatch.setattr(samples, "NUM_PLAIN_STEPS", 12)
    monkeypatch.setattr(measuring, "FAR_CONTEXT", 64)
    target = toy_target()
    tokens = list(PROMPTS[0])
    for _ in range(16):
        hidden = target(mx.array(tokens), target.make_kv_cache())
        tokens.append(int(np.array(target.logits(hidden[-1:])).argmax()))
    oracle: Any = Oracle(target, PROMPTS[0], tokens[len(PROMPTS[0]) :])
    engine = Engine(target, oracle, target.make_kv_cache(), SamplingConfig())
    shares: list[float] = []
    found = measure(engine, PROMPTS[:1], TimeLimit(60.0), shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0
    [text] = found.texts
    assert len(text) == 12
    assert [bool(sample.accepted) for sample in text] == [True] * 9 + [False] * 3
    for sample in text[:9]:
        right = [d for d, ok in zip(sample.tree.depths, sample.accepted, strict=True) if ok]
        assert sorted(right) == [0, 1, 2, 3, 4]
    assert set(found.draft_seconds) == {(w, n) for w in range(1, 5) for n in range(2, 6)}
    assert set(found.verify_seconds) == {*range(1, 17), 20, 24, 28, 32}
    assert set(found.far_verify_seconds) == {1, 2, 4, 8, 16}
    assert found.contexts == (len(PROMPTS[0]) + 12, 64)


STEP = 0.1


class FakeClock:
    """Goes on by what a pass or a draft step costs, and by nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_row: float) -> None:
        self.now = 0.0
        self.pass_seconds = [STEP * (1 + per_row * rows) for rows in range(128)]
        self.draft_seconds = 0.005
        run_pass, run_step = Decoder.__call__, Drafter.step

        def timed_pass(target, tokens, *rest):
            self.now += self.pass_seconds[tokens.shape[0] - 1]
            return run_pass(target, tokens, *rest)

        def timed_step(*arguments):
            self.now += self.draft_seconds
            return run_step(*arguments)

        monkeypatch.setattr(Decoder, "__call__", timed_pass)
        monkeypatch.setattr(Drafter, "step", timed_step)
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def slow_down(self, times: float) -> None:
        self.pass_seconds = [times * seconds for seconds in self.pass_seconds]
        self.draft_seconds *= times


def tune_in_300_steps(monkeypatch: pytest.MonkeyPatch) -> tuning.Tuned:
    monkeypatch.setattr(measuring, "FAR_CONTEXT", 64)
    monkeypatch.setattr(
        tuning, "chat_prompt", lambda model, text: [ord(letter) % 50 for letter in text[:70]]
    )
    target = toy_target(num_layers=1)
    model = toy_model(target, toy_drafter(target))
    return tuning.tune(model, tuning.MAX_STEPS * STEP, lambda share: None)


@pytest.mark.parametrize("per_row", [0.02, 0.09, 1.0])
def test_tuning_takes_no_longer_than_it_announces(
    monkeypatch: pytest.MonkeyPatch, per_row: float
) -> None:
    """Law: whatever a row costs, all passes and drafts together take 300 plain steps at most."""
    clock = FakeClock(monkeypatch, per_row)
    tuned = tune_in_300_steps(monkeypatch)
    assert 100 * STEP < clock.now <= 300 * STEP
    if per_row < 0.1:
        speeds = [found.measured_per_second for found in tuned.candidates]
        told = [speed for speed in speeds if speed]
        assert len(told) in (5, 6) and speeds[: len(told)] == sorted(told, reverse=True)
        [plain] = [found for found in tuned.candidates if found.shape.num_draft_steps == 0]
        assert plain.measured_per_second == pytest.approx(1 / STEP)
        assert len(tuned.candidates) == 17


def test_plain_decoding_is_measured_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeClock(monkeypatch, 0.09)
    rank = tuning.rank
    monkeypatch.setattr(tuning, "rank", lambda found: rank(found)[::-1])
    best = tune_in_300_steps(monkeypatch).candidates[0]
    assert best.shape.num_draft_steps == 0
    assert best.measured_per_second == pytest.approx(1 / STEP)


def test_without_time_for_all_plain_decoding_and_the_best_shape_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: no shape wins without a measured round of its own beside one of plain decoding."""
    FakeClock(monkeypatch, 0.09)
    monkeypatch.setattr(tuning, "MAX_STEPS", 20)
    tuned = tune_in_300_steps(monkeypatch)
    told = [found for found in tuned.candidates if found.measured_per_second]
    assert [found.shape.num_draft_steps > 0 for found in told].count(False) == 1
    assert len(told) >= 2 and tuned.candidates[0] in told


def trial(num_rounds: int, num_tokens: int) -> DecodeStats:
    """Return figures of a trial whose last round gave its first token only."""
    return DecodeStats(num_rounds=num_rounds, emitted_tokens=num_tokens + 2, decode_seconds=1.0)


@pytest.mark.parametrize(("num_tokens", "expected"), [(20, 1 + 5 / 15), (40, 1 + 25 / 15)])
def test_what_rounds_brought_corrects_what_drafts_promise(num_tokens: int, expected: float) -> None:
    """Law: twenty rounds of no use or of twice the use weigh against five that came true."""
    plain = Candidate(BeamShape(1, 1), 1.0, 1.0, (trial(21, 20),))
    drafts = [
        Candidate(BeamShape(1, 4), 1.5, 1.0, (trial(21, num_tokens),)),
        Candidate(BeamShape(2, 4), 2.0, 1.0),
    ]
    found = tuning._corrected([plain, *drafts])
    assert found[0].tokens_per_round == 1.0
    assert found[2].tokens_per_round == pytest.approx(expected)
    assert found[1].tokens_per_round == pytest.approx(1 + (expected - 1) / 2)


@pytest.mark.parametrize("at_share", [0.0, 0.2, 0.5])
def test_a_machine_that_turns_slow_ends_the_measurement_and_not_the_result(
    monkeypatch: pytest.MonkeyPatch, at_share: float
) -> None:
    """Law: ten times slower from some moment on, it ends within what must be measured at all."""
    clock = FakeClock(monkeypatch, 0.09)
    run = tuning.TimeLimit.allows

    def allows(limit, seconds):
        if clock.now >= at_share * 300 * STEP and clock.draft_seconds == 0.005:
            clock.slow_down(10.0)
        return run(limit, seconds)

    monkeypatch.setattr(tuning.TimeLimit, "allows", allows)
    tuned = tune_in_300_steps(monkeypatch)
    assert clock.draft_seconds == 0.05
    assert clock.now <= 1.3 * 300 * STEP
    assert tuned.profile.shape == tuned.candidates[0].shape


def test_tuning_ends_with_a_profile_for_the_best_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "NUM_PLAIN_STEPS", 24)
    monkeypatch.setattr(measuring, "FAR_CONTEXT", 64)
    monkeypatch.setattr(tuning, "chat_prompt", lambda model, text: [7, 3, len(text) % 40])
    target = toy_target()
    model = toy_model(target, toy_drafter(target))
    tuned = tuning.tune(model, 60.0, lambda share: None)
    best = tuned.candidates[0]
    assert tuned.profile.shape == best.shape
    assert tuned.profile.key.model == target.fingerprint
    assert tuned.profile.costs.verify[0] == 1.0
    save_profile(tuned.profile, tmp_path)
    assert find_profile(tuned.profile.key, tmp_path) == tuned.profile
    assert {found.shape.num_draft_steps for found in tuned.candidates} == {0, 1, 2, 3, 4}
