"""Predictions of speed for chips that one does not have; nothing here is measured.

The cost of a round is what bench/round_cost.py adds up; its constants come from bench/fit.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from redrafter_mlx.bench.kernels import MlxRelease
from redrafter_mlx.bench.model_sizes import FULL_BITS, DrafterSize, TargetSize
from redrafter_mlx.bench.published import published_tokens_per_round
from redrafter_mlx.bench.round_cost import (
    APPLE_ROUND,
    OUR_ROUND,
    ChipConstants,
    RoundParts,
    RoundProgram,
    RoundShape,
    round_parts,
)

ASSUMPTIONS = (
    "A round keeps as many tokens as Apple measured for Vicuna 7B on one prompt (MT-Bench 81, "
    "float16, greedy), whatever the bits of target and drafter; a lookup branch adds 21 %.",
    "Bandwidth, draft kernels and split-K cost what they did in Apple's runs; of the fixed cost of "
    "Apple's round half stays with one host read of two (the error covers none to all of it).",
    "MLX 0.32 picks kernels as its source says; quantised ones reach the share of the peak that "
    "was published for an M3 Ultra and an M4 Pro (the error covers 30 % either way).",
)
# Tokens a round with drafter and lookup, and with the drafter alone: a simulation on SmolLM2-135M
# and MT-Bench at (1, 4). What lookup finds on other models and texts was not seen.
LOOKUP_GAIN = 1.83 / 1.51
SHORT_VOCAB_DIVISOR = 4
_SLICED_ROUND = replace(OUR_ROUND, slices_wide_matrices=True)
_QUANTISED_ERROR = 0.3
_TILE_STEP_ERROR = 0.5
SHAPES = tuple((width, length) for width in range(1, 5) for length in range(2, 6))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted round.

    Attributes:
        milliseconds: The round.
        error_fraction: How far off it may be either way: the fit's largest error on what it had
            not seen, and what each assumption adds.
        parts: Where the time goes.
        rows: Rows that the target verifies.
    """

    milliseconds: float
    error_fraction: float
    parts: RoundParts
    rows: int


