"""Fair measuring: the order of the sides, what is counted, what is compared, what is kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.bench.measure import (
    WARM_UP_TOKENS,
    Bench,
    cells,
    missing_cells,
    time_phases,
)
from redrafter_mlx.bench.plain_answers import PlainAnswers
from redrafter_mlx.bench.results import MLX_LM, PHASES, PLAIN, SCHEMA_VERSION, BenchResults
from redrafter_mlx.bench.sides import our_sides, peer_side, shape_name
from redrafter_mlx.bench.store import RESULTS, Recorder, read_results
from redrafter_mlx.config import BeamShape, SamplingConfig
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import ConfigError, PromptError
from redrafter_mlx.generation import generate
from tests.bench.synthetic_results import MACHINE, TARGET
from tests.bench.synthetic_results import PLAIN as PLAIN_CONFIGURATION
from tests.bench.tiny import GREEDY, QUESTIONS, SUITE, fake_sides, loaded, tiny_folder, tiny_model
from tests.toy import Oracle


def nothing(done, words):
    """Show nothing."""


def results_for(sides):
    return BenchResults(
        schema_version=SCHEMA_VERSION,
        started_at="2026-01-31T12:00:00+00:00",
        suite="tiny",
        questions_digest=SUITE.digest,
        machine=MACHINE,
        target=TARGET,
        drafter=None,
        configurations=tuple(side.configuration for side in sides),
        trials=(),
        phases=(),
        notes=(),
    )


def bench_of(model, sides, folder, suite=SUITE, options=GREEDY):
    recorder = Recorder(results_for(sides), folder)
    return Bench(model, suite, sides, PlainAnswers(model, options.plain_config), recorder)


def run(bench, num_trials=1):
    bench.run(missing_cells(bench.suite, bench.sides, num_trials, bench.recorder), nothing)
    return bench.recorder.results


def test_the_sides_take_turns_and_each_is_first_as_often_as_any_other():
    sides = fake_sides(tiny_model(), "abc")
    order = list(cells(SUITE, sides, num_trials=3))
    names = [cell.side.configuration.name for cell in order]
    assert "".join(names[:9]) == "abcbcacab"
    assert Counter(names[::3]) == {"a": 3, "b": 3, "c": 3}
    assert len({cell.key for cell in order}) == len(order) == 27
    # A trial is a pass over all questions, and at each of them all sides answer.
    assert [cell.number for cell in order] == [0] * 9 + [1] * 9 + [2] * 9
    for start in range(0, 27, 3):
        assert len({cell.question for cell in order[start : start + 3]}) == 1


def test_every_side_is_warmed_up_before_the_first_answer_is_timed(tmp_path):
    """Apple's first configuration was cold: 41.8 ms a round and not 35."""
    suite = replace(SUITE, max_tokens=40)
    options = replace(GREEDY, max_tokens=40)
    model = tiny_model()
    sides = fake_sides(model, "abc")
    results = run(bench_of(model, sides, tmp_path / "out", suite, options))
    log = sides[0].log
    assert log[:3] == [("a", WARM_UP_TOKENS), ("b", WARM_UP_TOKENS), ("c", WARM_UP_TOKENS)]
    assert log[3:] == [(one.configuration, 40) for one in results.trials]
    assert len(results.trials) == 9


def test_every_round_is_counted(tmp_path):
    """Apple left out the first one. Each brings the target's own token and what it accepted."""
    model = tiny_model()
    prompt = PlainAnswers(model, GREEDY.plain_config).prompt(QUESTIONS[0], 1)
    plain = generate(model, prompt, replace(GREEDY.plain_config, max_tokens=40))
    oracle = Oracle(model.target, prompt, list(plain.tokens))
    model = replace(model, drafter=oracle)
    options = replace(GREEDY, max_tokens=31, shapes=(BeamShape(1, 4),))
    suite = replace(SUITE, questions=QUESTIONS[:1])
    results = run(bench_of(model, our_sides(model, options), tmp_path / "out", suite, options))
    (fixed,) = (one for one in results.trials if one.configuration == "(1,4) fixed")
    assert fixed.emitted_tokens == 31
    # 30 tokens behind the first: seven rounds of four, and one of two.
    assert (fixed.num_rounds, fixed.num_plain_steps) == (8, 0)
    assert sum(fixed.accepted_by_depth) == 30 - fixed.num_rounds
    assert fixed.drafted_by_depth[0] == fixed.num_rounds
    (own,) = (one for one in results.trials if one.configuration == PLAIN)
    assert (own.num_rounds, own.num_plain_steps, own.verified_rows) == (30, 30, 30)
    assert own.drafted_by_depth == ()


