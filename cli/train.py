"""``redrafter-mlx train``: train a drafter on what ``distill`` collected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redrafter_mlx.cli import render
from redrafter_mlx.cli.bars import bar, resumable
from redrafter_mlx.cli.distill import load_target
from redrafter_mlx.cli.options import Dtype, ProgramOptions
from redrafter_mlx.cli.usage import from_options, named, named_path
from redrafter_mlx.config import DEFAULT_MODEL, check_range
from redrafter_mlx.training.settings import (
    MAX_HIDDEN_BYTES,
    NUM_DRAFT_LAYERS,
    DrafterShape,
    TrainingConfig,
)

if TYPE_CHECKING:
    from redrafter_mlx.loading.model import LoadedModel
    from redrafter_mlx.training.train import Trained, TrainingPlan
    from redrafter_mlx.training.trainer import StepReport

SHAPE, TRAINING = DrafterShape(), TrainingConfig()
# Training accuracy over held-out accuracy, at depth 1, from which a run is called overfitted.
PARTED = 1.15
# A few steps say nothing yet.
FIRST_WARNING = 20


@dataclass(frozen=True, kw_only=True)
class TrainFiles:
    """From what to what."""

    corpus: Annotated[
        list[Path],
        typer.Option(
            metavar="CORPUS",
            parser=named_path,
            help="A folder of distill's; may be repeated.",
        ),
    ]
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            parser=named_path,
            help="Drafter to make; FOLDER.training is the run.",
        ),
    ]
    model: Annotated[
        str, typer.Option(metavar="MODEL", callback=named, help="The model that wrote the corpus.")
    ] = DEFAULT_MODEL
    dtype: Dtype = "auto"
    init_from: Annotated[
        Path | None,
        typer.Option(metavar="DRAFTER", parser=named_path, help="Drafter to start from."),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = (
        False
    )
    hidden_gb: Annotated[
        float,
        typer.Option(
            help="Most GB of hidden states on disk, distill's in any case; the rest is run anew."
        ),
    ] = MAX_HIDDEN_BYTES / 1e9

    def __post_init__(self) -> None:
        """Refuse a size that is none, and a corpus that is there twice."""
        with from_options():
            check_range("hidden_gb", self.hidden_gb, 0.0, 1e6)
        if len({folder.resolve() for folder in self.corpus}) < len(self.corpus):
            raise typer.BadParameter("a folder is given twice.", param_hint="--corpus")


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """What the drafter looks like; else as the one that training starts from, or as told."""

    exit_dim: Annotated[
        int | None, typer.Option(help="Width of the residual blocks; else the model's.")
    ] = SHAPE.exit_dim
    layers: Annotated[
        int | None, typer.Option(help=f"Residual blocks; else {NUM_DRAFT_LAYERS}.")
    ] = SHAPE.num_draft_layers
    head: Annotated[
        str | None,
        typer.Option(
            metavar="tied|own", help="The model's output head, or one of its own; else tied."
        ),
    ] = SHAPE.head
    draft_vocab: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens that it can propose: the corpus's N most used."),
    ] = SHAPE.draft_vocab_size

    def shape(self) -> DrafterShape:
        """Return the library's settings.

        Raises:
            UsageError: A value is out of range.
        """
        with from_options():
            return DrafterShape(self.exit_dim, self.layers, self.head, self.draft_vocab)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How it is trained."""

    draft_length: Annotated[int, typer.Option(help="Tokens drafted in a round.")] = (
        TRAINING.draft_length
    )
    labels: Annotated[
        str,
        typer.Option(metavar="soft|hard", help="Learn the model's distribution, or its choice."),
    ] = TRAINING.labels
    batch_size: Annotated[int, typer.Option(help="Positions a step.")] = TRAINING.batch_size
    learning_rate: Annotated[float, typer.Option(help="At its highest.")] = TRAINING.learning_rate
    epochs: Annotated[
        float | None, typer.Option(help=f"Passes over the corpus; else {TRAINING.epochs:g}.")
    ] = None
    steps: Annotated[int | None, typer.Option(help="Steps in all, in place of --epochs.")] = (
        TRAINING.steps
    )
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = TRAINING.weight_decay
    depth_decay: Annotated[
        float, typer.Option(help="Weight of a depth over that of the one before.")
    ] = TRAINING.depth_decay
    held_out: Annotated[float, typer.Option(help="Share of the corpus that only measures.")] = (
        TRAINING.held_out
    )
    evaluate_every: Annotated[int, typer.Option(help="Steps between measurements.")] = (
        TRAINING.evaluate_every
    )
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = (
        TRAINING.checkpoint_every
    )
    seed: Annotated[int, typer.Option(help="Of order and new weights; a seed repeats a run.")] = (
        TRAINING.seed
    )

    def __post_init__(self) -> None:
        """Refuse two lengths of a run."""
        if self.steps is not None and self.epochs is not None:
            raise typer.BadParameter("it contradicts --epochs; give one.", param_hint="--steps")

    def config(self) -> TrainingConfig:
        """Return the library's settings.

        Raises:
            UsageError: A value is out of range.
        """
        with from_options():
            return self._config()

    def _config(self) -> TrainingConfig:
        return TrainingConfig(
            draft_length=self.draft_length,
            labels=self.labels,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            epochs=TRAINING.epochs if self.epochs is None else self.epochs,
            steps=self.steps,
            weight_decay=self.weight_decay,
            depth_decay=self.depth_decay,
            held_out=self.held_out,
            evaluate_every=self.evaluate_every,
            checkpoint_every=self.checkpoint_every,
            seed=self.seed,
        )