@dataclass(frozen=True, slots=True)
class SpeedupPrediction:
    """A predicted speedup over plain decoding of the same target on the same chip.

    Attributes:
        name: What is predicted.
        shape: Width and length of the draft.
        plain_milliseconds: A token of plain decoding.
        round: The round.
        tokens_per_round: Assumed, see ``ASSUMPTIONS``.
    """

    name: str
    shape: RoundShape
    plain_milliseconds: float
    round: Prediction
    tokens_per_round: float

    @property
    def speedup(self) -> float:
        """Tokens a second over plain decoding's."""
        return self.tokens_per_round * self.plain_milliseconds / self.round.milliseconds

    @property
    def least_speedup(self) -> float:
        """The same with a round as slow as its error allows."""
        return self.speedup / (1.0 + self.round.error_fraction)

    @property
    def most_speedup(self) -> float:
        """The same with a round as fast as its error allows, by the same factor."""
        return self.speedup * (1.0 + self.round.error_fraction)

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed."""
        return 1e3 * self.tokens_per_round / self.round.milliseconds


def predict_round(
    target: TargetSize,
    drafter: DrafterSize,
    shape: RoundShape,
    constants: ChipConstants,
    program: RoundProgram = OUR_ROUND,
) -> Prediction:
    """Return the milliseconds that a round should take, with the error."""
    parts = round_parts(target, drafter, shape, constants, program)
    milliseconds = parts.milliseconds
    assumed = 0.0
    if program != APPLE_ROUND:
        share = program.fixed_share
        assumed += constants.fixed_milliseconds * max(share, 1.0 - share) if parts.fixed else 0.0
        assumed += _TILE_STEP_ERROR * parts.tile_steps
    assumed += _QUANTISED_ERROR * parts.verify if target.bits != FULL_BITS else 0.0
    assumed += _QUANTISED_ERROR * parts.draft if drafter.bits != FULL_BITS else 0.0
    error = constants.error_fraction + assumed / milliseconds
    return Prediction(milliseconds, error, parts, program.rows(shape))


def predict_plain_milliseconds(
    target: TargetSize, drafter: DrafterSize, constants: ChipConstants
) -> float:
    """Return the milliseconds that a token of plain decoding should take."""
    return round_parts(target, drafter, RoundShape(1, 1), constants, OUR_ROUND).milliseconds


def predict_speedup(
    target: TargetSize,
    drafter: DrafterSize,
    shape: RoundShape,
    constants: ChipConstants,
    tokens_per_round: float,
    program: RoundProgram = OUR_ROUND,
) -> SpeedupPrediction:
    """Return the speedup over plain decoding that a round of this kind should give."""
    return SpeedupPrediction(
        name=f"{target.name}, {target.bits} bits, on {constants.chip.name}",
        shape=shape,
        plain_milliseconds=predict_plain_milliseconds(target, drafter, constants),
        round=predict_round(target, drafter, shape, constants, program),
        tokens_per_round=tokens_per_round,
    )


def predict_shapes(
    target: TargetSize,
    drafter: DrafterSize,
    constants: ChipConstants,
    program: RoundProgram = OUR_ROUND,
) -> tuple[SpeedupPrediction, ...]:
    """Return the prediction for every shape whose acceptance Apple measured."""
    return tuple(
        predict_speedup(
            target,
            drafter,
            RoundShape(width, length),
            constants,
            published_tokens_per_round(width, length),
            program,
        )
        for width, length in SHAPES
    )


def predict_changes(
    target: TargetSize, drafter: DrafterSize, shape: RoundShape, constants: ChipConstants
) -> tuple[SpeedupPrediction, ...]:
    """Return what each change since Apple's round should give, each on top of the ones before.

    The first ones have the drafter in float16, as Apple had. Those after the kernels need a
    drafter or a text that suits; the lookup branch is as long as the draft. The last is an idea
    that no code here carries out: float16 matrices of more outputs than inputs, cut so that MLX
    splits their inputs before M3, too.
    """
    tokens = published_tokens_per_round(shape.beam_width, shape.beam_length)
    looked_up = replace(shape, extra_rows=shape.extra_rows + shape.beam_length - 1)
    programs = tuple(_programs())
    full, small = replace(drafter, bits=FULL_BITS), replace(drafter, bits=4)
    short = replace(small, vocab_size=drafter.vocab_size // SHORT_VOCAB_DIVISOR)
    steps = [
        *((name, full, shape, tokens, program) for name, program in programs),
        ("drafter in 8 bits", replace(drafter, bits=8), shape, tokens, OUR_ROUND),
        ("drafter in 4 bits", small, shape, tokens, OUR_ROUND),
        ("a quarter of the draft vocabulary", short, shape, tokens, OUR_ROUND),
        ("lookup branch", short, looked_up, tokens * LOOKUP_GAIN, OUR_ROUND),
        ("idea: wide matrices in slices", short, looked_up, tokens * LOOKUP_GAIN, _SLICED_ROUND),
    ]
    return tuple(
        replace(
            predict_speedup(target, step_drafter, step_shape, constants, step_tokens, program),
            name=name,
        )
        for name, step_drafter, step_shape, step_tokens, program in steps
    )


def _programs() -> Iterator[tuple[str, RoundProgram]]:
    program = APPLE_ROUND
    yield "Apple's round", program
    program = replace(program, has_distinct_rows=True)
    yield "distinct rows only", program
    program = replace(program, copies_kv_cache=False)
    yield "no copy of the KV cache", program
    program = replace(program, fixed_share=OUR_ROUND.fixed_share)
    yield "one host read", program
    yield f"kernels of MLX {MlxRelease.TODAY.value}", OUR_ROUND
