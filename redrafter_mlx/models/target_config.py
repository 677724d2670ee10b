"""The target's config.json: what it must say, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redrafter_mlx.errors import CheckpointError

SUPPORTED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: Base of the wavelengths.
        kind: ``default``, ``linear`` or ``llama3``.
        factor: Positions are divided by this (``llama3``: the low frequencies only).
        low_freq_factor: See ``llama3`` in models/rope.py; likewise the next two.
        high_freq_factor: Upper bound of the blended band.
        original_max_positions: Context length before the scaling.
        is_traditional: Whether neighbours are rotated together, not halves.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    is_traditional: bool = False


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Sizes and switches of a decoder of the Llama family.

    Attributes:
        tie_word_embeddings: ``None`` where the file leaves it to the tensors.
        qkv_bias: Bias of the query, key and value projections.
        output_bias: Bias of the attention's output projection.
        mlp_bias: Bias of the three feed-forward projections.
        qk_norm: RMS norm of each head's query and key before the rotation.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TargetConfig:
        """Read a Hugging Face config.json; keys that do not change the maths are ignored.

        Raises:
            CheckpointError: A key is missing or senseless, or the model is of a kind that
                this decoder does not compute.
        """
        _refuse_unsupported(values)
        family = values["model_type"]
        num_heads = _size(values, "num_attention_heads")
        num_kv_heads = _size(values, "num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise CheckpointError(
                f"num_attention_heads {num_heads} is no multiple of num_key_value_heads "
                f"{num_kv_heads}; the config.json is broken."
            )
        attention_bias = bool(values.get("attention_bias", False))
        return cls(
            model_type=family,
            hidden_size=_size(values, "hidden_size"),
            intermediate_size=_size(values, "intermediate_size"),
            num_layers=_size(values, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_size(values, "head_dim", _size(values, "hidden_size") // num_heads),
            vocab_size=_size(values, "vocab_size"),
            max_positions=_size(values, "max_position_embeddings", 2048),
            rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            rope=_rope_config(values),
            tie_word_embeddings=values.get("tie_word_embeddings"),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=family != "qwen2" and attention_bias,
            mlp_bias=bool(values.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
        )


def _size(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    size = values.get(key)
    size = default if size is None else size
    if size is None:
        raise CheckpointError(f"The model's config.json has no {key}; it cannot be loaded.")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 2**31:
        raise CheckpointError(f"{key} is {size!r} in the model's config.json; it must be positive.")
    return size


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    family = values.get("model_type")
    if family not in SUPPORTED_FAMILIES:
        raise CheckpointError(
            f"model_type {family!r} is not supported; choose a model of one of these families: "
            f"{', '.join(SUPPORTED_FAMILIES)}."
        )
    reason = _unsupported_part(values)
    if reason:
        raise CheckpointError(f"This {family} model has {reason}, which is not supported.")


def _unsupported_part(values: Mapping[str, Any]) -> str | None:
    if values.get("model_file") or "auto_map" in values:
        return "its own model code (model_file or auto_map)"
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if values.get(key):
            return f"a mixture of experts ({key} {values[key]})"
    if values.get("hidden_act", "silu") != "silu":
        return f"the activation {values['hidden_act']!r}"
    kinds = set(values.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        return f"layers of type {sorted(kinds)[0]!r}"
    return _binding_window(values)


def _binding_window(values: Mapping[str, Any]) -> str | None:
    window = values.get("sliding_window")
    is_used = values.get("use_sliding_window", values.get("model_type") == "mistral")
    context = values.get("max_position_embeddings", 2048)
    if window and is_used and window < context:
        return f"a sliding window of {window} within its context of {context}"
    return None


def _rope_config(values: Mapping[str, Any]) -> RopeConfig:
    # transformers 5 writes rope_parameters, with the base in it; older ones rope_scaling.
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise CheckpointError(
            f"The rope type {kind!r} is not supported; this program has {', '.join(_ROPE_TYPES)}."
        )
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError("A partial rotary embedding is not supported.")
    defaults = RopeConfig()
    return RopeConfig(
        theta=float(scaling.get("rope_theta", values.get("rope_theta", defaults.theta))),
        kind=kind,
        factor=float(scaling.get("factor", defaults.factor)),
        low_freq_factor=float(scaling.get("low_freq_factor", defaults.low_freq_factor)),
        high_freq_factor=float(scaling.get("high_freq_factor", defaults.high_freq_factor)),
        original_max_positions=int(
            scaling.get("original_max_position_embeddings", defaults.original_max_positions)
        ),
        is_traditional=bool(values.get("rope_traditional", False)),
    )
