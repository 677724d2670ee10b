"""Which of a checkpoint's tensors a target uses."""

from __future__ import annotations

import re
from collections.abc import Container

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.models.target_config import TargetConfig

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
_ROTARY_BUFFER = re.compile(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


def is_rotary_buffer(name: str) -> bool:
    """Whether a tensor holds precomputed angles, which old checkpoints store."""
    return _ROTARY_BUFFER.search(name) is not None


def is_unused(name: str, config: TargetConfig) -> bool:
    """Whether the model does without a tensor: a rotary buffer, or a head that is tied."""
    is_tied_head = config.tie_word_embeddings is True and name.startswith("lm_head.")
    return is_tied_head or is_rotary_buffer(name)


def require_head(names: Container[str], config: TargetConfig) -> None:
    """Raise CheckpointError where config.json promises a head that the files lack."""
    if config.tie_word_embeddings is False and HEAD not in names:
        raise CheckpointError(
            f"config.json says tie_word_embeddings false, but the files have no {HEAD}; download "
            "the model again."
        )
