"""The predictor against what Apple published, and what it says of other chips and models."""

from dataclasses import replace

import pytest

from redrafter_mlx.bench import fit as fit_module
from redrafter_mlx.bench import kernels
from redrafter_mlx.bench.chips import CHIPS, find_chip
from redrafter_mlx.bench.fit import (
    STEP_ROWS,
    CellError,
    constants_for,
    error_spread,
    fit,
    leave_chip_out,
    leave_one_out,
    leave_step_out,
    predict_cell,
)
from redrafter_mlx.bench.kernels import MlxRelease
from redrafter_mlx.bench.model_sizes import TARGETS, apple_drafter, find_target
from redrafter_mlx.bench.predict import (
    ASSUMPTIONS,
    SHAPES,
    predict_changes,
    predict_plain_milliseconds,
    predict_round,
    predict_shapes,
    predict_speedup,
)
from redrafter_mlx.bench.published import (
    paper_table_2,
    published_cells,
    published_chips,
    published_plain_milliseconds,
)
from redrafter_mlx.bench.round_cost import (
    APPLE_ROUND,
    OUR_ROUND,
    RoundProgram,
    RoundShape,
    round_parts,
)
from redrafter_mlx.errors import ConfigError

MEASURED = [find_chip(name) for name in published_chips()]
VICUNA = find_target("vicuna-7b")
DRAFTER = apple_drafter(VICUNA)


def warm(chip):
    return [cell for cell in published_cells(chip.name) if not cell.is_cold]


def percent(errors):
    spread = error_spread(errors)
    assert spread.num_cells == 15
    return round(100 * spread.median, 1), round(100 * spread.largest, 1)


@pytest.mark.parametrize(
    ("name", "median_percent", "most_percent"),
    [("M1 Max", 0.5, 11.2), ("M2", 0.2, 0.6), ("M2 Ultra", 0.6, 2.2)],
)
def test_a_cell_is_predicted_from_the_others(name, median_percent, most_percent):
    """The bounds are 3 % at the median and 12 % at most; the cold first cell is left out."""
    assert percent(leave_one_out(find_chip(name))) == (median_percent, most_percent)


@pytest.mark.parametrize(
    ("name", "median_percent", "most_percent"),
    [("M1 Max", 19.5, 24.0), ("M2", 4.8, 9.7), ("M2 Ultra", 18.3, 20.3)],
)
def test_a_chip_is_predicted_from_the_others_and_its_plain_step(name, median_percent, most_percent):
    """The aim is 25 % at most."""
    assert percent(leave_chip_out(find_chip(name))) == (median_percent, most_percent)


def test_an_error_is_taken_without_its_sign():
    errors = [CellError("M2", 1, 3, 100.0, found) for found in (80.0, 101.0, 105.0)]
    spread = error_spread(errors)
    assert (spread.median, spread.largest) == pytest.approx((0.05, 0.2))


def test_what_is_left_out_has_no_part_in_its_prediction():
    chip = find_chip("M1 Max")
    left_out, *others = warm(chip)
    constants = fit(others, chip, published_plain_milliseconds(chip.name))
    assert leave_one_out(chip)[0].predicted_milliseconds == predict_cell(left_out, constants)
    rest = [constants_for(find_chip(name)) for name in ("M2", "M2 Ultra")]
    moved = replace(
        constants,
        fixed_milliseconds=sum(one.fixed_milliseconds for one in rest) / 2,
        wide_draft_share=sum(one.wide_draft_share for one in rest) / 2,
        partial_share=sum(one.partial_share for one in rest) / 2,
        tile_step_microseconds=sum(one.tile_step_microseconds for one in rest) / 2,
    )
    assert leave_chip_out(chip)[0].predicted_milliseconds == predict_cell(left_out, moved)