def train(
    files: TrainFiles, shape: ShapeOptions, options: TrainOptions, program: ProgramOptions
) -> None:
    """Train a drafter for a model on what distill collected."""
    from redrafter_mlx.training.corpus import open_corpus
    from redrafter_mlx.training.train import TrainingPlan

    plan = TrainingPlan(
        corpus=tuple(files.corpus),
        out=files.out,
        shape=shape.shape(),
        config=options.config(),
        init_from=files.init_from,
        max_hidden_bytes=int(files.hidden_gb * 1e9),
        resume=files.resume,
    )
    _require_free(plan)
    for folder in plan.corpus:
        open_corpus(folder)  # refuses what is none before the model is loaded
    model = load_target(files.model, files.dtype)
    with resumable("the same options and --resume"):
        trained = _with_bars(model, plan)
    _draw(plan)
    for line in summary(plan.out, trained):
        render.line(line)


def _require_free(plan: TrainingPlan) -> None:
    from redrafter_mlx.folders import require_free

    if plan.resume and plan.run_folder.exists():
        further = f"train further by --init-from {plan.out} and another --out"
        require_free(plan.out, f"that training is over: {further}")
    else:
        require_free(plan.out)


def _with_bars(model: LoadedModel, plan: TrainingPlan) -> Trained:
    """Train with one bar for the reading of the corpus and one for the steps."""
    from redrafter_mlx.training.train import complete, prepare

    with bar("Reading") as reading:
        run = prepare(
            model,
            plan,
            lambda done: reading.show(done.num_done, done.num_positions, "positions"),
        )
    with bar("Training") as training:

        def on_step(report: StepReport) -> None:
            training.show(report.step, report.num_steps, step_words(report))
            for line in held_out_lines(report):
                training.note(line)

        return complete(run, on_step)


def step_words(report: StepReport) -> str:
    """Return a step's figures in a few words."""
    return (
        f"step {report.step} · loss {report.loss:.3f} · "
        f"{report.positions_per_second:.0f} positions/s"
    )


def held_out_lines(report: StepReport) -> list[str]:
    """Return a measurement of the held-out part, and a warning where training parts from it."""
    held_out = report.held_out
    if held_out is None:
        return []
    accuracy = " ".join(f"{share:.3f}" for share in held_out.accuracy_by_depth)
    lines = [
        f"step {report.step}: held out: loss {held_out.loss:.3f}, accuracy by depth {accuracy}, "
        f"{held_out.tokens_per_round:.3f} tokens/round"
    ]
    trained, measured = report.accuracy_by_depth[0], held_out.accuracy_by_depth[0]
    if report.step >= FIRST_WARNING and trained > PARTED * measured:
        lines.append(
            f"Overfitting: accuracy at depth 1 is {trained:.3f} in training and {measured:.3f} "
            "held out; more text helps, more epochs do not."
        )
    return lines


def _draw(plan: TrainingPlan) -> None:
    from redrafter_mlx.training.checkpoint import RunLog
    from redrafter_mlx.training.plots import plot_curves

    out = plan.run_folder / "curves.png"
    if not plot_curves(RunLog.lines(plan.run_folder), out):
        render.note("No curves were drawn: pip install 'redrafter-mlx[plots]' brings matplotlib.")


def summary(folder: Path, trained: Trained) -> list[str]:
    """Return a few lines on what was trained."""
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    outcome = trained.outcome
    lines = [
        f"{folder}: {num_bytes / 1e6:.1f} MB, {render.counted(outcome.num_steps, 'step')} on "
        f"{trained.num_positions} positions"
    ]
    if outcome.best_step:
        lines.append(
            f"kept step {outcome.best_step}: {outcome.best_tokens_per_round:.3f} tokens/round on "
            "the held-out part, one beam"
        )
    return lines
