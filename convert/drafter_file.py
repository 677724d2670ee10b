"""Reads a drafter's checkpoint and checks every tensor of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.convert.names import DRAFT_VOCAB, read_config, rename_tensors, tensor_shapes
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import load_tensors, read_json

CONFIG_FILE = "config.json"
FLOAT_DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
# Apple's train.py names its output ..._n_5_lr_0.001_layers_2: 5 drafted tokens.
_DRAFT_LENGTH = re.compile(r"_n_(\d+)_")


@dataclass(frozen=True, slots=True)
class DrafterTensors:
    """A drafter in memory.

    Attributes:
        config: Its shape.
        tensors: Its tensors under Apple's names.
        dropped: Names of the source's tensors that a drafter does not use.
    """

    config: DrafterConfig
    tensors: dict[str, mx.array]
    dropped: tuple[str, ...] = ()


def read_drafter(source: Path) -> DrafterTensors:
    """Read a drafter that Apple's ``save_pretrained`` or this package wrote.

    Args:
        source: A folder with model.safetensors and perhaps a config.json, or a
            ``.safetensors`` file of Apple's layout.

    Raises:
        CheckpointError: A tensor is missing, left over, of a wrong shape or dtype or not
            finite, or config.json disagrees with the tensors.
        ConfigError: A size is out of range.
    """
    source = Path(source)
    renamed = rename_tensors(load_tensors(source))
    values = _read_values(source)
    if "format_version" in values:
        config = DrafterConfig.from_dict(values)
    else:
        config = read_config(renamed.tensors)
        _check_values(values, config, source)
        config = replace(config, draft_length=_draft_length(source))
    _check_shapes(renamed.tensors, _stored_shapes(config, renamed.tensors), source)
    check_entries(renamed.tensors, source)
    check_draft_vocab(renamed.tensors.get(DRAFT_VOCAB), config, source)
    return DrafterTensors(config, renamed.tensors, renamed.dropped)


def _read_values(source: Path) -> dict[str, Any]:
    path = source / CONFIG_FILE
    return read_json(path) if source.is_dir() and path.exists() else {}


def _draft_length(source: Path) -> int | None:
    source = source.resolve()
    match = _DRAFT_LENGTH.search(source.name if source.is_dir() else source.parent.name)
    return int(match[1]) if match else None


def _check_values(values: Mapping[str, Any], config: DrafterConfig, source: Path) -> None:
    """Compare an Apple config.json with the tensors.

    Its num_draft_layers is not read: NVIDIA ModelOpt writes another number there.
    """
    for name in ("hidden_size", "vocab_size", "exit_dim", "rnn"):
        found = getattr(config, name)
        if values.get(name, found) != found:
            raise CheckpointError(
                f"{source / CONFIG_FILE} says {name} {values[name]!r}, its tensors say {found}; "
                "correct or remove the file."
            )


def linear_modules(names: Iterable[str]) -> list[str]:
    """Return the modules that have a weight matrix, in the order of ``names``."""
    return [name.removesuffix(".weight") for name in names if name.endswith(".weight")]


def _stored_shapes(
    config: DrafterConfig, tensors: Mapping[str, mx.array]
) -> dict[str, tuple[int, ...]]:
    """Return the expected shapes, where a module has ``.scales`` those of MLX's packing."""
    shapes = tensor_shapes(config)
    if config.quantization is None:
        return shapes
    for module in linear_modules(shapes):
        if f"{module}.scales" in tensors:
            rows, columns = shapes[f"{module}.weight"]
            groups = (rows, columns // config.quantization.group_size)
            shapes[f"{module}.weight"] = (rows, columns * config.quantization.bits // 32)
            shapes |= {f"{module}.scales": groups, f"{module}.biases": groups}
    return shapes


def _check_shapes(
    tensors: Mapping[str, mx.array], shapes: Mapping[str, tuple[int, ...]], source: Path
) -> None:
    for name, shape in shapes.items():
        if name not in tensors:
            raise CheckpointError(
                f"{source} lacks the tensor {name!r} of shape {shape}; get the whole checkpoint."
            )
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"{source}: {name!r} has shape {tensors[name].shape}, expected {shape}; "
                "get the checkpoint again."
            )
    for name in sorted(tensors.keys() - shapes.keys()):
        raise CheckpointError(
            f"{source}: {name!r} of shape {tensors[name].shape} is no tensor of this drafter; "
            "remove it."
        )


def check_entries(tensors: Mapping[str, mx.array], source: Path) -> None:
    """Check every dtype, and that every entry is finite."""
    packed = {f"{name.removesuffix('.scales')}.weight" for name in tensors if ".scales" in name}
    for name, tensor in tensors.items():
        expected: tuple[mx.Dtype, ...] = tuple(FLOAT_DTYPES.values())
        if name in packed:
            expected = (mx.uint32,)
        elif name == DRAFT_VOCAB:
            expected = (mx.int32,)
        if tensor.dtype not in expected:
            names = " or ".join(map(str, expected))
            raise CheckpointError(
                f"{source}: {name!r} is {tensor.dtype}, expected {names}; convert it."
            )
        if not mx.isfinite(tensor).all().item():
            raise CheckpointError(
                f"{source}: {name!r} holds an infinity or a NaN; choose another checkpoint."
            )


def check_draft_vocab(token_ids: mx.array | None, config: DrafterConfig, source: Path) -> None:
    """Check that a draft vocabulary is ascending and inside the vocabulary."""
    if token_ids is None:
        return
    ids = np.array(token_ids)
    if (np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= config.vocab_size:
        raise CheckpointError(
            f"{source}: {DRAFT_VOCAB!r} goes from {ids[0]} to {ids[-1]}, it must ascend between 0 "
            f"and {config.vocab_size - 1}; import the drafter again."
        )
