"""mlx-lm's own model on the very weights that our decoder holds, and its tokenizer."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_flatten

from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.weights import read_json


def load_peer(folder: Path, target: Decoder) -> Any:
    """Return mlx-lm's model of the same family, sharing ``target``'s arrays, quantised or not."""
    settings = read_json(folder / "config.json")
    settings.pop("quantization", None)
    settings["tie_word_embeddings"] = target.is_tied
    family = settings["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{'llama' if family == 'mistral' else family}")
    peer = module.Model(module.ModelArgs.from_dict(settings))
    modules: dict[str, Any] = dict(target.named_modules())

    def as_ours(path: str, part: Any) -> dict[str, Any] | bool:
        ours = modules.get(path)
        if ours is None or "scales" not in ours:
            return False
        return {"group_size": ours.group_size, "bits": ours.bits, "mode": ours.mode}

    nn.quantize(peer, class_predicate=as_ours)
    peer.load_weights(tree_flatten(target.parameters()), strict=True)
    peer.eval()
    return peer


def load_peer_tokenizer(folder: Path, eos_ids: Collection[int]) -> Any:
    """Return mlx-lm's tokenizer, which ends an answer at these ids; at none where empty."""
    from mlx_lm.tokenizer_utils import load

    tokenizer = load(folder, eos_token_ids=list(eos_ids))
    # It always adds the tokenizer's own; mlx-lm's benchmark sets it so, too.
    tokenizer._eos_token_ids = set(eos_ids)
    return tokenizer
