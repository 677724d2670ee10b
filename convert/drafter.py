"""Imports a drafter's checkpoint into a folder of the layout that the package loads.

Such a folder is config.json (a DrafterConfig) and model.safetensors. A module is quantised
exactly where the file holds its ``.scales``: one whose width the group size does not divide
stays in floating point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.config import FLOAT_DTYPES, DrafterConfig, Quantization, TargetIdentity
from redrafter_mlx.convert.drafter_file import (
    CONFIG_FILE,
    DrafterTensors,
    linear_modules,
    read_drafter,
)
from redrafter_mlx.convert.float_dtypes import MLX_DTYPES
from redrafter_mlx.convert.names import DRAFT_VOCAB, head_name
from redrafter_mlx.convert.tied_head import find_head_scale
from redrafter_mlx.errors import CheckpointError, ConfigError, ShapeError
from redrafter_mlx.folders import new_folder
from redrafter_mlx.weights import save_tensors, write_json

__all__ = [
    "DrafterTensors",
    "ImportOptions",
    "TargetSide",
    "import_drafter",
    "read_drafter",
    "write_drafter",
]

WEIGHTS_FILE = "model.safetensors"

TokenIds = tuple[int, ...] | mx.array | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class TargetSide:
    """The target that a drafter is imported for.

    Attributes:
        identity: What identifies it.
        head: (vocab_size, hidden_size) float32, its output head; a quantised one as
            ``tied_head.dequantize_stepwise`` gives it.
    """

    identity: TargetIdentity
    head: mx.array


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What becomes of a drafter on import.

    Attributes:
        draft_length: Drafted tokens that it was trained for; ``None`` takes what the
            source says.
        target: Target to check it against, to record and to tie the head to.
        quantization: How to quantise the linear layers, ``None`` for not at all.
        draft_vocab: Token ids that it may propose, each once; ``None`` for all.
        dtype: Precision for tensors in float32; half-precision ones keep theirs.
    """

    draft_length: int | None = None
    target: TargetSide | None = None
    quantization: Quantization | None = None
    draft_vocab: TokenIds | None = None
    dtype: str = "float16"

    def __post_init__(self) -> None:
        """Check the dtype."""
        if self.dtype not in FLOAT_DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}; choose one of {', '.join(FLOAT_DTYPES)}.")


def import_drafter(source: Path, out: Path, options: ImportOptions) -> DrafterConfig:
    """Write the folder of a drafter, whole or not at all.

    Args:
        source: What ``read_drafter`` reads; a folder of this package's own, too, which
            may so be cut or quantised later.
        out: Folder to make; it may exist where it is empty.
        options: What to do on the way.

    Returns:
        The configuration written.

    Raises:
        CheckpointError: The source cannot be used, or ``out`` cannot be written.
        ConfigError: An option is out of range or does not suit this drafter.
        ShapeError: Drafter and target do not fit each other.
    """
    return write_drafter(read_drafter(source), out, options)


def write_drafter(drafter: DrafterTensors, out: Path, options: ImportOptions) -> DrafterConfig:
    """Write the folder of a drafter in memory; see ``import_drafter``."""
    with new_folder(out) as folder:
        if options.draft_length is not None:
            drafter = _configure(drafter, draft_length=options.draft_length)
        if options.target is not None:
            drafter = _tie_head(_record_target(drafter, options.target), options.target)
        if options.draft_vocab is not None:
            drafter = _cut_head(drafter, _token_ids(options.draft_vocab, drafter.config))
        drafter = _cast(drafter, options.dtype)
        if options.quantization is not None:
            drafter = _quantize(drafter, options.quantization)
        write_json(folder / CONFIG_FILE, drafter.config.to_dict())
        save_tensors(folder / WEIGHTS_FILE, drafter.tensors)
    return drafter.config


def _configure(drafter: DrafterTensors, **changes: Any) -> DrafterTensors:
    return replace(drafter, config=replace(drafter.config, **changes))


def _record_target(drafter: DrafterTensors, target: TargetSide) -> DrafterTensors:
    """Check that drafter and target fit and note the target in the configuration."""
    config, identity = drafter.config, target.identity
    for name in ("hidden_size", "vocab_size"):
        ours, theirs = getattr(config, name), getattr(identity, name)
        if ours != theirs:
            raise ShapeError(
                f"The drafter's {name} is {ours}, that of {identity.name} is {theirs}; "
                "choose the target that the drafter was trained for."
            )
    if target.head.shape != (config.vocab_size, config.hidden_size):
        raise ShapeError(
            f"The output head of {identity.name} has shape {target.head.shape}, expected "
            f"{(config.vocab_size, config.hidden_size)}; choose another target."
        )
    former = config.target
    if config.head == "tied" and former and former.fingerprint != identity.fingerprint:
        raise CheckpointError(
            f"The drafter's head is tied to that of {former.name} and cannot serve "
            f"{identity.name}; import the drafter from its own weights."
        )
    return _configure(drafter, target=identity)


