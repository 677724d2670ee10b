"""Which tensors a target has, and of which shapes, by its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from redrafter_mlx.convert.tensor_job import SourceTensor
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.packing import quantize_as_stored
from redrafter_mlx.models.stored_tensors import HEAD
from redrafter_mlx.models.target_config import TargetConfig


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The tensors of a model.

    Attributes:
        arrays: What the model begins with, never computed: for shapes and dtypes.
        matrices: The weights that MLX can quantise.
        num_parameters: How many weights there are, packed ones counted singly.
    """

    arrays: dict[str, mx.array]
    matrices: frozenset[str]
    num_parameters: int


def model_tensors(
    config: TargetConfig, stored: Mapping[str, SourceTensor], quantization: Mapping[str, Any]
) -> ModelTensors:
    """Return the tensors that the model of a configuration has.

    Args:
        config: What config.json says.
        stored: The file's tensors: a head among them is used, and where a module's scales are
            among them it is quantised.
        quantization: config.json's object of that name.

    Raises:
        CheckpointError: MLX cannot quantise a module as config.json says.
    """
    decoder = Decoder(config, is_tied=HEAD not in stored)
    matrices = [
        f"{path}.weight"
        for path, module in decoder.named_modules()
        if hasattr(module, "to_quantized")
    ]
    plain: dict[str, mx.array] = dict(tree_flatten(decoder.parameters()))
    quantize_as_stored(decoder, stored, quantization)
    arrays: dict[str, mx.array] = dict(tree_flatten(decoder.parameters()))
    return ModelTensors(arrays, frozenset(matrices), sum(array.size for array in plain.values()))


def check_tensors(stored: Mapping[str, SourceTensor], model: ModelTensors, source: Path) -> None:
    """Check that a file has a model's tensors and no others.

    Raises:
        CheckpointError: A tensor is missing, unknown, or of a wrong shape or dtype.
    """
    for name in sorted(model.arrays.keys() - stored.keys()):
        raise CheckpointError(
            f"{source} lacks the tensor {name!r} of shape {model.arrays[name].shape}; get the "
            "files again."
        )
    for name in sorted(stored.keys() - model.arrays.keys()):
        raise CheckpointError(
            f"{source}: {name!r:.120} of shape {stored[name].shape} has no place in the model that "
            "config.json describes; it is of another kind."
        )
    for name, array in model.arrays.items():
        _check_tensor(stored[name], array, source)


def _check_tensor(tensor: SourceTensor, expected: mx.array, source: Path) -> None:
    if tensor.shape != expected.shape:
        raise CheckpointError(
            f"{source}: {tensor.name!r} has shape {tensor.shape}, by config.json it is "
            f"{expected.shape}; get the files again."
        )
    is_float = mx.issubdtype(expected.dtype, mx.floating)
    if tensor.is_float != is_float or not (is_float or tensor.dtype == expected.dtype):
        wanted = "floating point" if is_float else str(expected.dtype)
        raise CheckpointError(
            f"{source}: {tensor.name!r} holds {tensor.dtype}, not {wanted}; take the model in F16, "
            "BF16 or F32."
        )
