"""Summaries, tables and comparisons of made-up results, by hand and against golden files."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from redrafter_mlx.bench.compare import compare
from redrafter_mlx.bench.report import report, to_csv
from redrafter_mlx.bench.results import Trial
from redrafter_mlx.bench.summary import Spread, summarize
from tests.bench.synthetic_results import DRAFTED, LONGER, plain_trial, synthetic_results

GOLDEN = Path(__file__).parent / "golden"


def summary(results, name, category=None):
    (found,) = (one for one in summarize(results, category) if one.name == name)
    return found


def rates_of(value, digits=6):
    return (round(value.median, digits), round(value.least, digits), round(value.most, digits))


def test_speed_is_all_tokens_over_all_time_of_a_pass():
    """40 tokens in 0.9 s, then in 1.125 s; the spread is over the passes."""
    plain = summary(synthetic_results(), "plain")
    expected = (40 / 0.9 + 40 / 1.125) / 2, 40 / 1.125, 40 / 0.9
    assert rates_of(plain.tokens_per_second) == tuple(round(one, 6) for one in expected)
    assert plain.num_passes == 2


def test_ratios_are_taken_question_by_question():
    results = synthetic_results()
    drafted = summary(results, DRAFTED.name)
    assert rates_of(drafted.over_plain) == (2.0, 2.0, 2.0)
    assert rates_of(drafted.over_mlx_lm) == (1.6, 1.6, 1.6)
    fast = [
        replace(trial, decode_seconds=trial.decode_seconds / 2)
        if (trial.configuration, trial.question_id) == (DRAFTED.name, 81)
        else trial
        for trial in results.trials
    ]
    drafted = summary(replace(results, trials=tuple(fast)), DRAFTED.name)
    assert rates_of(drafted.over_plain) == (3.0, 2.0, 4.0)
    alone = tuple(one for one in results.trials if one.configuration == DRAFTED.name)
    drafted = summary(replace(results, trials=alone), DRAFTED.name)
    assert drafted.over_plain is None
    assert drafted.over_mlx_lm is None


def test_every_round_is_counted_and_the_first_token_is_prefills():
    """Apple's bench left out the first round: 20 / 7 would be 2.857 and not 2.5."""
    drafted = summary(synthetic_results(), DRAFTED.name)
    assert drafted.tokens_per_round == 20 / 8
    assert drafted.rows_per_round == 10.0
    assert drafted.acceptance_by_depth == (0.75, 0.5, 0.25)
    assert summary(synthetic_results(), "plain").tokens_per_round == 1.0


def test_an_answer_that_ended_early_was_drafted_less_deep():
    results = synthetic_results()
    trials = list(results.trials)
    trials[2] = replace(trials[2], drafted_by_depth=(2,), accepted_by_depth=(2,))
    drafted = summary(replace(results, trials=tuple(trials)), DRAFTED.name)
    assert drafted.acceptance_by_depth == (20 / 26, 0.5, 0.25)


def test_a_pass_that_was_broken_off_has_no_rate():
    results = synthetic_results()
    first = results.trials[:8]
    extra = plain_trial("plain", (81, "writing"), 1, 0.01)
    cut = replace(results, trials=(*first, extra))
    plain = summary(cut, "plain")
    assert plain.num_passes == 1
    assert rates_of(plain.tokens_per_second) == (round(40 / 0.9, 6),) * 3


def test_texts_are_counted_once_a_prompt():
    longer = summary(synthetic_results(), LONGER.name)
    assert (longer.num_answers, longer.num_equal) == (2, 1)
    drafted = summary(synthetic_results(), DRAFTED.name)
    assert (drafted.num_answers, drafted.num_equal) == (2, 2)


