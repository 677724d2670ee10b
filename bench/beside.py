"""One's own figures beside what Apple published for the same chip and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redrafter_mlx.bench.chips import Chip, find_chip
from redrafter_mlx.bench.published import (
    COLD_SHAPE,
    MEASUREMENTS_SOURCE,
    PAPER_SOURCE,
    PUBLISHED_MODEL,
    TABLE_2_BEAM_LENGTH,
    paper_models,
    paper_table_2,
    published_cells,
    published_chips,
    published_plain_milliseconds,
)
from redrafter_mlx.bench.results import MLX_LM, PLAIN, BenchResults, Configuration
from redrafter_mlx.bench.summary import Summary, summarize
from redrafter_mlx.errors import ConfigError

APPLES_SUITE, APPLES_TOKENS = "paper", 200
GREEDY = "greedy"
HALF_PRECISIONS = ("float16", "bfloat16")

# What published figures go by: a baseline's name, or a shape; nobody published the rest.
Key = str | tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What one source says of one way to decode."""

    tokens_per_second: float
    times_plain: float | None
    tokens_per_round: float


@dataclass(frozen=True, slots=True)
class Beside:
    """One way to decode: here, in Apple's raw measurements, and in the paper's Table 2."""

    name: str
    own: Figures
    apple: Figures | None
    paper: Figures | None

    @property
    def sources(self) -> tuple[Figures | None, ...]:
        """Here, Apple, paper."""
        return self.own, self.apple, self.paper


def beside_published(results: BenchResults) -> tuple[Beside, ...]:
    """Return one's own figures beside Apple's and the paper's; none where none were published.

    Plain decoding and mlx-lm have Apple's baselines, a draft has the cell of its shape.
    """
    chip, model = _chip(results), _model(results)
    if chip is None or model is None:
        return ()
    configurations = {one.name: one for one in results.configurations}
    apple = _apples_figures(chip, _dtype(results), _mode(results)) if _is_measured(model) else {}
    paper = _papers_figures(chip, model) if _mode(results) == GREEDY else {}
    found = []
    for one in summarize(results):
        key = _key(configurations[one.name])
        if key in apple or key in paper:
            found.append(Beside(one.name, _own(one), apple.get(key), paper.get(key)))
    return tuple(found)


def beside_notes(results: BenchResults) -> tuple[str, ...]:
    """Return what a reader must know of ``beside_published``, a line each."""
    found = beside_published(results)
    notes = []
    if any(one.apple for one in found):
        notes.append(
            f"Apple: {MEASUREMENTS_SOURCE}; {_dtype(results)}, {_mode(results)}, one prompt "
            "(MT-Bench 81), 200 tokens, the mean of one or two runs, every round counted, MLX of "
            "2024."
        )
    if any(one.paper for one in found):
        notes.append(
            f"Paper: {PAPER_SOURCE}; float16, greedy, the same prompt, its first round not counted."
        )
    if found and _is_swapping(results):
        notes.append("The paper supposes that this model swapped memory there.")
    if any(one.apple and one.name in _cold_names(results) for one in found):
        notes.append("Apple's width 1, length 2 was the first to run, and cold.")
    unlike = _unlike(results)
    if found and unlike:
        notes.append(f"Not alike, here: {'; '.join(unlike)}.")
    return tuple(notes)


def _is_swapping(results: BenchResults) -> bool:
    chip, model = _chip(results), _model(results)
    return chip is not None and any(one.is_swapping for one in paper_table_2(chip.name, model))


def _cold_names(results: BenchResults) -> set[str]:
    return {one.name for one in results.configurations if _key(one) == COLD_SHAPE}


def _chip(results: BenchResults) -> Chip | None:
    try:
        return find_chip(results.machine.chip)
    except ConfigError:  # none of Apple's
        return None


def _model(results: BenchResults) -> str | None:
    name = results.target.name.casefold()
    return next((model for model in paper_models() if model in name), None)


def _is_measured(model: str) -> bool:
    return model == PUBLISHED_MODEL


def _dtype(results: BenchResults) -> str:
    """Return the precision of Apple's that is the nearest."""
    dtype = results.target.dtype
    return dtype if dtype in HALF_PRECISIONS else HALF_PRECISIONS[0]


def _mode(results: BenchResults) -> str:
    return "sampling" if any(one.temperature for one in results.configurations) else GREEDY


def _key(configuration: Configuration) -> Key:
    """Return what its published figures go by."""
    width, length = configuration.beam_width, configuration.beam_length
    if width is not None and length is not None:
        return width, length
    return configuration.name if configuration.name in (PLAIN, MLX_LM) else None


def _own(one: Summary) -> Figures:
    times_plain = one.over_plain.median if one.over_plain else None
    return Figures(one.tokens_per_second.median, times_plain, one.tokens_per_round)


def _apples_figures(chip: Chip, dtype: str, mode: str) -> Mapping[Key, Figures]:
    if chip.name not in published_chips():
        return {}
    plain = published_plain_milliseconds(chip.name, dtype)
    peer = published_plain_milliseconds(chip.name, dtype, "mlx-lm")
    drafted: dict[Key, Figures] = {
        (cell.beam_width, cell.beam_length): Figures(
            cell.tokens_per_second, cell.tokens_per_second * plain / 1e3, cell.tokens_per_round
        )
        for cell in published_cells(chip.name, dtype, mode)
    }
    return {
        PLAIN: Figures(1e3 / plain, 1.0, 1.0),
        MLX_LM: Figures(1e3 / peer, plain / peer, 1.0),
        **drafted,
    }


def _papers_figures(chip: Chip, model: str) -> Mapping[Key, Figures]:
    return {
        (cell.beam_width, TABLE_2_BEAM_LENGTH): Figures(
            cell.tokens_per_second, cell.speedup, cell.tokens_per_step
        )
        for cell in paper_table_2(chip.name, model)
    }


def _unlike(results: BenchResults) -> list[str]:
    """Return in what this bench is another one than Apple's."""
    target = results.target
    found = []
    if results.suite != APPLES_SUITE:
        found.append(f"suite {results.suite} (Apple's is --suite {APPLES_SUITE})")
    max_tokens = max(one.max_tokens for one in results.configurations)
    if max_tokens != APPLES_TOKENS:
        found.append(f"answers of up to {max_tokens} tokens (Apple's have {APPLES_TOKENS})")
    if target.bits is not None:
        found.append(f"a target in {target.bits} bits")
    if target.dtype not in HALF_PRECISIONS:
        found.append(f"activations in {target.dtype}")
    if results.drafter is not None and results.drafter.bits is not None:
        found.append(f"a drafter in {results.drafter.bits} bits")
    if any(one.uses_lookup or one.is_adaptive for one in results.configurations):
        found.append("adapted drafts and lookup where a row says so")
    return found
