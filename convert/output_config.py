"""The config.json of a converted model, which leaves nothing to a reader's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redrafter_mlx.models.target_config import TargetConfig

_LEFT_OUT = ("_name_or_path", "quantization", "quantization_config")
_DTYPE_KEYS = ("torch_dtype", "dtype")


def output_config(
    settings: Mapping[str, Any], config: TargetConfig, *, is_tied: bool, dtype: str | None
) -> dict[str, Any]:
    """Return the config.json to write, without what it says of a quantisation.

    Where a key is missing, mlx-lm and transformers assume different things: mlx-lm ties the
    head, and takes no notice of the ``rope_parameters`` of transformers 5.

    Args:
        settings: The source's config.json.
        config: What was read from it.
        is_tied: Whether the output head is the embedding's matrix.
        dtype: That of the weights if it was asked for, else ``None``.
    """
    values = {key: value for key, value in settings.items() if key not in _LEFT_OUT}
    values["tie_word_embeddings"] = is_tied
    if values.get("rope_parameters"):
        values |= _rope_entries(values["rope_parameters"], config)
    explicit = {
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
    }
    values |= {key: value for key, value in explicit.items() if values.get(key) is None}
    if dtype is not None:
        values |= dict.fromkeys((key for key in _DTYPE_KEYS if key in values), dtype)
    return values


def wanted_dtype(settings: Mapping[str, Any]) -> str | None:
    """Return the dtype that a config.json names, ``None`` where it names none."""
    names = (settings.get(key) for key in _DTYPE_KEYS)
    return next((name for name in names if isinstance(name, str)), None)


def _rope_entries(parameters: Mapping[str, Any], config: TargetConfig) -> dict[str, Any]:
    """Return what older readers look for, from what transformers 5 writes."""
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    return {
        "rope_theta": config.rope.theta,
        "rope_scaling": None if config.rope.kind == "default" else scaling,
    }
