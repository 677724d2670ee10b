"""Tiny random drafters in files, and a target for them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from redrafter_mlx.config import DrafterConfig, TargetIdentity
from redrafter_mlx.convert.drafter import ImportOptions, TargetSide, import_drafter
from redrafter_mlx.convert.names import tensor_shapes
from redrafter_mlx.errors import ReDrafterError

H, E, V, N = 32, 64, 50, 2
SIZES = DrafterConfig(hidden_size=H, vocab_size=V, exit_dim=E, num_draft_layers=N)
NARROW = replace(SIZES, exit_dim=H)
IDENTITY = TargetIdentity("toy", "llama", H, V, 2, "f00d")
HALVES = (mx.float16, mx.bfloat16)


def random_tensors(
    config: DrafterConfig = NARROW, dtype: mx.Dtype = mx.float16, seed: int = 0
) -> dict[str, mx.array]:
    keys = mx.random.split(mx.random.key(seed), 32)
    shapes = tensor_shapes(config).items()
    return {
        name: mx.random.normal(shape, key=key).astype(dtype)
        for (name, shape), key in zip(shapes, keys, strict=False)
    }


def write(folder: Path, tensors: dict[str, mx.array], config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "pt"})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def apple_config(config: DrafterConfig) -> dict[str, Any]:
    names = ("hidden_size", "vocab_size", "exit_dim", "num_draft_layers", "rnn")
    kept = {name: getattr(config, name) for name in names}
    return kept | {"architectures": ["Drafter"], "num_lookback_tokens": -1}


def target_side(seed: int = 1) -> TargetSide:
    return TargetSide(IDENTITY, mx.random.normal((V, H), key=mx.random.key(seed)))


def tied_tensors(target: TargetSide, dtype: mx.Dtype = mx.float16) -> dict[str, mx.array]:
    return random_tensors(dtype=dtype) | {"lm_head.2.weight": (1.94 * target.head).astype(dtype)}


def folder_of(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def refusal(call: Callable[..., Any], *args: Any) -> str:
    """Return the one-line message of the error that the call must raise."""
    with pytest.raises(ReDrafterError) as caught:
        call(*args)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    return message


def own_folder(tmp_path: Path, tensors: dict[str, mx.array], **options: Any) -> Path:
    source = write(tmp_path / "source", tensors)
    import_drafter(source, tmp_path / "own", ImportOptions(draft_length=4, **options))
    return tmp_path / "own"
