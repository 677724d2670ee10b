"""A base model from a GGUF file of the architecture ``llama``, in mlx-lm's folder layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.convert.gguf import GgufFile, read_gguf
from redrafter_mlx.convert.gguf_config import (
    ROPE_FREQS,
    find_tensor,
    generation_config,
    llama_config,
)
from redrafter_mlx.convert.gguf_tensors import (
    GROUP_SIZE,
    ConvertedTensor,
    choose_float_dtype,
    convert_tensor,
)
from redrafter_mlx.convert.gguf_tokenizer import write_tokenizer
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import new_folder, save_tensors, write_json

# Raise it when a folder converted before is no longer what would be written now.
GGUF_CONVERTER_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One tensor of the model.

    Attributes:
        source: Its name in the file.
        module: The module that it belongs to.
        field: ``weight`` or ``bias``.
        shape: The shape it must have.
        num_heads: Rotary heads whose rows llama.cpp stores permuted; 0 for none.
    """

    source: str
    module: str
    field: str
    shape: tuple[int, ...]
    num_heads: int = 0


@dataclass(frozen=True, slots=True)
class _Weights:
    """The model's arrays by name, and the bits of every quantised module."""

    arrays: dict[str, mx.array] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)

    def add(self, parameter: _Parameter, tensor: ConvertedTensor) -> None:
        """Store a tensor under the parameter's name, its scales beside it."""
        arrays = dict(tensor.arrays)
        self.arrays[f"{parameter.module}.{parameter.field}"] = arrays.pop("weight")
        for name, array in arrays.items():
            self.arrays[f"{parameter.module}.{name}"] = array
        if tensor.bits is not None:
            self.bits[parameter.module] = tensor.bits


def convert_gguf(source: Path | str, out: Path | str) -> None:
    """Convert a GGUF file into a new folder that mlx-lm and this package load.

    Weights keep their values exactly: Q4_0, Q4_1 and Q8_0 become MLX's affine quantisation
    with groups of 32. The folder appears whole or not at all.

    Args:
        source: The GGUF file.
        out: The folder to make.

    Raises:
        CheckpointError: The file is damaged, or of a kind that cannot be converted; or the
            folder exists or cannot be written.
    """
    gguf = read_gguf(source)
    config = llama_config(gguf)
    weights = _convert_weights(gguf, config)
    config |= _quantization(weights.bits)
    with new_folder(out) as folder:
        save_tensors(folder / "model.safetensors", weights.arrays)
        write_tokenizer(gguf, folder, config["max_position_embeddings"])
        write_json(folder / "generation_config.json", generation_config(gguf))
        write_json(folder / "config.json", dict(sorted(config.items())))


def rotary_rows(num_rows: int, num_heads: int) -> npt.NDArray[np.intp]:
    """Return, for each row of a q or k projection, its row in a GGUF file.

    The rotation pairs dimension i of a head with i + half. llama.cpp pairs neighbours and
    so interleaves the halves: (head, half, i) lies at (head, i, half).

    Source:
        llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute.
    """
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _convert_weights(gguf: GgufFile, config: Mapping[str, Any]) -> _Weights:
    parameters = list(_parameters(gguf, config))
    tensors = [find_tensor(gguf, parameter.source, parameter.shape) for parameter in parameters]
    unknown = gguf.tensors.keys() - {tensor.name for tensor in tensors} - {ROPE_FREQS}
    if unknown:
        raise CheckpointError(f"{gguf.path} has the tensor {min(unknown)!r}, not part of a Llama.")
    float_dtype = choose_float_dtype(tensors)
    weights = _Weights()
    for parameter, tensor in zip(parameters, tensors, strict=True):
        rows = rotary_rows(tensor.shape[0], parameter.num_heads) if parameter.num_heads else None
        weights.add(parameter, convert_tensor(tensor, rows, float_dtype))
    return weights


def _parameters(gguf: GgufFile, config: Mapping[str, Any]) -> Iterator[_Parameter]:
    """Yield every tensor that a model of this configuration has."""
    hidden_size, vocab_size = config["hidden_size"], config["vocab_size"]
    yield _Parameter("token_embd.weight", "model.embed_tokens", "weight", (vocab_size, hidden_size))
    yield _Parameter("output_norm.weight", "model.norm", "weight", (hidden_size,))
    if not config["tie_word_embeddings"]:
        yield _Parameter("output.weight", "lm_head", "weight", (vocab_size, hidden_size))
    if config["num_hidden_layers"] > len(gguf.tensors):
        raise CheckpointError(
            f"{gguf.path} claims {config['num_hidden_layers']} layers and has "
            f"{len(gguf.tensors)} tensors; get it again."
        )
    for layer in range(config["num_hidden_layers"]):
        yield from _layer_parameters(layer, config)


def _layer_parameters(layer: int, config: Mapping[str, Any]) -> Iterator[_Parameter]:
    hidden_size, mlp_size = config["hidden_size"], config["intermediate_size"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q_size, kv_size = num_heads * config["head_dim"], num_kv_heads * config["head_dim"]
    source, module = f"blk.{layer}", f"model.layers.{layer}"
    for norm, name in (("attn_norm", "input"), ("ffn_norm", "post_attention")):
        name = f"{module}.{name}_layernorm"
        yield _Parameter(f"{source}.{norm}.weight", name, "weight", (hidden_size,))
    linears = (
        ("attn_q", "self_attn.q_proj", (q_size, hidden_size), num_heads),
        ("attn_k", "self_attn.k_proj", (kv_size, hidden_size), num_kv_heads),
        ("attn_v", "self_attn.v_proj", (kv_size, hidden_size), 0),
        ("attn_output", "self_attn.o_proj", (hidden_size, q_size), 0),
        ("ffn_gate", "mlp.gate_proj", (mlp_size, hidden_size), 0),
        ("ffn_up", "mlp.up_proj", (mlp_size, hidden_size), 0),
        ("ffn_down", "mlp.down_proj", (hidden_size, mlp_size), 0),
    )
    for linear, name, shape, heads in linears:
        name = f"{module}.{name}"
        yield _Parameter(f"{source}.{linear}.weight", name, "weight", shape, heads)
        if config["attention_bias" if linear.startswith("attn") else "mlp_bias"]:
            yield _Parameter(f"{source}.{linear}.bias", name, "bias", shape[:1], heads)


def _quantization(bits: Mapping[str, int]) -> dict[str, Any]:
    """Return config.json's entries: the most frequent bits, then the modules with others."""
    if not bits:
        return {}
    usual = Counter(bits.values()).most_common(1)[0][0]
    modules = {name: number for name, number in bits.items() if number != usual}
    entry = _affine(usual) | {name: _affine(number) for name, number in modules.items()}
    return {"quantization": entry, "quantization_config": entry}


def _affine(bits: int) -> dict[str, Any]:
    return {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}
