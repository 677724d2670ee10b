"""What one round of drafting and verifying costs on a chip, part by part."""

from __future__ import annotations

from dataclasses import dataclass, fields

from redrafter_mlx.bench.chips import Chip
from redrafter_mlx.bench.kernels import MlxRelease, product_cost
from redrafter_mlx.bench.model_sizes import DrafterSize, Matrix, TargetSize, weight_bytes
from redrafter_mlx.config import check_range

# What a pass of the target costs beside its bytes: 3.8 ms for 32 layers, the line through 92.15 ms
# (F16, 13.48 GB) and 28.91 ms (Q4_0, 3.83 GB) a token on one M2 Pro with llama.cpp.
# Source: github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference/issues/1.
LAYER_MILLISECONDS = 3.8 / 32
# Apple's protocol: 66 tokens of prompt and 200 new ones, so 166 in the cache at the mean.
APPLE_CONTEXT_TOKENS = 166
APPLE_CACHE_TOKENS = 266


@dataclass(frozen=True, slots=True)
class RoundShape:
    """The size of a round.

    Attributes:
        beam_width: Continuations drafted.
        beam_length: Tokens of a continuation, ``next_token`` counted; 1 is plain decoding.
        extra_rows: Rows verified beside the beams', such as those of a lookup branch.
        context_tokens: Tokens that the KV cache holds.
        cache_tokens: Tokens that it has room for; matters where it is copied.
    """

    beam_width: int
    beam_length: int
    extra_rows: int = 0
    context_tokens: int = APPLE_CONTEXT_TOKENS
    cache_tokens: int = APPLE_CACHE_TOKENS

    def __post_init__(self) -> None:
        """Check every range."""
        check_range("beam_width", self.beam_width, 1, 64)
        check_range("beam_length", self.beam_length, 1, 64)
        check_range("extra_rows", self.extra_rows, 0, 64)
        check_range("context_tokens", self.context_tokens, 0, 2**20)
        check_range("cache_tokens", self.cache_tokens, self.context_tokens, 2**20)


