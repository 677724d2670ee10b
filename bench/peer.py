"""mlx-lm's own model and loop on the very weights that our decoder holds."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
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
    """Return mlx-lm's model of the same family, sharing ``target``'s unquantised arrays."""
    settings = read_json(folder / "config.json")
    settings.pop("quantization", None)
    settings["tie_word_embeddings"] = target.is_tied
    family = settings["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{'llama' if family == 'mistral' else family}")
    peer = module.Model(module.ModelArgs.from_dict(settings))
    peer.load_weights(tree_flatten(target.parameters()), strict=True)
    return peer


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
