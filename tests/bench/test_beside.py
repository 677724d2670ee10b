"""One's own figures beside Apple's and the paper's, on made-up results of an M2 Ultra."""

from dataclasses import replace

import pytest

from redrafter_mlx.bench.beside import beside_notes, beside_published
from redrafter_mlx.bench.published import published_cells, published_plain_milliseconds
from tests.bench.synthetic_results import DRAFTED, LONGER, synthetic_results


def beside(results, name):
    (found,) = (one for one in beside_published(results) if one.name == name)
    return found


def on(results, chip):
    return replace(results, machine=replace(results.machine, chip=chip))


def of(results, **target):
    return replace(results, target=replace(results.target, **target))


def rounded(figures):
    return (
        round(figures.tokens_per_second, 2),
        round(figures.times_plain, 2),
        round(figures.tokens_per_round, 2),
    )


def test_a_draft_stands_beside_the_cell_of_its_shape():
    found = beside(synthetic_results(), DRAFTED.name)
    assert rounded(found.own) == (80.0, 2.0, 2.5)
    assert rounded(found.apple) == (60.40, 1.52, 2.41)
    assert rounded(found.paper) == (60.40, 1.52, 2.44)
    longer = beside(synthetic_results(), LONGER.name)
    assert rounded(longer.apple)[0] == 59.54
    assert longer.paper is None, "Table 2 has length 4 alone"


def test_the_baselines_stand_beside_apples():
    plain = beside(synthetic_results(), "plain")
    assert rounded(plain.apple) == (39.64, 1.0, 1.0)
    peer = beside(synthetic_results(), "mlx-lm")
    assert rounded(peer.own)[1] == 1.25
    assert rounded(peer.apple) == (40.44, 1.02, 1.0)
    assert (plain.paper, peer.paper) == (None, None)


def test_plain_decoding_that_was_not_run_leaves_no_ratio():
    results = synthetic_results()
    alone = replace(
        results, trials=tuple(one for one in results.trials if one.configuration == DRAFTED.name)
    )
    (found,) = beside_published(alone)
    assert found.own.times_plain is None
    assert found.apple.times_plain == pytest.approx(1.52, abs=0.005)


@pytest.mark.parametrize("chip", ["AMD EPYC", "Apple M4", "Apple M1 Pro", "M2 Extreme", ""])
def test_another_chip_has_nothing_beside_it(chip):
    results = on(synthetic_results(), chip)
    assert beside_published(results) == ()
    assert beside_notes(results) == ()


def test_another_model_has_nothing_beside_it():
    assert beside_published(of(synthetic_results(), name="llama-3.2-1b")) == ()


def test_a_chip_that_only_apples_runs_have_has_no_paper():
    found = beside(on(synthetic_results(), "Apple M2"), DRAFTED.name)
    assert found.paper is None
    assert rounded(found.apple)[1] == 1.64
    assert not any(note.startswith("Paper") for note in beside_notes(synthetic_m2()))


def synthetic_m2():
    return on(synthetic_results(), "Apple M2")


@pytest.mark.parametrize(
    ("name", "tokens_per_second"), [("vicuna-13b", 43.55), ("lmsys/vicuna-33b-v1.3", 1.28)]
)
def test_a_larger_vicuna_has_the_papers_figures_alone(name, tokens_per_second):
    results = of(synthetic_results(), name=name)
    (found,) = beside_published(results)
    assert found.name == DRAFTED.name
    assert found.apple is None
    assert found.paper.tokens_per_second == tokens_per_second
    swapped = any("swapped memory" in note for note in beside_notes(results))
    assert swapped is ("33b" in name)
    assert not any(note.startswith("Apple") for note in beside_notes(results))


def test_bfloat16_stands_beside_apples_bfloat16():
    found = beside(of(synthetic_results(), dtype="bfloat16"), DRAFTED.name)
    (cell,) = (
        one
        for one in published_cells("M2 Ultra", "bfloat16")
        if (one.beam_width, one.beam_length) == (3, 4)
    )
    plain = published_plain_milliseconds("M2 Ultra", "bfloat16")
    assert found.apple.tokens_per_second == cell.tokens_per_second
    assert found.apple.times_plain == pytest.approx(cell.tokens_per_second * plain / 1e3)


def test_a_sampled_bench_stands_beside_apples_sampling():
    results = synthetic_results()
    warm = tuple(replace(one, temperature=0.8) for one in results.configurations)
    found = beside(replace(results, configurations=warm), DRAFTED.name)
    (cell,) = (
        one
        for one in published_cells("M2 Ultra", mode="sampling")
        if (one.beam_width, one.beam_length) == (3, 4)
    )
    assert found.apple.tokens_per_round == cell.tokens_per_round
    assert found.paper is None, "Table 2 is greedy"


def test_the_notes_say_what_is_not_alike():
    results = of(synthetic_results(), bits=4)
    (unlike,) = (note for note in beside_notes(results) if note.startswith("Not alike"))
    for what in (
        "suite mt-bench (Apple's is --suite paper)",
        "answers of up to 21 tokens (Apple's have 200)",
        "a target in 4 bits",
        "lookup",
    ):
        assert what in unlike
    alike = replace(
        synthetic_results(),
        suite="paper",
        drafter=replace(results.drafter, bits=None),
        configurations=tuple(
            replace(one, uses_lookup=False, is_adaptive=False, max_tokens=200)
            for one in results.configurations
        ),
    )
    assert not any(note.startswith("Not alike") for note in beside_notes(alike))
    assert not any("cold" in note for note in beside_notes(alike))


def test_apples_cold_cell_is_called_cold():
    results = synthetic_results()
    cold = tuple(
        replace(one, beam_width=1, beam_length=2) if one.name == LONGER.name else one
        for one in results.configurations
    )
    assert any("cold" in note for note in beside_notes(replace(results, configurations=cold)))
