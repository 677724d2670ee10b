"""``redrafter-mlx convert``: a model or a drafter into a folder of this program's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redrafter_mlx.cli import progress, render
from redrafter_mlx.cli.options import (
    GroupSize,
    ProgramOptions,
    Revision,
    check_bits,
    quantization,
)
from redrafter_mlx.cli.usage import from_options, named, named_path, refuse_idle
from redrafter_mlx.config import FLOAT_DTYPES, MAX_ROWS, check_range
from redrafter_mlx.errors import ConfigError

if TYPE_CHECKING:
    from redrafter_mlx.loading.watch import Watch


def _check_float_dtype(dtype: str | None) -> str | None:
    if dtype not in (None, *FLOAT_DTYPES):
        raise typer.BadParameter(f"{dtype!r} is not one of {', '.join(FLOAT_DTYPES)}.")
    return dtype


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """From where to where."""

    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            callback=named,
            help="A model or a drafter: a file, a folder, a known name, or org/name on the Hub.",
        ),
    ]
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            parser=named_path,
            help="Folder to make; what exists is never replaced.",
        ),
    ]
    revision: Revision = None


@dataclass(frozen=True, kw_only=True)
class WeightOptions:
    """How the weights are stored."""

    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(FLOAT_DTYPES),
            callback=_check_float_dtype,
            help="Precision of what is not quantised; else the model's own, float16 for a drafter.",
        ),
    ] = None
    quantize: Annotated[
        int | None,
        typer.Option(
            metavar="4|8", callback=check_bits, help="Bits a weight of the linear layers."
        ),
    ] = None
    group_size: GroupSize = None

    def __post_init__(self) -> None:
        """Refuse a group size alone."""
        quantization(self.quantize, self.group_size)


@dataclass(frozen=True, kw_only=True)
class DrafterOptions:
    """What concerns a drafter alone."""

    target: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Of a drafter: check that it fits, and note the model."),
    ] = None
    draft_length: Annotated[
        int | None,
        typer.Option(help="Of a drafter: tokens a draft had in training; else as the source says."),
    ] = None
    draft_vocab: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of a drafter: keep the head's N most used tokens."),
    ] = None
    corpus: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="CORPUS",
            parser=named_path,
            help="Count in a text, or an .npz of token ids; else in answers of the target.",
        ),
    ] = None

    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="pytorch",
            help="Write a drafter as Apple's PyTorch code saves it; --target for a tied head.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what is out of range, and what does not go together."""
        with from_options():
            if self.draft_length is not None:
                check_range("draft_length", self.draft_length, 1, MAX_ROWS)
            if self.draft_vocab is not None:
                check_range("draft_vocab", self.draft_vocab, 1, 2**24)
        if self.to not in (None, "pytorch"):
            raise typer.BadParameter(f"{self.to!r} is not pytorch.", param_hint="--to")
        if self.draft_vocab is None and self.corpus is not None:
            raise typer.BadParameter("it goes with --draft-vocab N.", param_hint="--from")
        if self.draft_vocab is not None and self.corpus is None and self.target is None:
            raise typer.BadParameter(
                "without --from the --target's own answers are counted; name one of them.",
                param_hint="--draft-vocab",
            )
        if self.corpus and self.corpus.suffix != ".npz" and self.target is None:
            raise typer.BadParameter(
                "a text needs the tokenizer of a --target; name one.", param_hint="--from"
            )

    def refuse_for(self, source: str) -> None:
        """Refuse these options where the source is a model.

        Raises:
            typer.BadParameter: One of them was given.
        """
        given = {
            "--target": self.target,
            "--draft-length": self.draft_length,
            "--draft-vocab": self.draft_vocab,
            "--to": self.to,
        }
        for option, value in given.items():
            if value is not None:
                raise typer.BadParameter(
                    f"it is for a drafter, but {source} is a model; leave it out.",
                    param_hint=option,
                )


def convert(
    folders: FolderOptions,
    weights: WeightOptions,
    drafter: DrafterOptions,
    program: ProgramOptions,
) -> None:
    """Convert a model for --model, or a drafter for --drafter; its content tells which it is."""
    from redrafter_mlx.convert.kind import SourceKind, kind_of
    from redrafter_mlx.folders import require_free
    from redrafter_mlx.loading.hub import find_source
    from redrafter_mlx.loading.watch import Watch

    if drafter.to is not None:
        refuse_idle("--to pytorch", {"to", "target"}, (weights, drafter))
    require_free(folders.out)
    with progress.activity(f"Converting {folders.source} ...") as activity:
        watch = Watch(activity.note, activity.progress)
        source = find_source(folders.source, folders.revision, watch)
        _refuse_inside(source, folders.out)
        if kind_of(source) is SourceKind.DRAFTER:
            lines = _convert_drafter(source, folders.out, weights, drafter, watch)
        else:
            drafter.refuse_for(folders.source)
            lines = _convert_target(source, folders, weights, watch)
    for line in lines:
        render.line(line)


def _refuse_inside(source: Path, out: Path) -> None:
    """Refuse to write into the folder that is read."""
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{out} is inside {source}, which is converted; choose another place.")


def _convert_drafter(
    source: Path, out: Path, weights: WeightOptions, drafter: DrafterOptions, watch: Watch
) -> list[str]:
    from redrafter_mlx.cli.import_drafter import DrafterChoices, export, import_drafter

    if drafter.to is not None:
        return export(source, out, drafter.target, watch)
    choices = DrafterChoices(
        target=drafter.target,
        draft_length=drafter.draft_length,
        quantization=quantization(weights.quantize, weights.group_size),
        draft_vocab=drafter.draft_vocab,
        corpus=drafter.corpus,
        dtype=weights.dtype,
    )
    return import_drafter(source, out, choices, watch)


def _convert_target(
    source: Path, folders: FolderOptions, weights: WeightOptions, watch: Watch
) -> list[str]:
    from redrafter_mlx.convert.target import TargetOptions, convert_target
    from redrafter_mlx.loading.converted import size_text
    from redrafter_mlx.loading.hub import chat_template_of

    options = TargetOptions(
        dtype=weights.dtype,
        quantization=quantization(weights.quantize, weights.group_size),
        chat_template=chat_template_of(folders.source),
    )
    made = convert_target(source, folders.out, options, watch.progress)
    return [
        f"{folders.out}: {size_text(folders.out)}, {render.counted(made.num_tensors, 'tensor')}",
        *made.notes,
    ]