@pytest.mark.parametrize("chip", MEASURED, ids=str)
def test_the_step_at_16_rows_is_known_before_it_is_seen(chip):
    """The kernel explains it: what its steps cost comes from the other chips' runs."""
    errors = leave_step_out(chip)
    assert [(one.beam_width, one.beam_length) for one in errors] == [(4, 4), (4, 5)]
    assert error_spread(errors).largest <= 0.13


@pytest.mark.parametrize(
    ("name", "too_low_percent"), [("M1 Max", (24, 28)), ("M2", (7, 3)), ("M2 Ultra", (49, 49))]
)
def test_without_the_kernels_rule_the_step_is_missed(name, too_low_percent, monkeypatch):
    """The M2 reads so slowly that the step is 8 % of its round."""
    leave_step_out.cache_clear()
    fitted = {chip: constants_for(chip) for chip in MEASURED}
    monkeypatch.setattr(fit_module, "_fitted", fitted.get)
    monkeypatch.setattr(kernels, "_takes_split_k", lambda *_: True)
    errors = leave_step_out(find_chip(name))
    leave_step_out.cache_clear()
    assert tuple(round(-100 * one.error_fraction) for one in errors) == too_low_percent


def test_without_the_kernels_rule_nothing_is_fitted(monkeypatch):
    monkeypatch.setattr(kernels, "_takes_split_k", lambda *_: True)
    chip = find_chip("M2 Ultra")
    with pytest.raises(ConfigError, match="15 warm cells do not determine the constants"):
        fit(published_cells(chip.name), chip, published_plain_milliseconds(chip.name))


def test_one_cost_of_a_tile_step_serves_chips_eight_times_apart():
    steps = [constants_for(chip).tile_step_microseconds for chip in MEASURED]
    assert max(steps) / min(steps) < 1.5
    bandwidths = [constants_for(chip).bandwidth_gb_per_second for chip in MEASURED]
    assert max(bandwidths) / min(bandwidths) > 5.0


@pytest.mark.parametrize("printed", paper_table_2("M2 Ultra", "vicuna-13b"), ids=str)
def test_a_larger_model_is_predicted_from_the_smaller_one(printed):
    """Table 2's 13B row was fitted to nothing; the step at 16 rows doubles its round, too."""
    target = find_target("vicuna-13b")
    constants = constants_for(find_chip("M2 Ultra"))
    shape = RoundShape(printed.beam_width, 4)
    found = predict_round(target, apple_drafter(target), shape, constants, APPLE_ROUND)
    measured = 1e3 * printed.tokens_per_step / printed.tokens_per_second
    assert found.milliseconds == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize("chip", MEASURED, ids=str)
def test_plain_decoding_is_what_the_bandwidth_was_taken_from(chip):
    plain = predict_plain_milliseconds(VICUNA, DRAFTER, constants_for(chip))
    assert plain == pytest.approx(published_plain_milliseconds(chip.name))


def test_a_larger_model_decodes_plainly_as_published():
    target = find_target("vicuna-13b")
    constants = constants_for(find_chip("M2 Ultra"))
    plain = predict_plain_milliseconds(target, apple_drafter(target), constants)
    (printed, *_) = paper_table_2("M2 Ultra", "vicuna-13b")
    measured = 1e3 * printed.speedup / printed.tokens_per_second
    assert plain == pytest.approx(measured, rel=0.06)


