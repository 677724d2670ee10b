"""``redrafter-mlx tune``: measure this machine and choose how much to guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from redrafter_mlx.cli import progress, render
from redrafter_mlx.cli.options import ModelOptions, ProgramOptions
from redrafter_mlx.errors import ConfigError

if TYPE_CHECKING:
    from redrafter_mlx.decoding.tuning import Candidate

NUM_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What becomes of the measurement."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the table, save nothing.")] = (
        False
    )


def tune(model_options: ModelOptions, options: TuneOptions, program: ProgramOptions) -> None:
    """Measure which shape of draft is fastest here, and keep it for later runs."""
    from redrafter_mlx.decoding.profile import save_profile
    from redrafter_mlx.decoding.tuning import MAX_STEPS, step_seconds
    from redrafter_mlx.decoding.tuning import tune as measure_and_choose
    from redrafter_mlx.loading.known import profile_folder, require_writable_cache

    if model_options.no_drafter:
        raise typer.BadParameter(
            "there is no shape to choose without one; leave it out.", param_hint="--no-drafter"
        )
    model = model_options.load(is_tuning=True)
    if model.drafter is None:
        raise ConfigError(
            f"{model.name} has no drafter, so there is no shape to choose; name one by --drafter."
        )
    if not options.dry_run:
        require_writable_cache(profile_folder())
    seconds = MAX_STEPS * step_seconds(model)
    render.note(f"Measuring takes up to {seconds:.0f} s; leave the machine alone meanwhile.")
    with progress.share_bar("Measuring") as show:
        tuned = measure_and_choose(model, seconds, show)
    render.table({_name(found): _figures(found) for found in _shown(tuned.candidates)})
    render.line(_verdict(tuned.candidates[0]))
    if not options.dry_run:
        render.line(f"Saved as {save_profile(tuned.profile, profile_folder())}")


def _shown(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the best ones, and plain decoding wherever it stands."""
    plain = [found for found in candidates[NUM_SHOWN:] if found.shape.num_draft_steps == 0]
    return [*candidates[:NUM_SHOWN], *plain]


def _name(candidate: Candidate) -> str:
    shape = candidate.shape
    if shape.num_draft_steps == 0:
        return "plain"
    return f"width {shape.beam_width}, length {shape.beam_length}, {shape.max_rows} rows"


def _figures(candidate: Candidate) -> dict[str, str]:
    measured = candidate.measured_per_second
    return {
        "tokens/round": f"{candidate.tokens_per_round:.2f}",
        "predicted tokens/s": f"{candidate.predicted_per_second:.1f}",
        "measured tokens/s": "" if measured is None else f"{measured:.1f}",
    }


def _verdict(best: Candidate) -> str:
    if best.shape.num_draft_steps == 0:
        return "No draft pays here: this model is decoded plainly, with lookups where they pay."
    shape = best.shape
    return (
        f"Best here: beam width {shape.beam_width}, beam length {shape.beam_length}, "
        f"{shape.max_rows} rows."
    )
