"""What Apple published about ReDrafter on MLX, to be shown beside one's own figures.

How faults of those measurements are met:

- Their first round was not counted: the table here counts it, and tokens a round are
  200 / rounds. Table 2's "tokens per step" is left as printed, 1 % too high.
- Nothing was warmed up: the first configuration of a run, (1, 2), is marked cold.
- Their times of ReDrafter include prefill: the mean prefill of their plain decoding, which read
  the same prompt by the same model, is taken off. That does the same as Apple's own analysis.
- One prompt and one or two runs: a cell has the least and the most of its runs.
- float16 runs used weights rounded to bfloat16, and plain decoding gave all prompt tokens one
  position: neither changes what is read or multiplied.
- bfloat16 plain decoding kept a float16 cache, and sampling at (1, 2) accepted nothing: only
  float16 greedy cells serve a prediction.
- The 33B row of Table 2 swapped memory, as the paper itself supposes: it is marked.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from redrafter_mlx.bench.chips import find_chip
from redrafter_mlx.errors import ConfigError

MEASUREMENTS_SOURCE = "apple/ml-recurrent-drafter bd8586b, recurrent_drafting/mlx/experiments"
PAPER_SOURCE = "arXiv:2403.09919v5, Table 2"
PUBLISHED_MODEL = "vicuna-7b"
COLD_SHAPE = (1, 2)
_FILE = Path(__file__).resolve().parent / "data" / "apple_mlx.csv"
_REDRAFTER = "redrafter"
_PLAIN_PROGRAMS = {"apple": "autoregressive apple", "mlx-lm": "autoregressive mlx-lm"}


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One line of Apple's measurements; times as they are there, prefill apart where it was."""

    chip: str
    program: str
    dtype: str
    mode: str
    beam_shape: tuple[int, int] | None
    num_rounds: int | None
    new_tokens: int
    total_milliseconds: float
    prefill_milliseconds: float | None


@dataclass(frozen=True, slots=True)
class PublishedCell:
    """The runs of one configuration on one chip, prefill taken off.

    Attributes:
        milliseconds_per_round: Mean over the runs; least and most beside it.
        tokens_per_round: 200 tokens over all rounds, mean over the runs.
        is_cold: Nothing had warmed the program up before.
    """

    chip: str
    beam_width: int
    beam_length: int
    num_runs: int
    milliseconds_per_round: float
    least_milliseconds_per_round: float
    most_milliseconds_per_round: float
    tokens_per_round: float
    is_cold: bool

    @property
    def num_rows(self) -> int:
        """Rows that Apple's round verified: no prefix was shared."""
        return self.beam_width * self.beam_length

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed without prefill."""
        return 1e3 * self.tokens_per_round / self.milliseconds_per_round


@dataclass(frozen=True, slots=True)
class PaperCell:
    """One cell of the paper's Table 2, as printed; beam_length 4, float16, greedy."""

    chip: str
    model: str
    beam_width: int
    tokens_per_second: float
    speedup: float
    tokens_per_step: float
    is_swapping: bool


_TABLE_2 = {
    ("M1 Max", "vicuna-7b"): (
        (28.22, 1.32, 2.15), (27.69, 1.30, 2.38), (27.54, 1.29, 2.44), (20.16, 0.94, 2.44),
    ),
    ("M2 Ultra", "vicuna-7b"): (
        (57.14, 1.43, 2.15), (60.24, 1.51, 2.38), (60.40, 1.52, 2.44), (30.05, 0.75, 2.44),
    ),
    ("M2 Ultra", "vicuna-13b"): (
        (41.94, 1.87, 2.53), (43.52, 1.94, 2.82), (43.55, 1.94, 2.82), (21.83, 0.97, 2.94),
    ),
    ("M2 Ultra", "vicuna-33b"): (
        (1.15, 1.97, 2.17), (1.22, 2.08, 2.33), (1.28, 2.19, 2.47), (1.33, 2.28, 2.56),
    ),
}  # fmt: skip
TABLE_2_BEAM_LENGTH = 4


def paper_table_2(chip: str | None = None, model: str | None = None) -> tuple[PaperCell, ...]:
    """Return the cells of the paper's Table 2, of one chip and one model where they are named."""
    wanted = find_chip(chip).name if chip else None
    return tuple(
        PaperCell(cell_chip, cell_model, width, *figures, is_swapping=cell_model == "vicuna-33b")
        for (cell_chip, cell_model), row in _TABLE_2.items()
        for width, figures in enumerate(row, 1)
        if wanted in (None, cell_chip) and model in (None, cell_model)
    )


def paper_models() -> tuple[str, ...]:
    """Return the names of the models of the paper's Table 2."""
    return tuple(dict.fromkeys(model for _, model in _TABLE_2))


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return every line of Apple's measurements, in their order."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return tuple(_run(row) for row in csv.DictReader(file))


