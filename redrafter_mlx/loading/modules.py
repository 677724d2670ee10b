"""Tensors into modules: the dtype to compute in, what is quantised, strict names and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from redrafter_mlx.config import DTYPES
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.models.packing import Tensors, quantize_as_stored


def compute_dtype(dtype: str) -> mx.Dtype | None:
    """Return the dtype to compute in; ``None`` keeps what is stored, quantised or not.

    ``auto`` is as stored on a GPU and float32 on a CPU back end, where MLX's half-precision
    and quantised kernels are slow.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; choose one of {', '.join(DTYPES)}.")
    if dtype == "auto":
        return None if mx.default_device().type == mx.gpu else mx.float32
    return None if dtype == "stored" else getattr(mx, dtype)


def fill(module: nn.Module, tensors: Tensors, settings: Mapping[str, Any], what: str) -> None:
    """Put the tensors into the module, quantising the parts that are stored so.

    Args:
        module: Gets the tensors and is evaluated.
        tensors: Exactly the module's parameters, by name.
        settings: The ``quantization`` object of config.json.
        what: "model" or "drafter", for messages.

    Raises:
        CheckpointError: A tensor is missing, left over or of a wrong shape or dtype.
    """
    quantize_as_stored(module, tensors, settings, what)
    _check_names(module, tensors, what)
    module.load_weights(list(tensors.items()))
    module.freeze()
    mx.eval(module.parameters())


def _check_names(module: nn.Module, tensors: Tensors, what: str) -> None:
    expected: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    for name in sorted(expected.keys() - tensors.keys()):
        raise CheckpointError(f"The {what} lacks the tensor {name}; the file is incomplete.")
    for name in sorted(tensors.keys() - expected.keys()):
        raise CheckpointError(f"The {what} has a tensor {name!r:.120} that has no place in it.")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{name} of the {what} has shape {tensor.shape}, but config.json asks for "
                f"{expected[name].shape}."
            )
        if _kind(tensor) != _kind(expected[name]):
            raise CheckpointError(
                f"{name} of the {what} holds {_name(tensor.dtype)}, expected "
                f"{_name(expected[name].dtype)}."
            )


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _kind(tensor: mx.array) -> mx.Dtype | mx.DtypeCategory:
    """Return what a tensor must share with the one it replaces: any float stands for any."""
    return mx.floating if mx.issubdtype(tensor.dtype, mx.floating) else tensor.dtype
