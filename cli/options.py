"""The options that commands share, in groups; their defaults are those of the library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redrafter_mlx.cli import progress, render
from redrafter_mlx.cli.usage import named, named_path
from redrafter_mlx.config import (
    DEFAULT_MODEL,
    DTYPES,
    Quantization,
)
from redrafter_mlx.errors import CheckpointError

if TYPE_CHECKING:
    from redrafter_mlx.loading.model import LoadedModel

BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP_SIZE = 64


def _show_version(wanted: bool) -> None:
    if wanted:
        render.version()
        raise typer.Exit()


def _show_traceback(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.find_root().command.shows_traceback = True  # type: ignore[attr-defined]


def check_dtype(dtype: str) -> str:
    """Refuse a precision that there is none of."""
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r} is not one of {', '.join(DTYPES)}.")
    return dtype


def check_bits(bits: int | None) -> int | None:
    """Return the bits of --quantize; refuse what is not offered."""
    if bits not in (None, *BITS):
        raise typer.BadParameter(f"{bits} is neither 4 nor 8.")
    return bits


def _check_group_size(group_size: int | None) -> int | None:
    if group_size not in (None, *GROUP_SIZES):
        raise typer.BadParameter(f"{group_size} is none of {', '.join(map(str, GROUP_SIZES))}.")
    return group_size


def quantization(bits: int | None, group_size: int | None) -> Quantization | None:
    """Return what --quantize and --group-size ask for.

    Raises:
        typer.BadParameter: There is a group size, but nothing to quantise.
    """
    if bits is None and group_size is not None:
        raise typer.BadParameter("it goes with --quantize; give both.", param_hint="--group-size")
    return Quantization(bits, group_size or DEFAULT_GROUP_SIZE) if bits else None


Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=_show_traceback, is_eager=True, help="Show the traceback of an error."
    ),
]


GroupSize = Annotated[
    int | None,
    typer.Option(
        metavar="|".join(map(str, GROUP_SIZES)),
        callback=_check_group_size,
        help=f"Quantised weights that share a scale; else {DEFAULT_GROUP_SIZE}.",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Branch, tag or commit of a repository on the Hub."),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="|".join(DTYPES),
        callback=check_dtype,
        help="Precision of the model's weights; auto is as stored on a GPU, float32 on a CPU.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """What may stand before a command and after it."""

    version: Version = False
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which target and which drafter run, and in which precision."""

    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            callback=named,
            help="A known name, a folder, a .gguf file, or org/name on the Hub.",
        ),
    ] = DEFAULT_MODEL
    drafter: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=named_path,
            help="The drafter; else one from the model's folder, the user's cache or the package.",
        ),
    ] = None
    no_drafter: Annotated[
        bool, typer.Option("--no-drafter", help="Decode plainly, without a drafter.")
    ] = False
    dtype: Dtype = "auto"
    quantize: Annotated[
        int | None,
        typer.Option(
            metavar="4|8",
            callback=check_bits,
            help="Take a copy of this many bits a weight; it is made once and kept in the cache.",
        ),
    ] = None
    group_size: GroupSize = None
    revision: Revision = None

    def __post_init__(self) -> None:
        """Refuse two options that contradict each other."""
        quantization(self.quantize, self.group_size)
        if self.no_drafter and self.drafter is not None:
            raise typer.BadParameter(
                "it contradicts --drafter; leave one of them out.", param_hint="--no-drafter"
            )

    def load(
        self,
        thinking: bool | None = None,
        *,
        is_tuning: bool = False,
        is_shape_chosen: bool = False,
    ) -> LoadedModel:
        """Load the model, check that it can think as asked, and show its notices.

        Args:
            thinking: What is asked, ``None`` for nothing.
            is_tuning: Whether this is what the line that advises to tune asks for; it is left out.
            is_shape_chosen: Whether the options leave nothing to what tune finds; likewise.

        Raises:
            CheckpointError: A file is missing or broken, or the model is not supported.
            ShapeError: The drafter does not fit the model.
            PromptError: The chat template has no switch for thinking.
        """
        from redrafter_mlx.loading.model import UNTUNED, load
        from redrafter_mlx.loading.watch import Watch
        from redrafter_mlx.text import require_thinking_switch

        if self.drafter is not None:
            require_drafter(self.drafter)
        drafter = None if self.no_drafter else self.drafter or "auto"
        with progress.activity(f"Loading {self.model} ...") as activity:
            model = load(
                self.model,
                drafter=drafter,
                dtype=self.dtype,
                revision=self.revision,
                quantization=quantization(self.quantize, self.group_size),
                watch=Watch(activity.note, activity.progress),
            )
        if thinking is not None:
            require_thinking_switch(model.tokenizer, thinking)
        for notice in model.notices:
            if notice != UNTUNED or not (is_tuning or is_shape_chosen):
                render.note(notice)
        return model


def require_drafter(folder: Path) -> None:
    """Refuse a wrong folder before the model is fetched and loaded."""
    if not (folder / "config.json").is_file():
        fault = "has no config.json" if folder.is_dir() else "is no folder"
        raise CheckpointError(
            f"The drafter {folder} {fault}; give a folder that redrafter-mlx convert made."
        )
