"""A prediction is called one, and comes with its error and its assumptions."""

from dataclasses import replace

import pytest

from redrafter_mlx.bench.chips import find_chip
from redrafter_mlx.bench.fit import constants_for
from redrafter_mlx.bench.model_sizes import apple_drafter, find_target
from redrafter_mlx.bench.predict import ASSUMPTIONS, predict_shapes
from redrafter_mlx.bench.prediction_report import (
    error_line,
    fastest_line,
    notes,
    predicted_tables,
)
from redrafter_mlx.bench.round_cost import APPLE_ROUND, RoundShape

VICUNA = find_target("vicuna-7b")
DRAFTER = apple_drafter(VICUNA)
M2_ULTRA = find_chip("M2 Ultra")


def test_every_title_says_predicted_and_the_notes_have_the_assumptions():
    tables = predicted_tables(VICUNA, DRAFTER, M2_ULTRA)
    assert all(table.title.startswith("Predicted") for table in tables)
    assert fastest_line(VICUNA, DRAFTER, M2_ULTRA).startswith("Predicted")
    assert {f"- {line}" for line in ASSUMPTIONS} <= set(notes(M2_ULTRA))


def test_a_shapes_row_has_both_rounds():
    constants = constants_for(M2_ULTRA)
    four_bits = replace(VICUNA, bits=4), replace(DRAFTER, bits=4)
    (ours,) = (
        one for one in predict_shapes(*four_bits, constants) if one.shape == RoundShape(3, 4)
    )
    shapes = predict_shapes(four_bits[0], DRAFTER, constants, APPLE_ROUND)
    (apples,) = (one for one in shapes if one.shape == RoundShape(3, 4))
    table, _ = predicted_tables(*four_bits, M2_ULTRA)
    assert "vicuna-7b in 4 bits on M2 Ultra, the drafter in 4 bits" in table.title
    (row,) = (row for row in table.rows if row[0] == "3, 4")
    draft, verify, rest, whole = map(float, row[3:7])
    assert row[1:3] == ("10", f"{ours.tokens_per_round:.2f}")
    assert draft + verify + rest == pytest.approx(whole, abs=0.2)
    assert whole == pytest.approx(ours.round.milliseconds, abs=0.051)
    assert rest == pytest.approx(constants.fixed_milliseconds / 2, abs=0.051)
    assert row[7] == f"{ours.tokens_per_second:.1f}"
    assert row[8] == f"{ours.speedup:.2f} ({ours.least_speedup:.2f}-{ours.most_speedup:.2f})"
    assert row[9] == f"{apples.speedup:.2f}"


def test_the_changes_are_those_of_the_fastest_shape_or_of_the_one_asked_for():
    best = max(
        predict_shapes(VICUNA, DRAFTER, constants_for(M2_ULTRA)), key=lambda one: one.speedup
    )
    _, changes = predicted_tables(VICUNA, DRAFTER, M2_ULTRA)
    assert f"width {best.shape.beam_width}, length {best.shape.beam_length}" in changes.title
    assert f"at best {best.speedup:.2f} times" in fastest_line(VICUNA, DRAFTER, M2_ULTRA)
    _, changes = predicted_tables(VICUNA, DRAFTER, M2_ULTRA, RoundShape(3, 4))
    assert changes.title.endswith("width 3, length 4")
    assert changes.rows[0][:2] == ("Apple's round", "12")
    assert changes.rows[0][5] == "39.9"


def test_the_error_is_that_of_the_chip():
    assert "each of Apple's 15 warm cells" in error_line(M2_ULTRA)
    assert "by 0.6 % at the median and 2.2 % at most" in error_line(M2_ULTRA)
    guessed = error_line(find_chip("M4 Pro"))
    assert "Apple did not measure M4 Pro" in guessed
    assert "M1 Max by 19.5 % at the median and 24.0 % at most" in guessed
