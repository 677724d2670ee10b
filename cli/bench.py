"""``redrafter-mlx bench``: measure decoding here, beside plain decoding and mlx-lm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from redrafter_mlx.cli import progress, render
from redrafter_mlx.cli.bars import bar
from redrafter_mlx.cli.bench_options import (
    DecodingOptions,
    ResultOptions,
    SuiteOptions,
)
from redrafter_mlx.cli.bench_tables import show_results
from redrafter_mlx.cli.options import ModelOptions, ProgramOptions, require_drafter
from redrafter_mlx.cli.usage import from_options, refuse_idle

if TYPE_CHECKING:
    from redrafter_mlx.bench.session import Session
    from redrafter_mlx.bench.suites import Suite

INTERRUPTED = 130
# What a prediction depends on.
PREDICTING = ("predict", "model", "drafter", "beam_width", "beam_length")


def bench(
    suite_options: SuiteOptions,
    model_options: ModelOptions,
    decoding: DecodingOptions,
    output: ResultOptions,
    program: ProgramOptions,
) -> None:
    """Measure decoding on this machine, beside plain decoding and mlx-lm."""
    groups = (suite_options, model_options, decoding, output)
    if output.compare is not None:
        from redrafter_mlx.cli.bench_compare import show_comparison

        refuse_idle("--compare", {"compare"}, groups)
        show_comparison(*output.compare)
    elif output.predict is not None:
        refuse_idle("--predict", PREDICTING, groups)
        _predict(output.predict, model_options, decoding)
    else:
        _measure(suite_options, model_options, decoding, output)


def _predict(chip: str, model: ModelOptions, decoding: DecodingOptions) -> None:
    from redrafter_mlx.bench.chips import find_chip
    from redrafter_mlx.bench.published import published_tokens_per_round
    from redrafter_mlx.cli.bench_predict import show_prediction

    shape = decoding.single_shape()
    with from_options():
        find_chip(chip)
        if shape is not None:
            published_tokens_per_round(*shape)
    if model.drafter is not None:
        require_drafter(model.drafter)
    show_prediction(chip, model.model, drafter=model.drafter, shape=shape)


def _measure(
    suite_options: SuiteOptions,
    model_options: ModelOptions,
    decoding: DecodingOptions,
    output: ResultOptions,
) -> None:
    from redrafter_mlx.bench.session import Place, begin

    folder = output.folder
    place = Place(folder, output.resume, model_options.drafter)
    place.require_free()
    suite = suite_options.load()
    options = decoding.side_options(suite)
    if model_options.no_drafter and options.shapes:
        raise typer.BadParameter(
            "fixed shapes need a drafter; leave it out, or the shapes, which --suite paper has, "
            "too.",
            param_hint="--no-drafter",
        )
    model = replace(model_options, dtype=_dtype(suite, model_options.dtype)).load()
    num_trials = suite_options.trials or suite.num_trials
    with progress.activity("Preparing ..."):
        session = begin(model, suite, options, num_trials, place)
    _run(session, folder)


def _dtype(suite: Suite, asked: str) -> str:
    """Return Apple's precision for Apple's protocol, where it is not too slow."""
    import mlx.core as mx

    if suite.name != "paper" or asked != "auto":
        return asked
    if mx.default_device().type == mx.gpu:
        return "float16"
    render.note("Apple measured in float16, which is slow on a CPU: this is float32.")
    return asked


def _run(session: Session, folder: Path) -> None:
    """Measure, and write and show what is done, even where Ctrl-C ends it."""
    from redrafter_mlx.bench.store import write_report

    num_sides = len(session.bench.sides)
    render.note(f"Results go into {folder}")
    if session.cells:
        render.note(
            f"{render.counted(len(session.cells), 'answer')} to time, in {num_sides} ways to "
            "decode; leave the machine alone."
        )
    else:
        render.note("Every answer is timed already.")
    is_whole, total = True, session.num_tokens  # of what is missing now; it shrinks
    try:
        with bar("Measuring tokens") as measuring:
            session.run(lambda done, words: measuring.show(done, total, words))
    except KeyboardInterrupt:
        is_whole = False
    results = session.recorder.results
    note = write_report(results, folder)
    show_results(results)
    if note is not None:
        render.note(note)
    render.line(f"Report: {folder / 'report.md'}")
    if not is_whole:
        render.note(f"Broken off; go on with the same options and --out {folder} --resume")
        raise typer.Exit(INTERRUPTED)
