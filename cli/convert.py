"""``redrafter-mlx convert``: import a drafter's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redrafter_mlx.cli import render
from redrafter_mlx.cli.options import ProgramOptions
from redrafter_mlx.config import DrafterConfig, Quantization
from redrafter_mlx.errors import CheckpointError

if TYPE_CHECKING:
    import mlx.core as mx
    import numpy as np
    import numpy.typing as npt

    from redrafter_mlx.convert.drafter import TargetSide
    from redrafter_mlx.models.decoder import Decoder

BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """From where to where."""

    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A drafter as its training saved it: a folder, .safetensors, .pt or .bin.",
        ),
    ]
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder to make; what exists is never replaced.")
    ]


@dataclass(frozen=True, kw_only=True)
class ImportChoices:
    """What becomes of the drafter on the way."""

    target: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Check that it fits this model, and note the model."),
    ] = None
    draft_length: Annotated[
        int | None, typer.Option(help="Tokens a draft had in training; else as the source says.")
    ] = None
    quantize: Annotated[
        int | None, typer.Option(metavar="4|8", help="Bits a weight of the linear layers.")
    ] = None
    group_size: Annotated[
        int, typer.Option(metavar="32|64|128", help="Weights that share a scale.")
    ] = 64
    draft_vocab: Annotated[
        int | None,
        typer.Option(metavar="N", help="Keep the head's N most used tokens; --from counts them."),
    ] = None
    corpus: Annotated[
        Path | None,
        typer.Option("--from", metavar="CORPUS", help="A text file, or an .npz of token ids."),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.quantize not in (None, *BITS):
            raise typer.BadParameter(
                f"{self.quantize} is neither 4 nor 8.", param_hint="--quantize"
            )
        if self.group_size not in GROUP_SIZES:
            raise typer.BadParameter(
                f"{self.group_size} is none of 32, 64, 128.", param_hint="--group-size"
            )
        if (self.draft_vocab is None) != (self.corpus is None):
            raise typer.BadParameter(
                "it goes with --from CORPUS; give both or none.", param_hint="--draft-vocab"
            )
        if self.corpus and self.corpus.suffix != ".npz" and self.target is None:
            raise typer.BadParameter(
                "a text needs the tokenizer of a --target; name one.", param_hint="--from"
            )


def convert(folders: FolderOptions, choices: ImportChoices, program: ProgramOptions) -> None:
    """Import a recurrent drafter into a folder for --drafter."""
    from redrafter_mlx.convert.drafter import ImportOptions, read_drafter, write_drafter

    bits = choices.quantize
    _require_free(folders.out)
    with render.progress(f"Importing {folders.source} ..."):
        source = read_drafter(folders.source)
        options = ImportOptions(
            draft_length=choices.draft_length,
            target=target_side(choices.target) if choices.target else None,
            quantization=Quantization(bits, choices.group_size) if bits else None,
            draft_vocab=_draft_vocab(source.config.vocab_size, choices),
        )
        config = write_drafter(source, folders.out, options)
    for line in summary(folders.out, config, source.notes):
        render.line(line)


def _require_free(folder: Path) -> None:
    """Refuse what exists before anything slow; writing refuses it, too."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(
            f"{folder} exists and is not an empty folder; choose another or remove it."
        )


def target_side(name: str) -> TargetSide:
    """Load what a drafter is checked against and tied to.

    Raises:
        CheckpointError: There is no such model, or it is not supported.
    """
    from redrafter_mlx.convert.drafter import TargetSide
    from redrafter_mlx.loading.hub import resolve_model
    from redrafter_mlx.loading.target import identify, load_target

    target = load_target(resolve_model(name), "stored")
    return TargetSide(identity=identify(name, target), head=_float_head(target))


def _float_head(target: Decoder) -> mx.array:
    """Return the output matrix in float32, (vocab_size, hidden_size)."""
    import mlx.core as mx

    from redrafter_mlx.convert.tied_head import dequantize_stepwise
    from redrafter_mlx.models.matrix import Matrix

    head = Matrix.of(target.output_head)
    if head.scales is None or head.biases is None:
        return head.dense().astype(mx.float32)
    packing = Quantization(head.bits, head.group_size)
    return dequantize_stepwise(head.weight, head.scales, head.biases, packing)


def _draft_vocab(vocab_size: int, choices: ImportChoices) -> npt.NDArray[np.int32] | None:
    """Count what the corpus uses; a target's end tokens are kept however rare they are."""
    if choices.draft_vocab is None or choices.corpus is None:
        return None
    from redrafter_mlx.convert.draft_vocab import count_tokens, most_used
    from redrafter_mlx.loading.hub import resolve_model
    from redrafter_mlx.loading.model import eos_ids, load_tokenizer
    from redrafter_mlx.text import encode

    folder = resolve_model(choices.target) if choices.target else None
    tokenizer = load_tokenizer(folder) if folder else None
    counts = count_tokens(
        choices.corpus,
        vocab_size,
        lambda text: encode(tokenizer, text, add_special_tokens=False),
    )
    return most_used(counts, choices.draft_vocab, eos_ids(folder, tokenizer) if folder else ())


def summary(folder: Path, config: DrafterConfig, notes: Sequence[str]) -> list[str]:
    """Return a few lines on what was written, and on what was not taken over."""
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    blocks = render.counted(config.num_draft_layers, "residual block")
    vocabulary = f"vocabulary {config.vocab_size}"
    if config.draft_vocab_size is not None:
        vocabulary += f" cut to {config.draft_vocab_size}"
    lines = [
        f"{folder}: {num_bytes / 1e6:.1f} MB",
        f"hidden_size {config.hidden_size}, exit_dim {config.exit_dim}, {blocks}, {vocabulary}",
        _head_line(config),
    ]
    if config.draft_length is not None:
        lines.append(f"trained to draft {render.counted(config.draft_length, 'token')}")
    if config.target is not None:
        lines.append(f"made for {config.target.name}")
    return [*lines, *notes]


def _head_line(config: DrafterConfig) -> str:
    is_tied = config.head == "tied"
    head = f"tied to the model's, times {config.head_scale:.6g}" if is_tied else "of its own"
    stored = config.quantization
    weights = f"{stored.bits} bits in groups of {stored.group_size}" if stored else "not quantised"
    return f"head {head}; weights {weights}"
