"""From a model's folder to its decoder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from redrafter_mlx.config import TargetIdentity
from redrafter_mlx.convert.tensor_job import row_runs
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.loading.modules import compute_dtype, fill
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.packing import Tensors, dequantized
from redrafter_mlx.models.stored_tensors import HEAD, is_unused, require_head
from redrafter_mlx.models.target_config import TargetConfig, stored_quantization
from redrafter_mlx.weights import load_tensors, read_json


@dataclass(frozen=True, slots=True, eq=False)
class TargetFiles:
    """What a model's folder holds, its tensors still lazy.

    Attributes:
        config: Sizes and switches.
        quantization: The ``quantization`` object of config.json, empty where there is none.
        stored: The tensors that the decoder needs, as the files have them.
        tensors: The same as they will lie in memory.
    """

    config: TargetConfig
    quantization: dict[str, Any]
    stored: Tensors
    tensors: Tensors


def read_target(folder: Path, dtype: str = "auto") -> TargetFiles:
    """Return a model's tensors; only the headers of its files are read.

    Args:
        folder: With config.json and safetensors, quantised by module or not.
        dtype: See ``compute_dtype``.

    Raises:
        CheckpointError: The model is not supported, or its files do not go together.
    """
    settings = read_json(folder / "config.json")
    config = TargetConfig.from_dict(settings)
    stored = _needed(load_tensors(folder), config)
    quantization = stored_quantization(settings)
    wanted = compute_dtype(dtype)
    tensors = stored if wanted is None else dequantized(stored, quantization, wanted)
    return TargetFiles(config, quantization, stored, tensors)


def load_target(folder: Path, dtype: str = "auto") -> Decoder:
    """Return the decoder in a folder that ``mlx_lm.convert`` or Hugging Face wrote.

    Arguments and errors as ``read_target``; and every number must be finite.
    """
    files = read_target(folder, dtype)
    decoder = Decoder(files.config, is_tied=HEAD not in files.tensors)
    decoder.fingerprint = fingerprint(files.stored)
    fill(decoder, files.tensors, files.quantization, what="model")
    _require_finite(files.stored, folder)
    return decoder


def _require_finite(tensors: Tensors, folder: Path) -> None:
    """Refuse NaN and infinity, which would end in an endless answer of one token."""
    floats = {name: t for name, t in tensors.items() if mx.issubdtype(t.dtype, mx.floating)}
    for name, tensor in floats.items():
        for run in row_runs(len(tensor), tensor[:1].nbytes):  # the truth values take room, too
            if not mx.isfinite(tensor[run]).all().item():
                raise CheckpointError(
                    f"{folder}: the tensor {name!r} holds NaN or infinity; get another file of "
                    "the model."
                )


def identify(name: str, target: Decoder) -> TargetIdentity:
    """Return what identifies a target, whatever dtype it was loaded in."""
    return TargetIdentity(
        name=name,
        model_type=target.config.model_type,
        hidden_size=target.config.hidden_size,
        vocab_size=target.config.vocab_size,
        num_layers=target.config.num_layers,
        fingerprint=target.fingerprint,
    )


def fingerprint(tensors: Tensors) -> str:
    """Return a hex digest of the normalisation weights, which quantisation leaves alone.

    They are taken in float16, so that a copy in another precision has the same digest.
    """
    digest = hashlib.sha256()
    for name in sorted(name for name in tensors if name.endswith("norm.weight")):
        digest.update(np.array(tensors[name].astype(mx.float16)).tobytes())
    return digest.hexdigest()


def _needed(tensors: Tensors, config: TargetConfig) -> Tensors:
    require_head(tensors, config)
    return {name: tensor for name, tensor in tensors.items() if not is_unused(name, config)}
