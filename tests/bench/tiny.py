"""Tiny random models for a bench: in memory, and as a folder that mlx-lm loads, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from redrafter_mlx.bench.questions import Question
from redrafter_mlx.bench.results import Configuration
from redrafter_mlx.bench.sides import SideOptions, Timing, our_sides
from redrafter_mlx.bench.suites import Suite
from redrafter_mlx.config import SamplingConfig
from redrafter_mlx.loading.model import LoadedModel, load
from redrafter_mlx.weights import save_tensors, write_json
from tests.bench.synthetic_results import PLAIN
from tests.cli.endless_model import NUM_TOKENS, LetterTokenizer
from tests.small_tokenizers import CHATML, byte_level
from tests.toy import toy_drafter, toy_model, toy_target

GREEDY = SideOptions(max_tokens=12, sampling=SamplingConfig(), ignores_eos=False, uses_lookup=True)
QUESTIONS = (
    Question(5, "writing", ("Say a rhyme", "And again")),
    Question(9, "math", ("What is 2 + 2?", "And 3 + 3?")),
    Question(11, "math", ("Name a prime",)),
)
SUITE = Suite("tiny", QUESTIONS, max_tokens=12, num_trials=2)
_SETTINGS = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 352,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}


def tiny_model(*, has_drafter: bool = True, **changes: Any) -> LoadedModel:
    """Return a model in memory that answers in letters."""
    target = toy_target(vocab_size=NUM_TOKENS, **changes)
    drafter = toy_drafter(target) if has_drafter else None
    return toy_model(target, drafter, tokenizer=LetterTokenizer())


def tiny_folder(folder: Path, *, bits: int | None = None) -> Path:
    """Write a model as mlx_lm.convert does, quantised where ``bits`` says so."""
    decoder = toy_target(
        hidden_size=64, intermediate_size=96, head_dim=16, vocab_size=352, max_positions=512
    )
    settings: dict[str, Any] = {**_SETTINGS, "tie_word_embeddings": False}
    if bits:
        nn.quantize(decoder, group_size=32, bits=bits)
        settings["quantization"] = {"group_size": 32, "bits": bits}
    folder.mkdir()
    tensors: dict[str, mx.array] = dict(tree_flatten(decoder.parameters()))
    write_json(folder / "config.json", settings)
    save_tensors(folder / "model.safetensors", tensors)
    tokenizer = byte_level()
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


def loaded(folder: Path, dtype: str = "stored") -> LoadedModel:
    """Load such a folder without a drafter."""
    return load(folder, drafter=None, dtype=dtype)


@dataclass
class FakeSide:
    """Answers what a real side would, and can be made to fail.

    Attributes:
        configuration: Its name is what tells it from others.
        side: Answers in truth.
        log: Gets the name of each one that answers, and how many tokens were asked for.
        changed: Place of a token that is answered otherwise.
        fails_at: Number of the call that is interrupted, from 1.
    """

    configuration: Configuration
    side: Any
    log: list[tuple[str, int]] = field(default_factory=list)
    changed: int | None = None
    fails_at: int | None = None
    num_calls: int = 0

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        self.num_calls += 1
        if self.num_calls == self.fails_at:
            raise KeyboardInterrupt
        self.log.append((self.configuration.name, max_tokens))
        timing: Timing = self.side.answer(prompt, max_tokens)
        if self.changed is None:
            return timing
        tokens = list(timing.tokens)
        tokens[self.changed] = (tokens[self.changed] + 1) % NUM_TOKENS
        return replace(timing, tokens=tuple(tokens))


def fake_sides(model: LoadedModel, names: str, **changes: Any) -> list[FakeSide]:
    """Return a side for each letter that decodes plainly, all with one log."""
    plain = our_sides(model, GREEDY)[0]
    log: list[tuple[str, int]] = []
    return [
        FakeSide(replace(PLAIN, name=name), plain, log=log, **changes.get(name, {}))
        for name in names
    ]