def test_parts_add_up_and_each_change_removes_its_own():
    constants = constants_for(find_chip("M1 Max"))
    shape = RoundShape(3, 4)
    apple = round_parts(VICUNA, DRAFTER, shape, constants, APPLE_ROUND)
    total = apple.verify + apple.draft + apple.tile_steps + apple.kv_copy + apple.fixed
    assert apple.milliseconds == pytest.approx(total)
    moved = 2 * (266 + 12) * VICUNA.kv_bytes_per_token
    assert apple.kv_copy == pytest.approx(moved / constants.bandwidth_gb_per_second / 1e6)
    steps = round_parts(VICUNA, DRAFTER, shape, constants, OUR_ROUND).tile_steps
    drafted = 3 * 8192 / 16  # the drafter's head, three times
    verified = 32 * 2 * 4096 / 16 + 4096 / 16
    assert steps == pytest.approx((verified + drafted) * constants.tile_step_microseconds / 1e3)
    distinct = replace(APPLE_ROUND, has_distinct_rows=True)
    assert (APPLE_ROUND.rows(shape), distinct.rows(shape)) == (12, 10)
    fewer = round_parts(VICUNA, DRAFTER, shape, constants, distinct)
    assert fewer.verify < apple.verify
    assert fewer.draft == apple.draft
    uncopied = round_parts(
        VICUNA, DRAFTER, shape, constants, replace(distinct, copies_kv_cache=False)
    )
    assert uncopied.kv_copy == 0.0
    assert uncopied.milliseconds == pytest.approx(fewer.milliseconds - fewer.kv_copy)
    halved = round_parts(VICUNA, DRAFTER, shape, constants, replace(APPLE_ROUND, fixed_share=0.5))
    assert apple.milliseconds - halved.milliseconds == pytest.approx(apple.fixed / 2)


def test_distinct_rows_stay_under_the_step():
    """At (4, 4) Apple verified 16 rows where 13 are distinct."""
    constants = constants_for(find_chip("M2 Ultra"))
    shape = RoundShape(4, 4)
    packed = round_parts(VICUNA, DRAFTER, shape, constants, APPLE_ROUND)
    distinct = replace(APPLE_ROUND, has_distinct_rows=True)
    assert packed.tile_steps > 30.0
    assert round_parts(VICUNA, DRAFTER, shape, constants, distinct).tile_steps == 0.0


def test_a_drafter_of_fewer_bits_or_words_costs_less():
    constants = constants_for(find_chip("M2 Ultra"))
    drafters = (DRAFTER, replace(DRAFTER, bits=8), replace(DRAFTER, bits=4))
    short = replace(drafters[-1], vocab_size=8000)
    times = [
        round_parts(VICUNA, drafter, RoundShape(1, 5), constants, OUR_ROUND).draft
        for drafter in (*drafters, short)
    ]
    assert times == sorted(times, reverse=True)
    assert times[1] == pytest.approx(times[0] * 8.5 / 16, rel=0.01)


def test_changes_are_told_one_on_top_of_the_other():
    constants = constants_for(find_chip("M2 Ultra"))
    changes = predict_changes(VICUNA, DRAFTER, RoundShape(3, 4), constants)
    assert [change.name for change in changes] == [
        "Apple's round",
        "distinct rows only",
        "no copy of the KV cache",
        "one host read",
        "kernels of MLX 0.32",
        "drafter in 8 bits",
        "drafter in 4 bits",
        "a quarter of the draft vocabulary",
        "lookup branch",
        "idea: wide matrices in slices",
    ]
    apple, *_, looked_up, sliced = changes
    (printed,) = (one for one in paper_table_2("M2 Ultra", "vicuna-7b") if one.beam_width == 3)
    assert apple.speedup == pytest.approx(printed.speedup, rel=0.03)
    assert apple.tokens_per_second == pytest.approx(printed.tokens_per_second, rel=0.03)
    assert (looked_up.round.rows, apple.round.rows) == (13, 12)
    assert looked_up.tokens_per_round > apple.tokens_per_round
    assert sliced.round.parts.tile_steps == 0.0
    quantised = replace(DRAFTER, bits=4)
    assert predict_changes(VICUNA, quantised, RoundShape(3, 4), constants) == changes