def test_a_text_that_differs_in_a_later_pass_alone_is_told():
    """What is adapted drafts otherwise in each pass."""
    results = synthetic_results()
    trials = [
        replace(one, first_difference=9, difference_margin=0.5)
        if (one.configuration, one.number) == (DRAFTED.name, 1)
        else one
        for one in results.trials
    ]
    differing = replace(results, trials=tuple(trials))
    assert summary(differing, DRAFTED.name).num_equal == 0
    assert report(differing).count(f"  - {DRAFTED.name}, question ") == 2
    always = [replace(one, first_difference=9) for one in results.trials]
    text = report(replace(results, trials=tuple(always)))
    assert text.count(f"  - {DRAFTED.name}, question ") == 2


def test_tokens_are_told_by_who_drafted_them():
    drafted = summary(synthetic_results(), DRAFTED.name)
    assert (drafted.accepted_by_drafter, drafted.accepted_by_lookup) == (4 * 9, 4 * 3)


def test_prefill_is_told_apart():
    """66 tokens in an eighth of a second, each time."""
    assert summary(synthetic_results(), "plain").prompt_tokens_per_second == 66 / 0.125
    (head, _, row) = report(synthetic_results()).partition("## Speed\n\n")[2].splitlines()[:3]
    columns = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert columns["prefill, tokens/s"] == "528"


def test_a_category_is_summed_up_alone():
    math = summary(synthetic_results(), "plain", "math")
    assert rates_of(math.tokens_per_second) == (45.0, 40.0, 50.0)
    assert summarize(synthetic_results(), "coding") == ()


def test_an_answer_of_one_token_has_no_speed():
    results = synthetic_results()
    short = replace(
        results.trials[0], emitted_tokens=1, num_rounds=0, verified_rows=0, decode_seconds=0.0
    )
    only = summary(replace(results, trials=(short,)), "plain")
    assert only.tokens_per_second == Spread(0.0, 0.0, 0.0)
    assert (only.tokens_per_round, only.over_plain) == (0.0, None)
    assert "| plain | 0.00" in report(replace(results, trials=(short,)))


def test_a_report_says_how_answers_are_chosen_and_where_they_end():
    results = synthetic_results()
    assert "- answers: greedy, up to 21 tokens, past any end of sequence\n" in report(results)
    changed = tuple(
        replace(one, temperature=0.7, top_p=0.9, seed=3, ignores_eos=False)
        for one in results.configurations
    )
    line = "- answers: temperature 0.7, top-p 0.9, seed 3, up to 21 tokens\n"
    assert line in report(replace(results, configurations=changed))


def test_one_pass_is_told_as_one():
    results = synthetic_results()
    assert "tokens/s over 2 passes over 2 prompts, ratios over the prompts." in report(results)
    first = results.trials[:8]
    once = report(replace(results, trials=first))
    assert "\nTokens/s over 2 prompts: one pass over the questions, so there is no spread" in once
    assert " Ratios: median (least to most) over the prompts." in once
    assert "| plain | 44.44 | 1.000 (1.000 to 1.000) |" in once
    # Broken off where all but one side had answered the second prompt.
    assert "\nTokens/s over 1 or 2 prompts: one pass" in report(replace(results, trials=first[:7]))


def test_a_single_question_has_ratios_without_a_spread():
    results = synthetic_results()
    single = tuple(one for one in results.trials if one.question_id == 81)
    text = report(replace(results, trials=single))
    assert "tokens/s over 2 passes over one prompt. Prefill is apart" in text
    assert "| plain | 36.00 (32.00 to 40.00) | 1.000 | 0.800 |" in text
    once = report(replace(results, trials=tuple(one for one in single if one.number == 0)))
    assert "to" not in next(line for line in once.splitlines() if line.startswith("| plain | "))
    assert "median (least to most)" not in once


def test_the_report_is_the_golden_one():
    assert report(synthetic_results()) == (GOLDEN / "report.md").read_text(encoding="utf-8")


def test_the_csv_is_the_golden_one():
    text = to_csv(synthetic_results())
    assert text == (GOLDEN / "results.csv").read_text(encoding="utf-8")
    lines = list(csv.DictReader(text.splitlines()))
    assert len(lines) == 16
    assert lines[2]["accepted_by_depth"] == "6 4 2"
    assert lines[2]["tokens_per_second"] == "80.000"
    assert lines[2]["first_difference"] == ""
    assert set(Trial.__slots__) < set(lines[0])


