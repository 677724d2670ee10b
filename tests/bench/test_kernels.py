"""MLX's choice of kernel, against its source's thresholds and against times that were published."""

from dataclasses import replace

import pytest

from redrafter_mlx.bench.chips import find_chip
from redrafter_mlx.bench.fit import constants_for
from redrafter_mlx.bench.kernels import MlxRelease, product_cost, qmv_limit
from redrafter_mlx.bench.model_sizes import (
    DrafterSize,
    Matrix,
    TargetSize,
    apple_drafter,
    find_target,
    weight_bytes,
)
from redrafter_mlx.bench.round_cost import ChipConstants, _pass
from redrafter_mlx.errors import ConfigError

M1_MAX, M2_ULTRA, M3_ULTRA = find_chip("M1 Max"), find_chip("M2 Ultra"), find_chip("M3 Ultra")
M4_PRO, M5 = find_chip("M4 Pro"), find_chip("M5")
SQUARE, UP = Matrix(4096, 4096, 1, 16), Matrix(4096, 11008, 1, 16)
OLD, NEW = MlxRelease.APPLE_2024, MlxRelease.TODAY


def test_vicuna_7b_has_the_bytes_that_its_files_have():
    target = find_target("vicuna-7b")
    embedding, norms = 32000 * 4096, (2 * 32 + 1) * 4096
    assert weight_bytes(target.matrices) / 2 == 6_738_415_616 - embedding - norms
    assert target.kv_bytes_per_token == 524_288


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vicuna-7b", 429_936_640), ("vicuna-13b", 589_849_600), ("vicuna-33b", 869_040_640)],
)
def test_apples_drafters_have_the_parameters_of_its_recipe(name, parameters):
    """Source of the figures: Apple's Drafter class; biases are not matrices."""
    drafter = apple_drafter(find_target(name))
    biases = drafter.hidden_size + 2 * drafter.exit_dim
    assert weight_bytes(drafter.matrices) / 2 == parameters - biases


def test_a_drafter_with_an_exit_of_its_own_has_an_input_projection():
    plain = DrafterSize(576, 1152, 8192)
    projected = replace(plain, exit_dim=576)
    assert Matrix(1152, 576, 1, 16) in projected.matrices
    assert Matrix(1152, 1152, 1, 16) not in plain.matrices


def test_four_bits_are_four_and_a_half():
    assert Matrix(64, 2, 1, 4).bytes_each == 64 * 2 * 4.5 / 8
    assert replace(SQUARE, bits=8).bytes_each == SQUARE.bytes_each * 8.5 / 16
    with pytest.raises(ConfigError, match="bits is 5; choose one of: 2, 3, 4, 6, 8, 16"):
        TargetSize("x", 1, 1, 1, 1, 1, 1, 1, bits=5)
    with pytest.raises(ConfigError, match="The sizes of 'gpt-2' are not known"):
        find_target("gpt-2")


def test_in_2024_split_k_ends_at_16_rows():
    """The step of Apple's measurements: integer division makes 15 rows nothing."""
    for matrix in (SQUARE, UP, Matrix(4096, 32000, 1, 16)):
        below = product_cost(matrix, 15, M2_ULTRA, OLD)
        above = product_cost(matrix, 16, M2_ULTRA, OLD)
        assert below.tile_steps == 0.0
        assert below.partial_bytes == 2 * 16 * 15 * matrix.outputs * 4
        assert above.partial_bytes == 0.0
        assert above.tile_steps == 4096 / 16
    assert product_cost(SQUARE, 1, M2_ULTRA, OLD).partial_bytes == 0.0
    assert product_cost(Matrix(4096, 65536, 1, 16), 16, M2_ULTRA, OLD).tile_steps == 4096 / 32


def test_few_inputs_are_split_into_fewer_parts():
    for inputs, parts in ((64, 0), (128, 2), (256, 4), (512, 8), (1024, 16)):
        cost = product_cost(Matrix(inputs, 96, 1, 16), 4, M2_ULTRA, OLD)
        assert cost.partial_bytes == 2 * parts * 4 * 96 * 4
        assert (cost.tile_steps > 0.0) == (parts == 0)


