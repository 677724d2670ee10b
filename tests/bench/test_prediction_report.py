"""A prediction is called one, and comes with its error and its assumptions."""

from dataclasses import replace

from redrafter_mlx.bench.chips import find_chip
from redrafter_mlx.bench.fit import constants_for
from redrafter_mlx.bench.model_sizes import apple_drafter, find_target
from redrafter_mlx.bench.predict import ASSUMPTIONS, predict_shapes
from redrafter_mlx.bench.prediction_report import prediction_report
from redrafter_mlx.bench.round_cost import RoundShape

VICUNA = find_target("vicuna-7b")
DRAFTER = apple_drafter(VICUNA)


def test_every_title_says_predicted():
    text = prediction_report(VICUNA, DRAFTER, constants_for(find_chip("M2 Ultra")))
    titles = [line for line in text.splitlines() if line.startswith("#")]
    assert len(titles) == 4
    assert all("Predicted" in title or title == "## Assumptions" for title in titles)
    assert titles[0] == "# Predicted, not measured: vicuna-7b, 16 bits, on M2 Ultra"
    assert all(f"- {line}" in text for line in ASSUMPTIONS)


def test_the_tables_have_the_predictions():
    constants = constants_for(find_chip("M2 Ultra"))
    text = prediction_report(VICUNA, DRAFTER, constants)
    best = max(predict_shapes(VICUNA, DRAFTER, constants), key=lambda one: one.speedup)
    assert f"Fastest: width {best.shape.beam_width}, length {best.shape.beam_length}." in text
    assert f"{best.speedup:.2f} ({best.least_speedup:.2f} to {best.most_speedup:.2f})" in text
    assert "by 2 % at most" in text
    chosen = prediction_report(VICUNA, DRAFTER, constants, RoundShape(3, 4))
    assert "change by change, width 3, length 4" in chosen
    assert "| Apple's round | 12 | 39.9 |" in chosen


def test_a_chip_that_apple_did_not_measure_is_told_apart():
    four_bits = replace(VICUNA, bits=4)
    text = prediction_report(four_bits, DRAFTER, constants_for(find_chip("M4 Pro")))
    assert "Apple did not measure this chip" in text
    assert "vicuna-7b, 4 bits, on M4 Pro" in text
