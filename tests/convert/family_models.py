"""A tiny random model of each supported family, as Hugging Face lays it out; NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Weights = dict[str, npt.NDArray[np.float32]]

VOCAB = 96
TOKENS = [1, 5, 90, 33, 7, 7, 61, 12, 80, 2, 45, 9, 70, 18, 26, 54, 3, 88, 41, 11]

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
_LLAMA = {**_SIZES, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
_LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

# The keys are those that the family's own config.json has: what it leaves out is a default.
CONFIGS: dict[str, dict[str, Any]] = {
    "vicuna": {
        **{key: value for key, value in _LLAMA.items() if key != "num_key_value_heads"},
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    },
    "llama_without_tie_key": {**_LLAMA, "torch_dtype": "float32"},
    "llama3": {
        **_LLAMA,
        "rope_theta": 500000.0,
        "rope_scaling": _LLAMA_3,
        "tie_word_embeddings": False,
    },
    "llama3_tied": {
        **_LLAMA,
        "head_dim": 16,
        "rope_parameters": {**_LLAMA_3, "rope_theta": 500000.0},
        "tie_word_embeddings": True,
        "dtype": "float16",
    },
    "llama_linear": {
        **_LLAMA,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "tie_word_embeddings": False,
    },
    "mistral": {
        **_SIZES,
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "head_dim": 24,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    "qwen2": {
        **_SIZES,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 32,
        "tie_word_embeddings": True,
    },
    "qwen2_plain_rope": {
        **_SIZES,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "tie_word_embeddings": False,
    },
    "qwen3": {
        **_SIZES,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 32,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
}


def weights_of(name: str) -> Weights:
    """Return the model's weights, which float16 holds exactly, in float32."""
    config = CONFIGS[name]
    random = np.random.default_rng(len(name))
    values = {}
    for tensor, shape in _shapes(config).items():
        drawn = random.standard_normal(shape)
        if tensor.endswith("norm.weight"):
            drawn = 1.0 + 0.1 * drawn
        else:
            drawn *= 1.5 / np.sqrt(shape[-1])
        values[tensor] = drawn.astype(np.float16).astype(np.float32)
    return values


def rotary_buffers(config: dict[str, Any]) -> Weights:
    """Return what transformers before 4.32 saved in each layer."""
    size = config["hidden_size"] // config["num_attention_heads"]
    frequencies = 1.0 / 10000 ** (np.arange(0, size, 2, dtype=np.float32) / size)
    return {
        f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": frequencies
        for layer in range(config["num_hidden_layers"])
    }


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    queries, keys = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        shapes |= {
            attention + "q_proj.weight": (queries, hidden),
            attention + "k_proj.weight": (keys, hidden),
            attention + "v_proj.weight": (keys, hidden),
            attention + "o_proj.weight": (hidden, queries),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
        }
        if config["model_type"] == "qwen2":
            sizes = {"q": queries, "k": keys, "v": keys}
            shapes |= {f"{attention}{part}_proj.bias": (size,) for part, size in sizes.items()}
        if config["model_type"] == "qwen3":
            shapes |= {f"{attention}{part}_norm.weight": (head_dim,) for part in "qk"}
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (VOCAB, hidden)
    return shapes
