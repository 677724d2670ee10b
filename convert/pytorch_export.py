"""Writes a drafter as Apple's ``Drafter.save_pretrained`` does, for PyTorch programs.

Source:
    apple/ml-recurrent-drafter, modeling_drafter.py and configuration_drafter.py: config.json
    and model.safetensors with the metadata {"format": "pt"}, in float32, an output head over
    the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.convert.drafter import WEIGHTS_FILE, TargetSide
from redrafter_mlx.convert.drafter_file import CONFIG_FILE, DrafterTensors, read_drafter
from redrafter_mlx.convert.names import DRAFT_VOCAB, head_name
from redrafter_mlx.errors import CheckpointError, ConfigError, ShapeError
from redrafter_mlx.folders import new_folder
from redrafter_mlx.models.packing import dequantized
from redrafter_mlx.weights import write_json


def export_drafter(folder: Path, out: Path, target: TargetSide | None = None) -> DrafterConfig:
    """Write a drafter in Apple's PyTorch layout, whole or not at all.

    What the layout has no place for is written out: a head tied to the target's becomes a
    matrix, and quantised layers are multiplied out. A head of the drafter's own that is cut to
    a draft vocabulary is refused: a row of zeros would be proposed before any token of a
    negative logit, so the guesses would be other ones. One that is tied and cut gets all the
    target's rows; its guesses are then those of the uncut head.

    Args:
        folder: What ``read_drafter`` reads.
        out: Folder to make; it may exist where it is empty.
        target: Needed for a tied head: whose head it is.

    Returns:
        The drafter's configuration, as the written tensors have it.

    Raises:
        CheckpointError: The drafter cannot be read, it was made for another target, or
            ``out`` cannot be written.
        ConfigError: The head is cut, or it is tied and there is no target.
        ShapeError: The target's head does not fit.
    """
    drafter = read_drafter(folder)
    config, tensors = drafter.config, _dense(drafter)
    if config.head == "own" and config.draft_vocab_size is not None:
        raise ConfigError(
            f"The head of {folder} is cut to {config.draft_vocab_size} of {config.vocab_size} "
            "tokens, and PyTorch's layout has no place for that; export the drafter from before "
            "it was cut."
        )
    tensors.pop(DRAFT_VOCAB, None)
    if config.head == "tied":
        head = f"{head_name(config.num_draft_layers)}.weight"
        tensors[head] = config.head_scale * _target_head(config, target)
    with new_folder(out) as partial:
        write_json(partial / CONFIG_FILE, pytorch_config(config))
        _save(partial / WEIGHTS_FILE, tensors)
    return replace(config, head="own", head_scale=1.0, draft_vocab_size=None, quantization=None)


def pytorch_config(config: DrafterConfig) -> dict[str, Any]:
    """Return the config.json that Apple's class reads."""
    return {
        "architectures": ["Drafter"],
        "exit_dim": config.exit_dim,
        "hidden_size": config.hidden_size,
        "model_type": "recurrent_drafting_drafter",
        "num_draft_layers": config.num_draft_layers,
        "num_lookback_tokens": -1,
        "rnn": config.rnn,
        "torch_dtype": "float32",
        "vocab_size": config.vocab_size,
    }


def _dense(drafter: DrafterTensors) -> dict[str, mx.array]:
    """Return the tensors in float32, quantised layers multiplied out."""
    packing = drafter.config.quantization
    return dequantized(drafter.tensors, asdict(packing) if packing else {}, mx.float32)


def _target_head(config: DrafterConfig, target: TargetSide | None) -> mx.array:
    if target is None:
        name = config.target.name if config.target else "the model it was made for"
        raise ConfigError(
            f"The drafter's head is tied to that of {name}, which PyTorch's layout needs written "
            "out; name the model with --target."
        )
    former = config.target
    if former is not None and former.fingerprint != target.identity.fingerprint:
        raise CheckpointError(
            f"The drafter's head is tied to that of {former.name}, not of {target.identity.name}; "
            f"name {former.name} as the target."
        )
    if target.head.shape != (config.vocab_size, config.hidden_size):
        raise ShapeError(
            f"The head of {target.identity.name} has shape {target.head.shape}, the drafter needs "
            f"{(config.vocab_size, config.hidden_size)}; choose the target it was made for."
        )
    return target.head.astype(mx.float32)


def _save(path: Path, tensors: Mapping[str, mx.array]) -> None:
    mx.eval(list(tensors.values()))
    try:
        mx.save_safetensors(str(path), dict(tensors), metadata={"format": "pt"})
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path} cannot be written ({reason}); choose another place."
        ) from error