def test_apples_figures_and_the_papers_stand_in_the_report():
    lines = report(synthetic_results()).splitlines()
    place = lines.index("## Beside what Apple published")
    (row,) = (line for line in lines[place:] if line.startswith(f"| {DRAFTED.name} |"))
    assert row.endswith(" | 80.00 | 60.40 | 60.40 | 2.00 | 1.52 | 1.52 | 2.50 | 2.41 | 2.44 |")
    results = synthetic_results()
    linux = replace(results.machine, chip="AMD EPYC", device="cpu")
    assert "Beside" not in report(replace(results, machine=linux))


def test_a_report_of_nothing_says_so():
    results = replace(synthetic_results(), trials=(), phases=(), drafter=None)
    text = report(results)
    assert "No trial was finished." in text
    assert "drafter: none" in text
    assert to_csv(results).count("\n") == 1


def test_a_name_cannot_break_a_table():
    results = synthetic_results()
    evil = replace(results, target=replace(results.target, name="a|b\n# c"))
    lines = report(evil).splitlines()
    assert lines[0] == "# Bench: a\\|b # c"
    assert "# c" not in lines


def slowed(results, factor):
    trials = tuple(
        replace(trial, decode_seconds=trial.decode_seconds * factor) for trial in results.trials
    )
    return replace(results, trials=trials)


@pytest.mark.parametrize(
    ("factor", "exceeds"), [(1.0, False), (1.24, False), (1.26, True), (0.7, True)]
)
def test_a_difference_exceeds_the_spread_where_no_pass_overlaps(factor, exceeds):
    """The passes of one run are 25 % apart."""
    results = synthetic_results()
    for one in compare(results, slowed(results, factor)).comparisons:
        assert one.ratio == pytest.approx(1 / factor)
        assert one.exceeds_spread is exceeds


def test_one_pass_has_no_spread_to_exceed():
    results = synthetic_results()
    once = replace(results, trials=results.trials[:8])
    compared = compare(results, slowed(once, 10.0))
    assert {one.exceeds_spread for one in compared.comparisons} == {None}


def test_what_only_one_side_has_and_what_else_differs_is_told():
    results = synthetic_results()
    other = replace(
        results,
        configurations=(*results.configurations[:3], replace(LONGER, name="width 4, length 4")),
        trials=tuple(one for one in results.trials if one.configuration != LONGER.name),
        machine=replace(results.machine, packages={"mlx": "0.33.0"}, git_commit=None),
        drafter=None,
    )
    compared = compare(results, other)
    assert compared.only_first == (LONGER.name,)
    assert compare(other, results).only_second == (LONGER.name,)
    assert {name for name, _, _ in compared.differences} == {
        "git_commit",
        "drafter",
        "drafter_bits",
        "drafter_dtype",
        "package mlx",
        "package python",
    }
    changed = replace(PLAIN_AT_40, configurations=results.configurations)
    ((name, first, second),) = compare(changed, PLAIN_AT_40).differences
    assert (name, first, second) == ("plain: max_tokens", "21", "40")


@pytest.mark.parametrize(
    ("changes", "what", "pair"),
    [
        ({"questions_digest": "0"}, "questions", ("8f4c1d2e", "0")),
        (
            {"machine": replace(synthetic_results().machine, num_cpus=8)},
            "num_cpus",
            ("24", "8"),
        ),
        (
            {"drafter": replace(synthetic_results().drafter, dtype="float32")},
            "drafter_dtype",
            ("float16", "float32"),
        ),
    ],
)
def test_what_may_explain_a_ratio_is_told(changes, what, pair):
    results = synthetic_results()
    assert compare(results, replace(results, **changes)).differences == ((what, *pair),)


PLAIN_AT_40 = replace(
    synthetic_results(),
    configurations=tuple(
        replace(one, max_tokens=40) if one.name == "plain" else one
        for one in synthetic_results().configurations
    ),
)
