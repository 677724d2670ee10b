"""A tiny drafter as its training saves it."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.models.drafter import RecurrentDrafter
from tests.toy import randomize

CONFIG = DrafterConfig(hidden_size=32, vocab_size=95, exit_dim=32, num_draft_layers=2)


def write_drafter(folder: Path, head: mx.array | None = None) -> Path:
    """Write a drafter as its training does, with a head of its own or with this one."""
    network = RecurrentDrafter(CONFIG)
    randomize(network, seed=0)
    parameters: dict[str, mx.array] = dict(tree_flatten(network.parameters()))
    tensors = {name: tensor.astype(mx.float16) for name, tensor in parameters.items()}
    if head is not None:
        tensors["lm_head.2.weight"] = head.astype(mx.float16)
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder
