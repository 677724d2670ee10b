"""How config.json says that a module is quantised, and quantised tensors multiplied out."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import product
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from redrafter_mlx.errors import CheckpointError

Tensors = dict[str, mx.array]

# The (group_size, bits) that each of MLX's modes has kernels for.
_PACKINGS = {
    "affine": frozenset(product((32, 64, 128), (2, 3, 4, 5, 6, 8))),
    "mxfp4": frozenset({(32, 4)}),
    "mxfp8": frozenset({(32, 8)}),
    "nvfp4": frozenset({(16, 4)}),
}


def quantization_of(path: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return MLX's arguments for one quantised module: its own settings, or the common ones.

    Args:
        path: The module's, as in the names of its tensors.
        settings: The ``quantization`` object of config.json.

    Raises:
        CheckpointError: They are none that MLX has a kernel for.
    """
    own = settings.get(path)
    chosen = own if isinstance(own, Mapping) else settings
    mode = chosen.get("mode", "affine")
    packing = (chosen.get("group_size"), chosen.get("bits"))
    # A list among them could not be looked up.
    is_known = isinstance(mode, str) and all(type(number) is int for number in packing)
    if not is_known or packing not in _PACKINGS.get(mode, ()):
        raise CheckpointError(
            f"{path} is quantised with mode {mode!r:.40}, group_size {packing[0]!r:.40} and bits "
            f"{packing[1]!r:.40} by config.json, which MLX has no kernel for; get the model again."
        )
    return {"group_size": packing[0], "bits": packing[1], "mode": mode}


def quantize_as_stored(
    module: nn.Module, names: Container[str], settings: Mapping[str, Any], what: str = "model"
) -> None:
    """Quantise the layers whose scales are stored.

    Args:
        module: Gets quantised layers, of any values, in place of those.
        names: Of the stored tensors.
        settings: The ``quantization`` object of config.json.
        what: "model" or "drafter", for messages.

    Raises:
        CheckpointError: MLX cannot quantise a layer so.
    """

    def as_stored(path: str, part: nn.Module) -> bool | dict[str, Any]:
        is_quantized = f"{path}.scales" in names and hasattr(part, "to_quantized")
        return quantization_of(path, settings) if is_quantized else False

    try:
        nn.quantize(module, class_predicate=as_stored)
    except ValueError as error:
        raise CheckpointError(
            f"The {what} cannot be quantised as config.json says "
            f"({' '.join(str(error).split())}); get the {what} again."
        ) from error


def dequantized(tensors: Tensors, settings: Mapping[str, Any], dtype: mx.Dtype) -> Tensors:
    """Return every floating tensor in ``dtype``, quantised ones multiplied out.

    The product is rounded to the dtype of the stored scales before the cast, as
    ``mlx_lm.convert --dequantize`` does: a model has the same weights in every dtype.

    Args:
        tensors: By name.
        settings: The ``quantization`` object of config.json; empty where nothing is quantised.
        dtype: Of what is returned.

    Raises:
        CheckpointError: A layer cannot be multiplied out.
    """
    plain = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if f"{module}.scales" not in tensors or kind == "bias":
            plain[name] = tensor
        elif kind == "weight":
            plain[name] = _multiplied_out(module, tensors, settings)
    return {
        name: tensor.astype(dtype) if mx.issubdtype(tensor.dtype, mx.floating) else tensor
        for name, tensor in plain.items()
    }


def _multiplied_out(module: str, tensors: Tensors, settings: Mapping[str, Any]) -> mx.array:
    settings = quantization_of(module, settings)
    weight, scales = tensors[f"{module}.weight"], tensors[f"{module}.scales"]
    try:
        return mx.dequantize(weight, scales, tensors.get(f"{module}.biases"), **settings)
    except ValueError as error:
        raise CheckpointError(f"{module} cannot be dequantised: {error}.") from error