def test_today_split_k_needs_as_many_inputs_as_outputs():
    assert product_cost(SQUARE, 13, M1_MAX, NEW).partial_bytes > 0.0
    up = product_cost(UP, 13, M1_MAX, NEW)
    assert (up.partial_bytes, up.tile_steps) == (0.0, 4096 / 16)
    assert up.operations == 2 * 64 * 4096 * 11008
    assert product_cost(UP, 13, M2_ULTRA, NEW).tile_steps == 4096 / 32
    big = Matrix(20480, 20480, 1, 16)
    assert product_cost(big, 13, M1_MAX, NEW).partial_bytes > 0.0
    assert product_cost(big, 13, find_chip("M1 Pro"), NEW).partial_bytes == 0.0
    assert product_cost(UP.sliced, 13, M1_MAX, NEW).partial_bytes > 0.0
    assert UP.sliced == Matrix(4096, 3670, 3, 16)
    assert SQUARE.sliced == SQUARE
    assert replace(UP, bits=4).sliced == replace(UP, bits=4)


def test_from_m3_on_five_rows_are_one_reading():
    readings = [
        product_cost(UP, rows, M4_PRO, NEW).weight_bytes / UP.bytes_each for rows in range(1, 17)
    ]
    assert readings == [1] * 5 + [2] * 5 + [3] * 5 + [1]
    assert product_cost(UP, 5, M4_PRO, OLD).partial_bytes > 0.0


@pytest.mark.parametrize(
    ("chip", "limits"),
    [
        (M1_MAX, (14, 10, 6)),
        (M2_ULTRA, (32, 18, 12)),
        (M3_ULTRA, (32, 18, 12)),
        (M4_PRO, (13, 15, 13)),
        (M5, (33, 25, 13)),
    ],
)
def test_quantised_matrices_switch_kernels_at_mlxs_limits(chip, limits):
    for size, limit in zip((2048, 4096, 4097), limits, strict=True):
        matrix = Matrix(64, size, 1, 4)
        assert qmv_limit(matrix, chip, NEW) == limit
        assert qmv_limit(matrix, chip, OLD) == 6
        below = product_cost(matrix, limit - 1, chip, NEW).operations
        above = product_cost(matrix, limit, chip, NEW).operations
        assert below == 2 * (limit - 1) * 64 * size
        assert above == 2 * (32 if limit <= 32 else 64) * 64 * size


def milliseconds(chip, bandwidth, matrix, rows):
    tile_step = constants_for(M2_ULTRA).tile_step_microseconds
    constants = ChipConstants(chip, bandwidth, 0.0, 0.0, 1.0, tile_step)
    cost = _pass((matrix,), rows, constants, NEW)
    return cost.streaming + cost.tile_steps


def test_the_plain_kernel_costs_what_was_published_for_another_chip():
    """Two rows in bfloat16 on an M3 Ultra, before gemv_wide: 0.271 ms becomes 0.539 ms.

    Nothing was fitted to it. Source: github.com/ml-explore/mlx/issues/4265.
    """
    without_wide = replace(M3_ULTRA, generation=14)
    matrix = Matrix(5120, 17408, 1, 16)
    bandwidth = matrix.bytes_each / 0.271 / 1e6
    assert milliseconds(without_wide, bandwidth, matrix, 1) == pytest.approx(0.271)
    assert milliseconds(without_wide, bandwidth, matrix, 2) == pytest.approx(0.539, rel=0.1)


@pytest.mark.parametrize(("rows", "published"), [(4, 0.134), (7, 0.218), (8, 0.252), (16, 0.260)])
def test_four_bits_cost_what_was_published_for_an_m3_ultra(rows, published):
    """Source: github.com/ml-explore/mlx/issues/4265; 8 and 16 rows set two of the shares."""
    matrix = Matrix(5120, 17408, 1, 4)
    bandwidth = matrix.bytes_each / 0.041 / 1e6
    found = milliseconds(replace(M3_ULTRA, generation=14), bandwidth, matrix, rows)
    assert found == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows", "published"),
    [
        (4096, 24576, 2, 1.03),
        (4096, 24576, 4, 1.47),
        (4096, 24576, 8, 2.69),
        (12288, 4096, 8, 2.46),
    ],
)
def test_four_bits_cost_what_was_published_for_an_m4_pro(inputs, outputs, rows, published):
    """Times of one row. Source: github.com/ml-explore/mlx/issues/3839; one set the share."""
    matrix = Matrix(inputs, outputs, 1, 4)
    one = milliseconds(M4_PRO, 273.0, matrix, 1)
    assert milliseconds(M4_PRO, 273.0, matrix, rows) / one == pytest.approx(published, rel=0.15)
