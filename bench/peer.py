"""mlx-lm's own model and loop on the very weights that our decoder holds."""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.weights import read_json


@dataclass(frozen=True, slots=True)
class Timing:
    """One timed answer, by either program.

    Attributes:
        tokens: Ids.
        prefill_seconds: From the call to the first token.
        decode_seconds: From the first token to the last.
    """

    tokens: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed without prefill."""
        return (len(self.tokens) - 1) / self.decode_seconds


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


def time_peer(peer: Any, prompt: Sequence[int], max_tokens: int) -> Timing:
    """Time mlx-lm's greedy ``generate_step``."""
    from mlx_lm.generate import generate_step

    start = time.perf_counter()
    steps = generate_step(mx.array(list(prompt)), peer, max_tokens=max_tokens)
    tokens = [int(next(steps)[0])]
    first = time.perf_counter()
    tokens += [int(token) for token, _ in steps]
    return Timing(tuple(tokens), first - start, time.perf_counter() - first)


def time_ours(model: LoadedModel, prompt: Sequence[int], config: GenerationConfig) -> Timing:
    """Time our own loop, token ids only, as ``time_peer`` does."""
    stats = DecodeStats()
    tokens = tuple(decode(model, model.target.make_kv_cache(), prompt, config, stats))
    return Timing(tokens, stats.prefill_seconds, stats.decode_seconds)
