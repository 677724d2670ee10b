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
from redrafter_mlx.convert.drafter_source import LazyTensor, open_source
from redrafter_mlx.convert.float_dtypes import MLX_DTYPES
from redrafter_mlx.convert.names import (
    DRAFT_VOCAB,
    count_blocks,
    head_name,
    is_drafters,
    read_config,
    rename_tensors,
    tensor_shapes,
)
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import read_json

CONFIG_FILE = "config.json"
_TENSORRT_KEYS = {
    "redrafter_hidden_size": "hidden_size",
    "redrafter_exit_dim": "exit_dim",
    "redrafter_is_rnn": "rnn",
}
# Apple's train.py names its output ..._n_5_lr_0.001_layers_2: 5 drafted tokens.
_DRAFT_LENGTH = re.compile(r"_n_(\d+)_")


@dataclass(frozen=True, slots=True)
class DrafterTensors:
    """A drafter in memory.

    Attributes:
        config: Its shape.
        tensors: Its tensors under Apple's names.
        dropped: Names of the source's tensors that a drafter does not use.
        left_aside: Names of the source's tensors that are the model's beside the drafter.
        num_padding_rows: Rows of the source's head beyond the vocabulary, cut off.
    """

    config: DrafterConfig
    tensors: dict[str, mx.array]
    dropped: tuple[str, ...] = ()
    left_aside: tuple[str, ...] = ()
    num_padding_rows: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """One line each for what was not taken over."""
        notes = [f"left out {name}, which no drafter uses" for name in self.dropped]
        if self.left_aside:
            notes.append(f"left aside {len(self.left_aside)} tensors that are not the drafter's")
        if self.num_padding_rows:
            rows = self.config.vocab_size + self.num_padding_rows
            notes.append(f"cut the head back from {rows} rows to the {self.config.vocab_size} used")
        return tuple(notes)


def read_drafter(source: Path) -> DrafterTensors:
    """Read a drafter that Apple's code, NVIDIA's, a fork of theirs or this package wrote.

    Args:
        source: What ``open_source`` opens; a folder's config.json is read, where it has one.

    Raises:
        CheckpointError: A tensor is missing, left over, of a wrong shape or dtype or not
            finite, or config.json disagrees with the tensors.
        ConfigError: A size is out of range.
    """
    source = Path(source)
    values = _read_values(source)
    with open_source(source) as stored:
        renamed = rename_tensors(stored)
        _refuse_unknown(renamed.origins, stored, source)
        tensors = {name: stored[origin].load() for name, origin in renamed.origins.items()}
    num_padding_rows = 0
    if "format_version" in values:
        config = DrafterConfig.from_dict(values)
    else:
        num_padding_rows = _cut_padding(tensors, values)
        config = read_config(tensors)
        _check_values(values, config, source)
        config = replace(config, draft_length=_draft_length(source))
    _check_shapes(tensors, _stored_shapes(config, tensors), source)
    check_entries(tensors, source)
    check_draft_vocab(tensors.get(DRAFT_VOCAB), config, source)
    return DrafterTensors(config, tensors, renamed.dropped, renamed.left_aside, num_padding_rows)


def _read_values(source: Path) -> dict[str, Any]:
    """Return config.json with a drafter's sizes under Apple's names."""
    path = source / CONFIG_FILE
    if not source.is_dir() or not path.exists():
        return {}
    values = read_json(path)
    nested = values.get("redrafter")  # NVIDIA ModelOpt
    values |= nested if isinstance(nested, dict) else {}
    return values | {ours: values[key] for key, ours in _TENSORRT_KEYS.items() if key in values}


def _refuse_unknown(
    origins: Mapping[str, str], stored: Mapping[str, LazyTensor], source: Path
) -> None:
    """Refuse a tensor of an unknown name before any is read: it may be a whole model."""
    for name, origin in origins.items():
        if not is_drafters(name):
            raise CheckpointError(
                f"{source}: {origin!r:.120} of shape {stored[origin].shape} is no tensor of a "
                "drafter; remove it."
            )


def _cut_padding(tensors: dict[str, mx.array], values: Mapping[str, Any]) -> int:
    """Cut off the head's rows that TensorRT-LLM added for the ranks; return how many."""
    vocab_size = values.get("vocab_size")
    name = f"{head_name(count_blocks(tensors))}.weight"
    head = tensors.get(name)
    is_padded = not _TENSORRT_KEYS.keys().isdisjoint(values)
    if not is_padded or type(vocab_size) is not int or head is None or head.ndim != 2:
        return 0
    num_rows = len(head)
    if not 0 < vocab_size < num_rows:
        return 0
    if values.get("vocab_size_padded") != num_rows and mx.any(head[vocab_size:]).item():
        return 0  # no padding: the sizes are compared later
    tensors[name] = head[:vocab_size]
    return num_rows - vocab_size


def _draft_length(source: Path) -> int | None:
    source = source.resolve()
    names = [source.name] if source.is_dir() else [source.name, source.parent.name]
    found = [match[1] for match in map(_DRAFT_LENGTH.search, names) if match]
    return int(found[0]) if found else None


def _check_values(values: Mapping[str, Any], config: DrafterConfig, source: Path) -> None:
    """Compare a config.json of another program with the tensors.

    Its num_draft_layers is not read: NVIDIA ModelOpt writes another number there.
    """
    for name in ("hidden_size", "vocab_size", "exit_dim", "rnn"):
        found = getattr(config, name)
        if values.get(name, found) != found:
            raise CheckpointError(
                f"{source / CONFIG_FILE} says {name} {values[name]!r:.40}, its tensors say "
                f"{found}; correct or remove the file."
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
            f"{source}: {name!r:.120} of shape {tensors[name].shape} is no tensor of this drafter; "
            "remove it."
        )


def check_entries(tensors: Mapping[str, mx.array], source: Path) -> None:
    """Check every dtype, and that every entry is finite."""
    packed = {f"{name.removesuffix('.scales')}.weight" for name in tensors if ".scales" in name}
    for name, tensor in tensors.items():
        expected: tuple[mx.Dtype, ...] = tuple(MLX_DTYPES.values())
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
