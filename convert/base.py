"""A target from a GGUF file of the architecture ``llama``, in mlx-lm's folder layout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.gguf import GgufFile, GgufTensor, read_gguf
from redrafter_mlx.convert.gguf_config import (
    ROPE_FREQS,
    find_tensor,
    generation_config,
    llama_config,
)
from redrafter_mlx.convert.gguf_tensors import (
    GROUP_SIZE,
    choose_float_dtype,
    is_quantized,
    packed_job,
    source_tensor,
    stored_bits,
    stored_dtype,
)
from redrafter_mlx.convert.gguf_tokenizer import write_tokenizer
from redrafter_mlx.convert.model_folder import (
    ModelContents,
    OnProgress,
    affine_entry,
    common_entry,
    undivided_notes,
    write_chat_template,
    write_model,
)
from redrafter_mlx.convert.target_options import AS_STORED, ConvertedTarget, TargetOptions
from redrafter_mlx.convert.tensor_job import TensorJob, float_job, is_divisible
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.models.target_config import TargetConfig
from redrafter_mlx.weights import write_json


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


def convert_gguf(
    source: Path | str,
    out: Path | str,
    options: TargetOptions = AS_STORED,
    on_progress: OnProgress | None = None,
) -> ConvertedTarget:
    """Convert a GGUF file into a new folder that mlx-lm and this package load.

    Without options weights keep their values exactly: Q4_0, Q4_1 and Q8_0 become MLX's affine
    quantisation with groups of 32. The folder appears whole or not at all.

    Args:
        source: The GGUF file.
        out: The folder to make.
        options: What becomes of the weights.
        on_progress: See ``write_model``.

    Raises:
        CheckpointError: The file is damaged, or of a kind that cannot be converted; or the
            folder exists or cannot be written, or there is no room for it.
    """
    gguf = read_gguf(source)
    return write_model(out, _contents(gguf, llama_config(gguf), options), on_progress)


def rotary_rows(num_rows: int, num_heads: int) -> npt.NDArray[np.intp]:
    """Return, for each row of a q or k projection, its row in a GGUF file.

    The rotation pairs dimension i of a head with i + half. llama.cpp pairs neighbours and
    so interleaves the halves: (head, half, i) lies at (head, i, half).

    Source:
        llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute.
    """
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _contents(gguf: GgufFile, config: dict[str, Any], options: TargetOptions) -> ModelContents:
    parameters = list(_parameters(gguf, config))
    tensors = [find_tensor(gguf, parameter.source, parameter.shape) for parameter in parameters]
    unknown = gguf.tensors.keys() - {tensor.name for tensor in tensors} - {ROPE_FREQS}
    if unknown:
        raise CheckpointError(f"{gguf.path} has the tensor {min(unknown)!r}, not part of a Llama.")
    TargetConfig.from_dict(config)
    if any(is_quantized(tensor) for tensor in tensors):
        options.refuse_requantizing(gguf.path)
    float_dtype = choose_float_dtype(tensors) if options.dtype is None else mx.float32
    jobs, bits = [], {}
    for parameter, tensor in zip(parameters, tensors, strict=True):
        bits[parameter.module] = number = stored_bits(tensor)
        dtype = options.mlx_dtype or stored_dtype(tensor, number, float_dtype)
        jobs.append(_job(parameter, tensor, number, dtype, options.quantization))
    quantization = common_entry(jobs, options.quantization) or _entry(bits)
    return ModelContents(
        config=config | quantization,
        jobs=jobs,
        num_parameters=sum(math.prod(parameter.shape) for parameter in parameters),
        write_others=partial(_write_others, gguf, config, options.chat_template),
        on_start=options.on_start,
        notes=_notes(parameters, options.quantization),
    )


def _notes(parameters: Sequence[_Parameter], packing: Quantization | None) -> tuple[str, ...]:
    if packing is None:
        return ()
    matrices = [parameter for parameter in parameters if len(parameter.shape) == 2]
    left = sum(not is_divisible(matrix.shape, packing) for matrix in matrices)
    return tuple(undivided_notes(left, packing))


def _job(
    parameter: _Parameter,
    tensor: GgufTensor,
    bits: int | None,
    dtype: mx.Dtype,
    quantization: Quantization | None,
) -> TensorJob:
    heads = parameter.num_heads
    rows = rotary_rows(tensor.shape[0], heads) if heads else None
    name = f"{parameter.module}.{parameter.field}"
    if bits is not None:
        return packed_job(tensor, name, rows, bits, dtype)
    if quantization is not None and not is_divisible(tensor.shape, quantization):
        quantization = None
    return float_job(source_tensor(tensor, rows), name, dtype, quantization)


def _write_others(
    gguf: GgufFile, config: Mapping[str, Any], chat_template: str | None, folder: Path
) -> None:
    write_tokenizer(gguf, folder, config["max_position_embeddings"])
    write_json(folder / "generation_config.json", generation_config(gguf))
    if chat_template is not None and "tokenizer.chat_template" not in gguf.metadata:
        write_chat_template(folder, chat_template)


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


def _entry(bits: Mapping[str, int | None]) -> dict[str, Any]:
    """Return config.json's entries: the most frequent bits, then the modules with others."""
    numbers = {module: number for module, number in bits.items() if number is not None}
    if not numbers:
        return {}
    usual = Counter(numbers.values()).most_common(1)[0][0]
    entry = affine_entry(Quantization(usual, GROUP_SIZE))
    for module, number in numbers.items():
        if number != usual:
            entry[module] = affine_entry(Quantization(number, GROUP_SIZE))
    return {"quantization": entry, "quantization_config": entry}
