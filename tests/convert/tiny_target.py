"""A tiny target in a folder, and the refusal of one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from redrafter_mlx.convert.target import TargetOptions, convert_target
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.weights import save_tensors, write_json
from tests.convert.family_models import CONFIGS, weights_of

NAME = "llama_linear"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
UP = "model.layers.0.mlp.up_proj.weight"
GATE = "model.layers.1.mlp.gate_proj.weight"
NORM = "model.norm.weight"

Tensors = dict[str, mx.array]


def tensors_of(name: str = NAME, dtype: mx.Dtype = mx.float16) -> Tensors:
    return {key: mx.array(value).astype(dtype) for key, value in weights_of(name).items()}


def write_target(folder: Path, tensors: Mapping[str, mx.array], **changes: Any) -> Path:
    """Write a folder with safetensors; ``None`` leaves a key of config.json out."""
    folder.mkdir(exist_ok=True)
    config = {key: value for key, value in (CONFIGS[NAME] | changes).items() if value is not None}
    write_json(folder / "config.json", config)
    save_tensors(folder / "model.safetensors", tensors)
    return folder


def refuse(source: Path, options: TargetOptions | None = None) -> str:
    """Return the sentence with which a source is refused; nothing may be left behind."""
    out = source.parent / "never"
    before = sorted(source.parent.iterdir())
    with pytest.raises((CheckpointError, ConfigError)) as refused:
        convert_target(source, out, options or TargetOptions())
    assert sorted(source.parent.iterdir()) == before
    assert "\n" not in str(refused.value)
    return str(refused.value)


def same(one: mx.array, other: mx.array) -> bool:
    return one.dtype == other.dtype and bool(mx.array_equal(one, other))