def _run(row: Mapping[str, str]) -> PublishedRun:
    is_redrafter = row["program"] == _REDRAFTER
    return PublishedRun(
        chip=row["chip"],
        program=row["program"],
        dtype=row["dtype"],
        mode=row["mode"],
        beam_shape=(int(row["beam_width"]), int(row["beam_length"])) if is_redrafter else None,
        num_rounds=int(row["rounds"]) if is_redrafter else None,
        new_tokens=int(row["new_tokens"]),
        total_milliseconds=float(row["total_ms"]),
        prefill_milliseconds=float(row["prefill_ms"]) if row["prefill_ms"] else None,
    )


def published_chips() -> tuple[str, ...]:
    """Return the names of the chips that Apple measured."""
    return tuple(dict.fromkeys(run.chip for run in published_runs()))


@cache
def published_cells(
    chip: str, dtype: str = "float16", mode: str = "greedy"
) -> tuple[PublishedCell, ...]:
    """Return Apple's figures for a chip by width, then length; none where it was not measured.

    Raises:
        ConfigError: No chip is called so, or dtype or mode is none that Apple measured.
    """
    name = find_chip(chip).name
    _check_measured("dtype", dtype, {run.dtype for run in published_runs()})
    _check_measured("mode", mode, {run.mode for run in published_runs()})
    groups: dict[tuple[int, int], list[PublishedRun]] = {}
    for run in published_runs():
        if (run.chip, run.dtype, run.mode) == (name, dtype, mode) and run.beam_shape:
            groups.setdefault(run.beam_shape, []).append(run)
    if not groups:
        return ()
    prefill = _plain_prefill_milliseconds(name, dtype)
    return tuple(_cell(shape, groups[shape], prefill) for shape in sorted(groups))


def _check_measured(name: str, value: str, measured: set[str]) -> None:
    if value not in measured:
        raise ConfigError(f"{name} is {value!r}; Apple measured {', '.join(sorted(measured))}.")


def _cell(shape: tuple[int, int], runs: list[PublishedRun], prefill: float) -> PublishedCell:
    rounds = [run.num_rounds for run in runs if run.num_rounds]
    times = [
        (run.total_milliseconds - prefill) / count for run, count in zip(runs, rounds, strict=True)
    ]
    return PublishedCell(
        chip=runs[0].chip,
        beam_width=shape[0],
        beam_length=shape[1],
        num_runs=len(runs),
        milliseconds_per_round=fmean(times),
        least_milliseconds_per_round=min(times),
        most_milliseconds_per_round=max(times),
        tokens_per_round=fmean(
            run.new_tokens / count for run, count in zip(runs, rounds, strict=True)
        ),
        is_cold=shape == COLD_SHAPE,
    )


def published_plain_milliseconds(
    chip: str, dtype: str = "float16", program: str = "apple"
) -> float:
    """Return the milliseconds of a token of plain decoding, mean over the runs.

    The first of the 200 tokens is prefill's, so 199 passes share the time. ``program`` is
    "apple" (one lazy graph, no host read) or "mlx-lm".

    Raises:
        ConfigError: Apple did not measure the chip.
    """
    runs = _plain_runs(chip, dtype, program)
    return fmean(run.total_milliseconds / (run.new_tokens - 1) for run in runs)


def _plain_prefill_milliseconds(chip: str, dtype: str) -> float:
    runs = _plain_runs(chip, dtype, "apple")
    return fmean(run.prefill_milliseconds for run in runs if run.prefill_milliseconds is not None)


def _plain_runs(chip: str, dtype: str, program: str) -> list[PublishedRun]:
    name = find_chip(chip).name
    wanted = (name, _PLAIN_PROGRAMS[program], dtype)
    runs = [run for run in published_runs() if (run.chip, run.program, run.dtype) == wanted]
    if not runs:
        measured = ", ".join(published_chips())
        raise ConfigError(f"Apple did not measure {name} in {dtype}; it measured {measured}.")
    return runs


def published_tokens_per_round(beam_width: int, beam_length: int) -> float:
    """Return Apple's tokens a round for a shape, float16 greedy, mean over the chips.

    Raises:
        ConfigError: Apple did not measure the shape.
    """
    figures = [
        cell.tokens_per_round
        for chip in published_chips()
        for cell in published_cells(chip)
        if (cell.beam_width, cell.beam_length) == (beam_width, beam_length)
    ]
    if not figures:
        raise ConfigError(
            f"Apple did not measure width {beam_width} with length {beam_length}; choose a width "
            "from 1 to 4 and a length from 2 to 5."
        )
    return fmean(figures)
