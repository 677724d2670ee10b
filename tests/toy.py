"""Tiny random models, made in memory, for laws that hold whatever the weights are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter, DraftStep, RecurrentDrafter
from redrafter_mlx.models.target_config import RopeConfig, TargetConfig

TOY_TARGET = TargetConfig(
    model_type="llama",
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=50,
    max_positions=512,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
)


def randomize(module: nn.Module, seed: int, scale: float = 1.0) -> None:
    """Fill every parameter with noise large enough that no choice is a near-tie."""
    key = mx.random.key(seed)

    def noise(path: str, value: mx.array) -> mx.array:
        nonlocal key
        if not mx.issubdtype(value.dtype, mx.floating):
            return value
        key, own = mx.random.split(key)
        drawn = mx.random.normal(value.shape, key=own)
        if "norm" in path:
            return 1.0 + 0.1 * drawn
        fan_in = value.shape[-1] if value.ndim > 1 else 25.0
        return scale * drawn / fan_in**0.5

    module.update(tree_map_with_path(noise, module.parameters()))
    mx.eval(module.parameters())


def toy_target(seed: int = 0, *, is_tied: bool = False, **changes: Any) -> Decoder:
    """Return a random decoder; ``changes`` replace fields of ``TOY_TARGET``."""
    decoder = Decoder(replace(TOY_TARGET, **changes), is_tied=is_tied)
    randomize(decoder, seed, scale=2.0)
    return decoder


def toy_drafter(target: Decoder, seed: int = 1, **changes: Any) -> Drafter:
    """Return a random drafter for ``target``."""
    config = DrafterConfig(
        hidden_size=target.config.hidden_size,
        vocab_size=target.config.vocab_size,
        exit_dim=2 * target.config.hidden_size,
        num_draft_layers=2,
    )
    network = RecurrentDrafter(replace(config, **changes))
    randomize(network, seed)
    return Drafter(network, target)


def toy_model(
    target: Decoder, drafter: Any = None, eos_ids: Sequence[int] = (), tokenizer: Any = None
) -> LoadedModel:
    """Return a model in memory."""
    return LoadedModel("toy", None, target, drafter, tokenizer, frozenset(eos_ids))


class Oracle:
    """A drafter that knows the answer: it finds its place by the target's hidden state."""

    token_ids = None

    def __init__(self, target: Decoder, prompt: list[int], answer: list[int]) -> None:
        tokens = mx.array(prompt + answer)
        hidden = target(tokens, target.make_kv_cache())
        self._hidden = hidden[len(prompt) - 1 :]
        self._answer = mx.array([*answer, 0])
        self._vocab_size = target.config.vocab_size

    def context(self, hidden: mx.array) -> mx.array:
        return hidden

    def first_state(self, hidden: mx.array) -> mx.array:
        distance = mx.square(self._hidden - hidden).sum(axis=-1)
        return mx.argmin(distance, keepdims=True)[None].astype(mx.float32)

    def step(
        self, hidden: mx.array, context: mx.array, state: mx.array, tokens: mx.array
    ) -> DraftStep:
        state = mx.minimum(state + 1, self._answer.shape[0] - 1)
        right = self._answer[state[:, 0].astype(mx.int32)]
        return DraftStep(state, 50.0 * (mx.arange(self._vocab_size) == right[:, None]))