@dataclass(frozen=True, slots=True)
class RoundProgram:
    """How a program runs a round.

    Attributes:
        release: The MLX release whose kernels it calls.
        has_distinct_rows: It verifies 1 + W(L-1) rows, and not W*L.
        copies_kv_cache: It reads and writes the whole KV cache each round.
        fixed_share: Share of the fixed cost of Apple's round that it has.
        slices_wide_matrices: It multiplies a matrix of more outputs than inputs in slices.
    """

    release: MlxRelease
    has_distinct_rows: bool
    copies_kv_cache: bool
    fixed_share: float
    slices_wide_matrices: bool = False

    def rows(self, shape: RoundShape) -> int:
        """Return the rows that a round verifies."""
        width, length = shape.beam_width, shape.beam_length
        rows = 1 + width * (length - 1) if self.has_distinct_rows else width * length
        return rows + shape.extra_rows

    def matrices(self, matrices: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        """Return the matrices as the program multiplies them."""
        if not self.slices_wide_matrices:
            return matrices
        return tuple(matrix.sliced for matrix in matrices)


APPLE_ROUND = RoundProgram(MlxRelease.APPLE_2024, False, True, 1.0)
OUR_ROUND = RoundProgram(MlxRelease.TODAY, True, False, 0.5)


@dataclass(frozen=True, slots=True)
class ChipConstants:
    """The constants of a chip, fitted to Apple's round on Vicuna 7B in float16.

    Attributes:
        chip: The chip.
        bandwidth_gb_per_second: What plain decoding reads in a second.
        fixed_milliseconds: Cost of a round that depends on no shape: host reads, the graph.
        wide_draft_share: What a draft step of two beams or more costs beside one beam's, as a
            share of the time to read the drafter: its matrix kernels and its sorts.
        partial_share: Share of split-K's partial sums that goes through memory; over 1 where
            each further row costs more than they do.
        tile_step_microseconds: A step of the plain matrix kernel beside the bytes it reads.
        error_fraction: Largest relative error seen for this chip with the cell in question
            left out of the fit, or the whole chip where it was not measured.
    """

    chip: Chip
    bandwidth_gb_per_second: float
    fixed_milliseconds: float
    wide_draft_share: float
    partial_share: float
    tile_step_microseconds: float
    error_fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundParts:
    """Milliseconds of a round, part by part.

    Attributes:
        verify: The target's pass, but for its tile steps.
        draft: All draft steps, but for their tile steps.
        verify_tile_steps: Steps of MLX's plain matrix kernel, where the target's pass takes it.
        draft_tile_steps: The same in the draft steps.
        kv_copy: Copying the KV cache.
        fixed: What depends on no shape.
    """

    verify: float
    draft: float
    verify_tile_steps: float
    draft_tile_steps: float
    kv_copy: float
    fixed: float

    @property
    def milliseconds(self) -> float:
        """The whole round."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def tile_steps(self) -> float:
        """Steps of MLX's plain matrix kernel, wherever it is taken."""
        return self.verify_tile_steps + self.draft_tile_steps


@dataclass(frozen=True, slots=True)
class _Pass:
    """Milliseconds of one pass over matrices, those of tile steps apart."""

    streaming: float
    tile_steps: float


def round_parts(
    target: TargetSize,
    drafter: DrafterSize,
    shape: RoundShape,
    constants: ChipConstants,
    program: RoundProgram,
) -> RoundParts:
    """Return the milliseconds of a round, linear in every constant but the bandwidth."""
    bandwidth = constants.bandwidth_gb_per_second * 1e6
    width, steps, rows = shape.beam_width, shape.beam_length - 1, program.rows(shape)
    verify = _pass(program.matrices(target.matrices), rows, constants, program.release)
    draft = _pass(program.matrices(drafter.matrices), width, constants, program.release)
    wide = constants.wide_draft_share * weight_bytes(drafter.matrices) / bandwidth
    draft_step = draft.streaming + (wide if width > 1 else 0.0)
    kv_token = target.kv_bytes_per_token / bandwidth
    copies = program.copies_kv_cache and steps > 0
    copied = 2 * (shape.cache_tokens + rows) if copies else 0
    return RoundParts(
        verify=verify.streaming + pass_milliseconds(target) + kv_token * shape.context_tokens,
        draft=steps * draft_step,
        verify_tile_steps=verify.tile_steps,
        draft_tile_steps=steps * draft.tile_steps,
        kv_copy=kv_token * copied,
        fixed=program.fixed_share * constants.fixed_milliseconds if steps else 0.0,
    )


def pass_milliseconds(target: TargetSize) -> float:
    """Return what a pass costs beside its bytes."""
    return LAYER_MILLISECONDS * target.num_layers


def plain_bytes(target: TargetSize) -> float:
    """Return the bytes that a token of plain decoding reads under Apple's protocol."""
    return weight_bytes(target.matrices) + target.kv_bytes_per_token * APPLE_CONTEXT_TOKENS


def _pass(
    matrices: tuple[Matrix, ...], rows: int, constants: ChipConstants, release: MlxRelease
) -> _Pass:
    bandwidth = constants.bandwidth_gb_per_second * 1e6
    peak = constants.chip.fp16_tflops * 1e9
    streaming = tile_steps = 0.0
    for matrix in matrices:
        cost = product_cost(matrix, rows, constants.chip, release)
        reading = cost.weight_bytes / bandwidth
        computing = cost.operations / (cost.peak_share * peak)
        partial = constants.partial_share * cost.partial_bytes / bandwidth
        streaming += matrix.count * (max(reading, computing) + partial)
        tile_steps += matrix.count * cost.tile_steps * constants.tile_step_microseconds / 1e3
    return _Pass(streaming, tile_steps)
