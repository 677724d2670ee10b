"""The configuration of a Llama, as Hugging Face writes it, from a GGUF file's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from redrafter_mlx.convert.gguf import GgufFile, GgufTensor
from redrafter_mlx.convert.gguf_tokenizer import end_token_ids, special_token_ids
from redrafter_mlx.errors import CheckpointError

ROPE_FREQS = "rope_freqs.weight"
# Metadata of llama.cpp's relatives of the architecture, which the target has no code for.
_UNSUPPORTED = (
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)


def llama_config(gguf: GgufFile) -> dict[str, Any]:
    """Return the config.json of a Llama that a GGUF file describes, quantisation left out.

    Raises:
        CheckpointError: The architecture is another one, or a part of it is not supported.
    """
    _refuse_unsupported(gguf)
    hidden_size = gguf.count("llama.embedding_length")
    num_heads = gguf.count("llama.attention.head_count")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": gguf.count("llama.feed_forward_length"),
        "num_hidden_layers": gguf.count("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": gguf.count("llama.attention.head_count_kv", num_heads),
        "head_dim": gguf.count("llama.attention.key_length", max(hidden_size // num_heads, 1)),
        "max_position_embeddings": gguf.count("llama.context_length"),
        "rms_norm_eps": gguf.positive("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": gguf.positive("llama.rope.freq_base", 10000.0),
        "vocab_size": find_tensor(gguf, "token_embd.weight").shape[0],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in gguf.tensors,
    }
    _check_heads(gguf, config)
    config["rope_scaling"] = _rope_scaling(gguf, config)
    config |= {f"{name}_token_id": token for name, token in special_token_ids(gguf).items()}
    return config


def generation_config(gguf: GgufFile) -> dict[str, Any]:
    """Return the generation_config.json: all ids that end an answer are in its eos_token_id."""
    ids: dict[str, Any] = {f"{k}_token_id": v for k, v in special_token_ids(gguf).items()}
    ids.pop("unk_token_id", None)
    if end_token_ids(gguf):
        ids["eos_token_id"] = end_token_ids(gguf)
    return ids


def find_tensor(gguf: GgufFile, name: str, shape: tuple[int, ...] | None = None) -> GgufTensor:
    """Return a tensor of a file.

    Raises:
        CheckpointError: It is missing, of another shape, or a quantised vector.
    """
    tensor = gguf.tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{gguf.path} lacks the tensor {name!r}; get the file again.")
    if shape is not None and tensor.shape != shape:
        raise CheckpointError(
            f"{gguf.path}: {name!r} has the shape {tensor.shape}, the metadata say {shape}; "
            "get the file again."
        )
    if len(tensor.shape) == 1 and tensor.blocks.dtype.names:
        raise CheckpointError(f"{gguf.path}: the vector {name!r} is {tensor.kind}; use F32.")
    return tensor


def _refuse_unsupported(gguf: GgufFile) -> None:
    architecture = gguf.text("general.architecture")
    if architecture != "llama":
        raise CheckpointError(
            f"{gguf.path} has the architecture {architecture!r:.40}; only llama can be "
            "converted, so use the model's original repository."
        )
    for name in _UNSUPPORTED:
        value = gguf.number(f"llama.{name}", 0)
        if value:
            raise CheckpointError(
                f"{gguf.path} has llama.{name} = {value:g}, which is not supported; use a "
                "plain Llama."
            )


def _check_heads(gguf: GgufFile, config: Mapping[str, Any]) -> None:
    head_dim = config["head_dim"]
    for key in ("rope.dimension_count", "attention.value_length"):
        value = gguf.count(f"llama.{key}", head_dim)
        if value != head_dim:
            raise CheckpointError(
                f"{gguf.path} has llama.{key} = {value} and heads of {head_dim}; only whole, "
                "equal heads are supported, so use another model."
            )
    if head_dim % 2 or config["num_attention_heads"] % config["num_key_value_heads"]:
        raise CheckpointError(
            f"{gguf.path} has {config['num_attention_heads']} heads of {head_dim} and "
            f"{config['num_key_value_heads']} for keys, which do not fit; get it again."
        )


def _rope_scaling(gguf: GgufFile, config: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = gguf.text("llama.rope.scaling.type", "none")
    if ROPE_FREQS in gguf.tensors:
        return _llama3_scaling(gguf, config)
    if kind == "linear":
        return {"rope_type": "linear", "factor": gguf.positive("llama.rope.scaling.factor")}
    if kind != "none":
        raise CheckpointError(
            f"{gguf.path} has the rope scaling {kind!r:.40}; only linear and llama3 are "
            "supported, so use another model."
        )
    return None


def _llama3_scaling(gguf: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Recover Llama 3's scaling from the divisors of the frequencies that it gave.

    Only the factor differs between Llama 3.1, 3.2 and 3.3; it is the largest divisor.
    """
    divisors = find_tensor(gguf, ROPE_FREQS, (config["head_dim"] // 2,)).blocks.astype(np.float64)
    if not (np.isfinite(divisors).all() and divisors.min() > 0.0):
        raise CheckpointError(
            f"{gguf.path} divides frequencies by NaN, infinity, 0 or less in {ROPE_FREQS}; get "
            "another file."
        )
    scaling = {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = _llama3_divisors(config["head_dim"], config["rope_theta"], scaling)
    if not np.allclose(divisors, expected, rtol=1e-5, atol=0.0):
        raise CheckpointError(
            f"{gguf.path} scales its rope by {ROPE_FREQS} in another way than Llama 3; use the "
            "model's original repository."
        )
    return scaling


def _llama3_divisors(
    head_dim: int, theta: float, scaling: Mapping[str, Any]
) -> npt.NDArray[np.float64]:
    """Return (head_dim / 2,) what each frequency is divided by.

    Source:
        llama.cpp, convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors.
    """
    low, high, factor = (scaling[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] / wavelengths
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - share) / factor + share)