def test_a_planted_difference_is_found_with_its_place_and_gap(tmp_path):
    model = tiny_model()
    sides = fake_sides(model, "ab", b={"changed": 3})
    results = run(bench_of(model, sides, tmp_path / "out"))
    for trial in results.trials:
        assert trial.is_compared
        assert trial.first_difference == (3 if trial.configuration == "b" else None)
    (trial,) = (one for one in results.trials if (one.configuration, one.question_id) == ("b", 5))
    plain = PlainAnswers(model, GREEDY.plain_config).answer(QUESTIONS[0], 1)
    prefix = mx.array([*plain.prompt_tokens, *plain.tokens[:3]])
    target = model.target
    logits = np.sort(np.array(target.logits(target(prefix, target.make_kv_cache()))[-1]))
    assert trial.difference_margin == pytest.approx(logits[-1] - logits[-2], abs=1e-4)
    assert trial.difference_margin > 0.0


def test_in_the_second_turn_all_sides_get_the_models_own_first_answer(tmp_path):
    model = tiny_model()
    suite = replace(SUITE, num_turns=2)
    bench = bench_of(model, fake_sides(model, "ab"), tmp_path / "out", suite)
    results = run(bench)
    first = bench.plain.answer(QUESTIONS[0], 1)
    prompt = model.tokenizer.decode(bench.plain.answer(QUESTIONS[0], 2).prompt_tokens)
    assert prompt == f"<user>Say a rhyme<assistant>{first.text}<user>And again<answer>"
    asked = Counter((one.question_id, one.turn) for one in results.trials)
    # The last question has one turn.
    assert asked == {(5, 1): 2, (5, 2): 2, (9, 1): 2, (9, 2): 2, (11, 1): 2}
    lengths = {one.prompt_tokens for one in results.trials if (one.question_id, one.turn) == (5, 2)}
    assert lengths == {len(prompt)}


def test_a_question_that_does_not_fit_is_told_and_no_other_is_left_out(tmp_path):
    """Apple's loop dropped 13 of 80 by their characters, without a word."""
    model = tiny_model(max_positions=60)
    long = replace(QUESTIONS[1], turns=("x" * 80,))
    suite = replace(SUITE, questions=(QUESTIONS[0], long, QUESTIONS[2]))
    results = run(bench_of(model, fake_sides(model, "a"), tmp_path / "out", suite))
    assert [one.question_id for one in results.trials] == [5, 11]
    assert results.notes == (
        "Question 9, turn 1 was not asked: its 94 tokens do not fit the context of 60",
    )
    # Nor is it what the sides are warmed up with.
    run(
        bench_of(
            model,
            fake_sides(model, "a"),
            tmp_path / "long",
            replace(suite, questions=(long, QUESTIONS[0])),
        )
    )
    with pytest.raises(PromptError, match="No question can be asked: its 94 tokens do not fit"):
        run(
            bench_of(
                model, fake_sides(model, "a"), tmp_path / "no", replace(suite, questions=(long,))
            )
        )