def _tie_head(drafter: DrafterTensors, target: TargetSide) -> DrafterTensors:
    """Leave out an own head that is a constant times the target's; a quantised one stays."""
    head = drafter.tensors.get(f"{head_name(drafter.config.num_draft_layers)}.weight")
    if head is None:
        return drafter
    rows = drafter.tensors.get(DRAFT_VOCAB)
    scale = find_head_scale(head, target.head if rows is None else target.head[rows])
    if scale is None:
        return drafter
    tensors = {name: tensor for name, tensor in drafter.tensors.items() if tensor is not head}
    return _configure(replace(drafter, tensors=tensors), head="tied", head_scale=scale)


def _token_ids(draft_vocab: TokenIds, config: DrafterConfig) -> npt.NDArray[np.int32]:
    """Return the ids of a draft vocabulary in ascending order."""
    given = np.asarray(draft_vocab)
    token_ids = np.unique(given)
    if given.size == 0 or token_ids.size < given.size:
        raise ConfigError(
            f"The draft vocabulary has {given.size} ids, {token_ids.size} of them distinct; "
            "give each id once, and at least one."
        )
    if token_ids[0] < 0 or token_ids[-1] >= config.vocab_size:
        raise ConfigError(
            f"The draft vocabulary goes from id {token_ids[0]} to {token_ids[-1]}; choose ids "
            f"from 0 to {config.vocab_size - 1}."
        )
    return token_ids.astype(np.int32)


def _cut_head(drafter: DrafterTensors, token_ids: npt.NDArray[np.int32]) -> DrafterTensors:
    """Keep the head's rows of these tokens; a tied head only takes the id map."""
    tensors = dict(drafter.tensors)
    if drafter.config.head == "own":
        rows = mx.array(_head_rows(drafter, token_ids))
        prefix = head_name(drafter.config.num_draft_layers) + "."
        tensors |= {name: tensors[name][rows] for name in tensors if name.startswith(prefix)}
    tensors[DRAFT_VOCAB] = mx.array(token_ids)
    return _configure(replace(drafter, tensors=tensors), draft_vocab_size=len(token_ids))


def _head_rows(drafter: DrafterTensors, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the row of each token in an own head, which may be cut already."""
    kept = drafter.tensors.get(DRAFT_VOCAB)
    if kept is None:
        return token_ids
    lost = np.setdiff1d(token_ids, np.array(kept))
    if lost.size:
        raise ConfigError(
            f"The drafter's head was cut to {kept.size} tokens and {lost[0]} is none of them; "
            "import the drafter from its own weights."
        )
    return np.searchsorted(np.array(kept), token_ids).astype(np.int32)


def _cast(drafter: DrafterTensors, dtype: str) -> DrafterTensors:
    """Store what is in float32 as ``dtype``."""
    tensors = {
        name: _cast_tensor(name, tensor, dtype) if tensor.dtype == mx.float32 else tensor
        for name, tensor in drafter.tensors.items()
    }
    return replace(drafter, tensors=tensors)


def _cast_tensor(name: str, tensor: mx.array, dtype: str) -> mx.array:
    cast = tensor.astype(MLX_DTYPES[dtype])
    if not mx.isfinite(cast).all().item():
        raise CheckpointError(
            f"{name!r} holds {mx.abs(tensor).max().item():g}, too large for {dtype}; import it in "
            "bfloat16 or float32."
        )
    return cast


def _quantize(drafter: DrafterTensors, quantization: Quantization) -> DrafterTensors:
    """Quantise every linear layer whose width is a multiple of the group size."""
    former = drafter.config.quantization
    if former is not None and former != quantization:
        raise ConfigError(
            f"The drafter is already quantised to {former.bits} bits in groups of "
            f"{former.group_size}; import it from its own weights."
        )
    packed: dict[str, mx.array] = {}
    for module in linear_modules(drafter.tensors):
        weight = drafter.tensors[f"{module}.weight"]
        if weight.dtype != mx.uint32 and weight.shape[1] % quantization.group_size == 0:
            parts = mx.quantize(weight, quantization.group_size, quantization.bits)
            packed |= zip(_parts(module), parts, strict=True)
    if former is None and not packed:
        raise ConfigError(
            f"No layer's width is a multiple of group_size {quantization.group_size}; choose a "
            "smaller one or leave the drafter as it is."
        )
    return _configure(replace(drafter, tensors=drafter.tensors | packed), quantization=quantization)


def _parts(module: str) -> tuple[str, ...]:
    """Return the names that MLX gives to a quantised module's arrays."""
    return tuple(f"{module}.{part}" for part in ("weight", "scales", "biases"))
