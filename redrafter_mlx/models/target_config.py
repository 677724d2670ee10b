"""The target's config.json: what it must say, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown  # short and never deep, whatever the file holds
from typing import Any

from redrafter_mlx.errors import CheckpointError

SUPPORTED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_OTHER = "choose another model"
_ROPE_TYPES = ("default", "linear", "llama3")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# Where Hugging Face's null says what leaving the key out says.
_NULLABLE = frozenset(
    {
        "attention_bias", "auto_map", "head_dim", "layer_types", "mlp_bias", "model_file",
        "num_key_value_heads", "partial_rotary_factor", "rope_parameters", "rope_scaling",
        "rope_traditional", "sliding_window", "tie_word_embeddings", "use_sliding_window",
        *_EXPERTS,
    }
)  # fmt: skip
# Far above every model: they keep a broken file from building for ever, and heads times
# head_dim within MLX's int32.
_MAX_INT = 2**31 - 1
_MOST = {
    "num_hidden_layers": 1024,
    "hidden_size": 2**20,
    "intermediate_size": 2**22,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14,
    "vocab_size": 2**24,
    "rms_norm_eps": 1.0,
}
_LEAST_NUMBER, _MOST_NUMBER = 1e-18, 1e18  # the product of two is within float32


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
        values = _without_nulls(values)
        _refuse_unsupported(values)
        family = values["model_type"]
        num_heads = _size(values, "num_attention_heads")
        attention_bias = _flag(values, "attention_bias")
        return cls(
            model_type=family,
            hidden_size=_size(values, "hidden_size"),
            intermediate_size=_size(values, "intermediate_size"),
            num_layers=_size(values, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=_num_kv_heads(values, num_heads),
            head_dim=_head_dim(values, num_heads),
            vocab_size=_size(values, "vocab_size"),
            max_positions=_size(values, "max_position_embeddings", 2048),
            rms_norm_eps=_number(values, "rms_norm_eps", 1e-6),
            rope=_rope_config(values),
            tie_word_embeddings=_tie(values),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=family != "qwen2" and attention_bias,
            mlp_bias=_flag(values, "mlp_bias"),
            qk_norm=family == "qwen3",
        )


def stored_quantization(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json's ``quantization``, empty where there is none.

    Raises:
        CheckpointError: It is no object, or another program than MLX quantised the model.
    """
    foreign = values.get("quantization_config", {})
    if isinstance(foreign, dict) and "quant_method" in foreign:
        raise CheckpointError(
            f"The model is quantised by {shown(foreign['quant_method'])}, which is not supported; "
            "take the unquantised model or one from mlx-community."
        )
    own = values.get("quantization") or {}
    if not isinstance(own, dict):
        raise CheckpointError(f"quantization is {shown(own)} in config.json; it must be an object.")
    return own


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in values.items() if value is not None or key not in _NULLABLE
    }


def _get(values: Mapping[str, Any], key: str, default: Any) -> Any:
    if default is None and key not in values:
        raise CheckpointError(f"The model's config.json has no {key}; it cannot be loaded.")
    return values.get(key, default)


def _malformed(key: str, value: Any, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{key} is {shown(value)} in the model's config.json; it must be {wanted}."
    )