def test_an_interrupted_bench_goes_on_with_exactly_what_is_missing(tmp_path):
    model = tiny_model()
    sides = fake_sides(model, "abc", b={"fails_at": 4})
    bench = bench_of(model, sides, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        run(bench, num_trials=2)
    kept = read_results(tmp_path / "out").trials
    assert kept == bench.recorder.results.trials
    assert 0 < len(kept) < 18
    again = bench_of(model, fake_sides(model, "abc"), tmp_path / "again")
    again.recorder.results = replace(again.recorder.results, trials=kept)
    trials = run(again, num_trials=2).trials
    assert trials[: len(kept)] == kept
    keys = [(one.number, one.question_id, one.turn, one.configuration) for one in trials]
    wanted = {cell.key for cell in cells(SUITE, again.sides, 2)}
    assert len(keys) == len(set(keys)) == 18
    assert set(keys) == wanted
    # Nothing is left, so nothing is run, not even to warm up.
    num_calls = len(again.sides[0].log)
    run(again, num_trials=2)
    assert len(again.sides[0].log) == num_calls


def test_progress_ends_at_the_tokens_that_were_announced(tmp_path):
    model = tiny_model()
    options = replace(GREEDY, shapes=(BeamShape(1, 2),))
    bench = bench_of(model, our_sides(model, options), tmp_path / "out", options=options)
    todo = missing_cells(bench.suite, bench.sides, 1, bench.recorder)
    announced, seen = bench.num_tokens(todo), []
    bench.run(todo, lambda done, words: seen.append((done, words)))
    assert seen[-1] == (announced, "12 of 12")
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_phases_come_from_a_pass_of_their_own(tmp_path):
    model = tiny_model()
    options = replace(GREEDY, shapes=(BeamShape(2, 3),))
    sides = our_sides(model, options)
    results = run(bench_of(model, sides, tmp_path / "out", options=options))
    phases = {one.configuration: one for one in results.phases}
    assert "(2,3) fixed" in phases
    assert PLAIN not in phases
    found = phases["(2,3) fixed"]
    seconds = {phase: getattr(found, f"{phase}_seconds") for phase in PHASES}
    assert found.num_rounds > 0
    assert min(seconds.values()) > 0.0
    # What is timed in parts is no side of the timed trials, and teaches it nothing.
    assert all(side.config.timed_every == 0 for side in sides)
    side = sides[1]
    timed = side.fresh(timed_every=1)
    assert timed.model.pace is not side.model.pace
    assert time_phases(side, [[1, 2, 3]], 8).configuration == side.configuration.name


def test_one_disturbed_prompt_changes_no_phase():
    """Two rounds a prompt; in the second one the machine stood still while it drafted."""
    seconds = [0.02, 9.0, 0.04]
    stats = [
        DecodeStats(num_timed_rounds=2, part_seconds={"draft": value, "verify": 0.2})
        for value in seconds
    ]
    answers = iter([*stats, DecodeStats()])
    timed = SimpleNamespace(answer=lambda *_: SimpleNamespace(stats=next(answers)))
    side = SimpleNamespace(configuration=PLAIN_CONFIGURATION, fresh=lambda *, timed_every: timed)
    found = time_phases(side, [[1]] * 4, 8)
    assert found.num_rounds == 6
    assert found.draft_seconds == pytest.approx(6 * 0.02)
    assert found.verify_seconds == pytest.approx(6 * 0.1)
    assert found.commit_seconds == 0.0


def test_every_side_has_an_experience_of_its_own():
    model = tiny_model()
    sides = our_sides(model, replace(GREEDY, shapes=(BeamShape(2, 3), BeamShape(1, 2))))
    paces = [side.model.pace for side in sides]
    assert len({id(pace) for pace in paces}) == len(sides)
    assert all(pace is not model.pace for pace in paces)


def test_the_names_say_what_runs():
    model = tiny_model()
    options = replace(GREEDY, shapes=(BeamShape(2, 3), BeamShape(1, 4)))
    sides = {side.configuration.name: side for side in our_sides(model, options)}
    default = shape_name(model.beam_shape)
    assert list(sides) == [
        "plain",
        f"{default} adapted + lookup",
        f"{default} fixed",
        "(2,3) fixed",
    ]
    adapted, fixed = sides[f"{default} adapted + lookup"], sides["(2,3) fixed"]
    assert adapted.config.beam is None
    assert adapted.config.is_adaptive and adapted.config.use_lookup
    assert not (fixed.config.is_adaptive or fixed.config.use_lookup)
    assert (fixed.configuration.beam_width, fixed.configuration.beam_length) == (2, 3)
    without = [side.configuration for side in our_sides(model, replace(options, uses_lookup=False))]
    assert without[1].name == f"{default} adapted"
    assert not without[1].uses_lookup


def test_a_budget_of_rows_is_told_in_the_name():
    assert shape_name(BeamShape(2, 4)) == "(2,4)"
    assert shape_name(BeamShape(2, 4, 7)) == "(2,4)"
    assert shape_name(BeamShape(2, 4, 5)) == "(2,4) 5 rows"


def test_without_a_drafter_lookups_are_measured_alone_and_shapes_are_refused():
    model = tiny_model(has_drafter=False)
    names = [side.configuration.name for side in our_sides(model, GREEDY)]
    assert names == ["plain", "lookup alone, adapted"]
    alone = our_sides(model, GREEDY)[1].configuration
    assert (alone.beam_width, alone.uses_lookup) == (None, True)
    assert len(our_sides(model, replace(GREEDY, uses_lookup=False))) == 1
    with pytest.raises(ConfigError, match="toy has no drafter, so there are no shapes"):
        our_sides(model, replace(GREEDY, shapes=(BeamShape(1, 2),)))


def test_a_shape_that_was_measured_to_be_plain_leaves_lookups():
    model = replace(tiny_model(), beam_shape=BeamShape(1, 1))
    names = [side.configuration.name for side in our_sides(model, GREEDY)]
    assert names == ["plain", "lookup alone, adapted"]


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("ignores_eos", [False, True])
def test_mlx_lm_answers_and_counts_as_we_do(tmp_path, bits, ignores_eos):
    """The same weights, the same prompt, the same rule to stop: the same ids."""
    model = loaded(tiny_folder(tmp_path / "model", bits=bits))
    options = replace(GREEDY, ignores_eos=ignores_eos, max_tokens=9)
    plain = our_sides(model, options)[0]
    prompt = [5, 9, 60, 7]
    ours = plain.answer(prompt, 9)
    # An end of the answer in its midst.
    end = next(token for token in ours.tokens[1:] if token != ours.tokens[0])
    model = replace(model, eos_ids=frozenset({end}))
    ours = our_sides(model, options)[0].answer(prompt, 9)
    theirs = peer_side(model, options).answer(prompt, 9)
    assert theirs.tokens == ours.tokens
    assert len(theirs.tokens) == 9 if ignores_eos else theirs.tokens.index(end) + 1
    assert theirs.stats.num_rounds == ours.stats.num_rounds == len(ours.tokens) - 1
    assert theirs.time_to_first_token_seconds > 0.0
    assert theirs.decode_seconds > 0.0


def test_mlx_lm_stops_where_the_context_ends(tmp_path):
    model = loaded(tiny_folder(tmp_path / "model"))
    options = replace(GREEDY, ignores_eos=True)
    prompt = [5] * 505
    assert len(peer_side(model, options).answer(prompt, 20).tokens) == 7
    assert len(our_sides(model, options)[0].answer(prompt, 20).tokens) == 7


def test_mlx_lm_shares_the_weights(tmp_path):
    model = loaded(tiny_folder(tmp_path / "model", bits=4))
    peer = peer_side(model, GREEDY).peer
    ours = model.target.model.layers[0].mlp.down_proj
    theirs = peer.model.layers[0].mlp.down_proj
    assert (theirs.bits, theirs.group_size) == (4, 32)
    assert mx.array_equal(theirs.weight, ours.weight)


def test_sampled_texts_of_mlx_lm_are_not_compared(tmp_path):
    model = loaded(tiny_folder(tmp_path / "model"))
    options = replace(GREEDY, sampling=SamplingConfig(temperature=1.0, seed=3), max_tokens=6)
    sides = [peer_side(model, options), *our_sides(model, options)]
    suite = replace(SUITE, questions=QUESTIONS[:1])
    results = run(bench_of(model, sides, tmp_path / "out", suite, options))
    compared = {one.configuration: one.is_compared for one in results.trials}
    assert compared[MLX_LM] is False
    assert compared[PLAIN] is True
    assert all(one.first_difference is None for one in results.trials)


def test_a_trial_has_all_that_happened(tmp_path):
    model = tiny_model()
    results = run(bench_of(model, our_sides(model, GREEDY), tmp_path / "out"))
    assert (tmp_path / "out" / RESULTS).is_file()
    for trial in results.trials:
        assert trial.emitted_tokens == 12
        assert trial.time_to_first_token_seconds > 0.0
        assert trial.decode_seconds > 0.0
        assert trial.peak_memory_bytes > 0
        assert trial.category in ("writing", "math")
        assert trial.verified_rows >= trial.num_rounds >= 1