def test_a_prediction_covers_its_assumptions():
    constants = constants_for(find_chip("M2 Ultra"))
    shape = RoundShape(2, 4)
    apple = predict_round(VICUNA, DRAFTER, shape, constants, APPLE_ROUND)
    assert apple.error_fraction == constants.error_fraction < 0.03
    ours = predict_round(VICUNA, DRAFTER, shape, constants)
    # None or all of the fixed cost: 3.4 ms either way.
    unknown = constants.fixed_milliseconds / 2 / ours.milliseconds
    assert ours.error_fraction > constants.error_fraction + unknown
    quantised = predict_round(replace(VICUNA, bits=4), DRAFTER, shape, constants)
    assert quantised.error_fraction > ours.error_fraction
    small = predict_round(VICUNA, replace(DRAFTER, bits=4), shape, constants)
    unknown = small.parts.fixed + 0.5 * small.parts.tile_steps + 0.3 * small.parts.draft
    expected = constants.error_fraction + unknown / small.milliseconds
    assert small.error_fraction == pytest.approx(expected)
    found = predict_speedup(VICUNA, DRAFTER, shape, constants, 2.0)
    assert found.least_speedup < found.speedup < found.most_speedup
    assert found.speedup == pytest.approx(2.0 * found.plain_milliseconds / found.round.milliseconds)
    assert len(ASSUMPTIONS) == 3


def test_a_chip_that_was_not_measured_has_the_others_means_and_a_larger_error():
    guessed = constants_for(find_chip("M4 Pro"))
    fixed = [constants_for(chip).fixed_milliseconds for chip in MEASURED]
    assert guessed.fixed_milliseconds == pytest.approx(sum(fixed) / 3)
    assert guessed.error_fraction > max(constants_for(chip).error_fraction for chip in MEASURED)
    shares = [
        constants_for(chip).bandwidth_gb_per_second / chip.bandwidth_gb_per_second
        for chip in MEASURED
    ]
    assert guessed.bandwidth_gb_per_second == pytest.approx(273.0 * sum(shares) / 3)


def test_a_plain_step_shorter_than_its_layers_is_refused():
    chip = find_chip("M2 Ultra")
    with pytest.raises(ConfigError, match=r"plain_milliseconds is 1\.0; give the time of a token"):
        fit(published_cells(chip.name), chip, 1.0)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_every_chip_and_model_has_a_prediction(chip):
    constants = constants_for(chip)
    for target in TARGETS:
        for bits in (4, 16):
            sized = replace(target, bits=bits)
            for found in predict_shapes(sized, apple_drafter(target), constants):
                assert 0.0 < found.least_speedup < found.speedup < found.most_speedup
                assert found.round.rows == 1 + found.shape.beam_width * (
                    found.shape.beam_length - 1
                )
    assert len(SHAPES) == 16


def test_a_better_chip_is_not_slower():
    times = [
        predict_plain_milliseconds(VICUNA, DRAFTER, constants_for(find_chip(name)))
        for name in ("M1", "M1 Pro", "M3 Max", "M3 Ultra")
    ]
    assert times == sorted(times, reverse=True)


def test_too_few_cells_are_refused():
    chip = find_chip("M2 Ultra")
    cells = published_cells(chip.name)
    for few in ((), cells[:5], [cell for cell in cells if cell.num_rows < STEP_ROWS]):
        with pytest.raises(ConfigError, match="do not determine the constants of M2 Ultra"):
            fit(few, chip, 25.0)


@pytest.mark.parametrize(
    "values",
    [
        {"beam_width": 0},
        {"beam_length": 0},
        {"extra_rows": -1},
        {"context_tokens": 300},
        {"beam_width": 1.5},
    ],
)
def test_a_shape_out_of_range_is_refused(values):
    with pytest.raises(ConfigError):
        RoundShape(**{"beam_width": 2, "beam_length": 4} | values)


def test_plain_decoding_has_no_fixed_cost_and_copies_nothing():
    constants = constants_for(find_chip("M2"))
    program = RoundProgram(MlxRelease.APPLE_2024, False, True, 1.0)
    parts = round_parts(VICUNA, DRAFTER, RoundShape(1, 1), constants, program)
    assert (parts.fixed, parts.kv_copy, parts.draft, parts.tile_steps) == (0.0, 0.0, 0.0, 0.0)
