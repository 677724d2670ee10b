"""Tells by content what a source is: a target, a drafter, or neither."""

from __future__ import annotations

from enum import Enum, auto
from pathlib import Path

from redrafter_mlx.convert.drafter_source import open_source
from redrafter_mlx.convert.names import apple_name, is_drafters
from redrafter_mlx.convert.target_source import find_gguf, has_safetensors
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import read_json

_WANTED = (
    "give a drafter's file or folder, the folder of a Hugging Face model with its config.json, "
    "or a GGUF file"
)


class SourceKind(Enum):
    """What a source can be converted into."""

    TARGET = auto()
    DRAFTER = auto()


def kind_of(source: Path | str) -> SourceKind:
    """Return what a file or a folder holds; only names and sizes are read.

    A model that a drafter was saved with is no target: the two are taken apart by importing
    the drafter.

    Raises:
        CheckpointError: It holds neither, or cannot be read.
    """
    source = Path(source)
    if not source.exists():
        raise CheckpointError(f"{source} is not there; {_WANTED}.")
    if find_gguf(source) is not None:
        return SourceKind.TARGET
    config = source / "config.json"
    settings = read_json(config) if source.is_dir() and config.exists() else {}
    with open_source(source) as tensors:
        names = list(tensors)
    if any(is_drafters(apple_name(name)) for name in names):
        return SourceKind.DRAFTER
    if settings:
        return SourceKind.TARGET
    raise CheckpointError(f"{source} {_description(names)}; {_WANTED}.")


def is_loadable(folder: Path) -> bool:
    """Return whether MLX loads a model's folder as it lies; else it is to be converted."""
    return has_safetensors(folder)


def _description(names: list[str]) -> str:
    """Return what a source without a configuration seems to be."""
    if any("embed_tokens" in name or "layers." in name for name in names):
        return "holds a model's weights and no config.json"
    return (
        f"holds tensors of neither a drafter nor a model, {min(names, default='')!r:.80} among them"
    )
