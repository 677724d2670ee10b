"""Prompts of one length behind one text that is read once, for real models and random ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from redrafter_mlx.bench.anatomy import long_text
from redrafter_mlx.bench.commit_cost import filled_cache
from redrafter_mlx.config import check_range
from redrafter_mlx.decoding.prefill import prefill
from redrafter_mlx.errors import ConfigError
from redrafter_mlx.generation import chat_prompt
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter, RecurrentDrafter
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.prompts import bench_prompts

MAX_QUESTION = 100  # tokens
RANDOM_QUESTION = 32
RANDOM_POSITIONS = 32_768


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """Prompts of one length that begin alike.

    Attributes:
        name: For the table.
        model: Decodes them.
        kv_cache: Holds the beginning of a prompt, or nothing.
        prompts: Token ids.
        num_shared: How many of them all prompts begin with.
        is_random: Whether no text stands behind them.
    """

    name: str
    model: LoadedModel
    kv_cache: KVCache
    prompts: list[list[int]]
    num_shared: int
    is_random: bool = False

    @property
    def num_tokens(self) -> int:
        """Length of each prompt."""
        return len(self.prompts[0])

    def read(self, number: int) -> list[int]:
        """Bring the cache to a prompt but its last token, and return the prompt."""
        prompt = self.prompts[number]
        self.kv_cache.rewind(self.num_shared)
        prefill(self.model.target, self.kv_cache, prompt[self.kv_cache.offset : -1])
        mx.eval(self.kv_cache.arrays)
        return prompt


def check_room(num_tokens: int, num_beyond: int, max_positions: int) -> None:
    """Raise ConfigError unless a context has room for a question, and the model for both."""
    check_range("context", num_tokens, MAX_QUESTION + 1, max_positions - num_beyond)


def require_drafter(model: LoadedModel) -> Drafter:
    """Return the model's drafter.

    Raises:
        ConfigError: It has none.
    """
    if model.drafter is None:
        raise ConfigError(f"{model.name} has no drafter; name its folder by --drafter.")
    return model.drafter


def real_context(model: LoadedModel, num_tokens: int, num_prompts: int) -> Context:
    """Return questions behind a real text; nothing is read yet.

    Raises:
        ConfigError: There are not so many short questions.
    """
    asked = questions(model)
    check_range("prompts", num_prompts, 1, len(asked))
    asked = asked[:num_prompts]
    text = long_text(model, num_tokens)
    prompts = [text[: num_tokens - len(question)] + question for question in asked]
    num_shared = num_tokens - max(map(len, asked))
    return Context(f"{num_tokens}", model, model.target.make_kv_cache(), prompts, num_shared)


def questions(model: LoadedModel) -> list[list[int]]:
    """Return the short ones of the bench's prompts, one of each category in turn."""
    found = bench_prompts()
    in_turn = [prompt for start in range(3) for prompt in found[start::3]]
    tokens = [chat_prompt(model, prompt.text) for prompt in in_turn]
    return [question for question in tokens if len(question) <= MAX_QUESTION]


def random_context(model: LoadedModel, num_tokens: int, num_prompts: int) -> Context:
    """Return random tokens behind random keys and values."""
    rng = np.random.default_rng(0)
    vocab_size = model.target.config.vocab_size
    num_filled = num_tokens - RANDOM_QUESTION
    text = rng.integers(vocab_size, size=num_filled).tolist()
    prompts = [
        text + rng.integers(vocab_size, size=RANDOM_QUESTION).tolist() for _ in range(num_prompts)
    ]
    kv_cache = filled_cache(model.target.config, num_filled)
    return Context(f"{num_tokens}, random", model, kv_cache, prompts, num_filled, is_random=True)


def random_twin(model: LoadedModel) -> LoadedModel:
    """Return a random model of the same sizes in float32, for contexts beyond its own.

    Raises:
        ConfigError: The model has no drafter.
    """
    size = require_drafter(model).config
    config = replace(model.target.config, max_positions=RANDOM_POSITIONS)
    target = Decoder(config, is_tied=model.target.is_tied)
    mx.eval(target.parameters())
    network = RecurrentDrafter(replace(size, quantization=None, target=None))
    if network.config.draft_vocab_size is not None:
        network.draft_vocab = mx.arange(network.config.draft_vocab_size)
    drafter = Drafter(network, target)
    return LoadedModel("random", None, target, drafter, None, frozenset())