def _size(values: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    size, most = _get(values, key, default), _MOST.get(key, _MAX_INT)
    if type(size) is not int or not least <= size <= most:
        raise _malformed(key, size, f"a whole number from {least} to {most}")
    return size


def _number(values: Mapping[str, Any], key: str, default: float | None = None) -> float:
    number, most = _get(values, key, default), _MOST.get(key, _MOST_NUMBER)
    # A comparison with NaN is false.
    if type(number) not in (int, float) or not _LEAST_NUMBER <= number <= most:
        raise _malformed(key, number, f"a number from {_LEAST_NUMBER} to {most}")
    return float(number)


def _flag(values: Mapping[str, Any], key: str, default: bool = False) -> bool:
    flag = values.get(key, default)
    if not isinstance(flag, bool):
        raise _malformed(key, flag, "true or false")
    return flag


def _tie(values: Mapping[str, Any]) -> bool | None:
    key = "tie_word_embeddings"
    return _flag(values, key) if key in values else None


def _num_kv_heads(values: Mapping[str, Any], num_heads: int) -> int:
    num_kv_heads = _size(values, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads {num_heads} is no multiple of num_key_value_heads "
            f"{num_kv_heads}; the config.json is broken."
        )
    return num_kv_heads


def _head_dim(values: Mapping[str, Any], num_heads: int) -> int:
    head_dim = _size(values, "head_dim", _size(values, "hidden_size") // num_heads)
    if head_dim % 2:
        raise _malformed("head_dim", head_dim, "even, for the rotary embedding turns pairs")
    return head_dim


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    family = values.get("model_type")
    if family not in SUPPORTED_FAMILIES:
        raise CheckpointError(
            f"model_type {shown(family)} is not supported; choose a model of one of these "
            f"families: {', '.join(SUPPORTED_FAMILIES)}."
        )
    reason = _unsupported_part(values)
    if reason:
        raise CheckpointError(
            f"This {family} model has {reason}, which is not supported; {_OTHER}."
        )


def _unsupported_part(values: Mapping[str, Any]) -> str | None:
    for key in ("model_file", "auto_map"):
        if values.get(key):
            return f"its own model code ({key} {shown(values[key])})"
    for key in _EXPERTS:
        if _size(values, key, 0, least=0):
            return f"a mixture of experts ({key} {values[key]})"
    if values.get("hidden_act", "silu") != "silu":
        return f"the activation (hidden_act) {shown(values['hidden_act'])}"
    layer_types = values.get("layer_types", [])
    if not isinstance(layer_types, list):
        raise _malformed("layer_types", layer_types, "a list")
    for kind in layer_types:
        if kind != "full_attention":
            return f"layers of type {shown(kind)} (layer_types)"
    return _binding_window(values)


def _binding_window(values: Mapping[str, Any]) -> str | None:
    window = _size(values, "sliding_window", 0, least=0)
    is_used = _flag(values, "use_sliding_window", values["model_type"] == "mistral")
    context = _size(values, "max_position_embeddings", 2048)
    if is_used and 0 < window < context:
        return f"a sliding window of {window} within its context of {context}"
    return None


def _rope_config(values: Mapping[str, Any]) -> RopeConfig:
    scaling = _rope_scaling(values)
    _refuse_partial_rope(values)
    _refuse_partial_rope(scaling)
    kind, defaults = _rope_type(scaling), RopeConfig()
    rope = RopeConfig(
        theta=_number(scaling, "rope_theta", _number(values, "rope_theta", defaults.theta)),
        kind=kind,
        factor=_number(scaling, "factor", defaults.factor if kind == "default" else None),
        low_freq_factor=_number(scaling, "low_freq_factor", defaults.low_freq_factor),
        high_freq_factor=_number(scaling, "high_freq_factor", defaults.high_freq_factor),
        original_max_positions=_size(
            scaling, "original_max_position_embeddings", defaults.original_max_positions
        ),
        is_traditional=_flag(values, "rope_traditional"),
    )
    if kind == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
        wanted = f"above low_freq_factor, {rope.low_freq_factor}"
        raise _malformed("high_freq_factor", rope.high_freq_factor, wanted)
    return rope


def _refuse_partial_rope(values: Mapping[str, Any]) -> None:
    share = _number(values, "partial_rotary_factor", 1.0)
    if share != 1.0:
        raise CheckpointError(
            f"A partial rotary embedding (partial_rotary_factor {share}) is not supported; "
            f"{_OTHER}."
        )


def _rope_type(scaling: Mapping[str, Any]) -> str:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise CheckpointError(
            f"The rope type (rope_type) {shown(kind)} is not supported; this program has "
            f"{', '.join(_ROPE_TYPES)}; {_OTHER}."
        )
    return str(kind)


def _rope_scaling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what says how the rotation is scaled, empty where nothing does.

    transformers 5 writes ``rope_parameters``, with the base in it; older ones
    ``rope_scaling``.
    """
    scaling: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        found = values.get(key, {})
        if not isinstance(found, dict):
            raise _malformed(key, found, "an object")
        scaling = _without_nulls(found) or scaling
    return scaling
