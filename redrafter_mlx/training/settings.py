"""How a corpus is written and a drafter made and trained, with every default."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from redrafter_mlx.config import MAX_ROWS, check_range
from redrafter_mlx.errors import ConfigError

LABELS = ("soft", "hard")
HEADS = ("tied", "own")
NUM_DRAFT_LAYERS = 2
MAX_HIDDEN_BYTES = 8_000_000_000
BUILT_IN_PROMPTS = 200_000
DEFAULT_TOKENS = 1_000_000  # of answers to them
MAX_READ_TOKENS = 2048  # of a text by others, its prompt included


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """How a target answers.

    Attributes:
        temperatures: Prompt i is answered at the temperature i modulo their number.
        max_tokens: Most tokens of an answer.
        max_prompt_tokens: Longer prompts are left out.
        batch_size: Prompts answered at once; a shard holds one batch.
        num_tokens: Stop behind the batch with which this part of the corpus has so many answer
            tokens; ``None`` answers all.
        keeps_hidden: Whether the hidden states, which ``train`` needs, are kept as well.
        seed: Of the sampling.
    """

    temperatures: tuple[float, ...] = (0.0, 0.8)
    max_tokens: int = 256
    max_prompt_tokens: int = 512
    batch_size: int = 32
    num_tokens: int | None = None
    keeps_hidden: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every range."""
        if not self.temperatures:
            raise ConfigError("No temperature is given; give one, 0 is greedy.")
        for temperature in self.temperatures:
            check_range("temperature", temperature, 0.0, 100.0)
        check_range("max_tokens", self.max_tokens, 2, 2**20)
        check_range("max_prompt_tokens", self.max_prompt_tokens, 1, 2**20)
        check_range("batch_size", self.batch_size, 1, 4096)
        if self.num_tokens is not None:
            check_range("num_tokens", self.num_tokens, 1, 2**40)
        check_range("seed", self.seed, 0, 2**32 - 1)

    def part(self, source: str) -> str:
        """Return the name of the shards that these settings make from a source of prompts."""
        settings = asdict(self)
        del settings["num_tokens"], settings["keeps_hidden"]
        text = json.dumps([source, settings], sort_keys=True)
        return f"own-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """What a drafter to train looks like; ``None`` is as in the one that training starts from.

    Attributes:
        exit_dim: Width of its residual blocks; a new drafter's is the target's hidden_size.
        num_draft_layers: Residual blocks; a new drafter has ``NUM_DRAFT_LAYERS``.
        head: ``tied`` to the target's output head, as a new drafter's is, or its ``own``.
        draft_vocab_size: Tokens that it can propose, the most used of the corpus; a new
            drafter proposes all.
    """

    exit_dim: int | None = None
    num_draft_layers: int | None = None
    head: str | None = None
    draft_vocab_size: int | None = None

    def __post_init__(self) -> None:
        """Check every range."""
        for name in ("exit_dim", "draft_vocab_size"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), 1, 2**24)
        if self.num_draft_layers is not None:
            check_range("num_draft_layers", self.num_draft_layers, 0, 64)
        if self.head not in (None, *HEADS):
            raise ConfigError(f"head is {self.head!r}; choose one of {', '.join(HEADS)}.")


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How a drafter is trained.

    Attributes:
        draft_length: Depths that are trained: tokens drafted behind ``next_token``.
        labels: ``soft`` (the target's distribution) or ``hard`` (its most probable token).
        depth_decay: Weight of a depth over that of the one before it.
        batch_size: Positions a step, rounded down to whole chunks but to one at least.
        chunk_length: Consecutive positions of one answer that go together.
        learning_rate: At its highest.
        warmup: Share of the steps in which it rises from 0; then it falls as a cosine.
        final_rate: What it falls to, as a share of the highest.
        weight_decay: Of AdamW, on matrices alone.
        max_gradient_norm: Longer gradients are cut to it.
        epochs: Passes over the corpus, where ``steps`` is ``None``.
        steps: Steps in all.
        held_out: Share of the sequences that is only measured.
        evaluate_every: Steps between measurements of the held-out part.
        checkpoint_every: Steps between checkpoints.
        seed: Of the order and of new weights.
    """

    draft_length: int = 4
    labels: str = "soft"
    depth_decay: float = 0.8
    batch_size: int = 1024
    chunk_length: int = 32
    learning_rate: float = 1e-3
    warmup: float = 0.05
    final_rate: float = 0.05
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    epochs: float = 2.0
    steps: int | None = None
    held_out: float = 0.02
    evaluate_every: int = 100
    checkpoint_every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every range."""
        check_range("draft_length", self.draft_length, 1, MAX_ROWS)
        check_range("depth_decay", self.depth_decay, 0.01, 1.0)
        for name in ("batch_size", "chunk_length", "evaluate_every", "checkpoint_every"):
            check_range(name, getattr(self, name), 1, 2**24)
        check_range("learning_rate", self.learning_rate, 1e-9, 10.0)
        for name in ("warmup", "final_rate", "weight_decay"):
            check_range(name, getattr(self, name), 0.0, 1.0)
        check_range("max_gradient_norm", self.max_gradient_norm, 1e-6, 1e6)
        check_range("epochs", self.epochs, 0.001, 1e4)
        if self.steps is not None:
            check_range("steps", self.steps, 1, 2**31 - 1)
        check_range("held_out", self.held_out, 0.0, 0.5)
        check_range("seed", self.seed, 0, 2**32 - 1)
        if self.labels not in LABELS:
            raise ConfigError(f"labels is {self.labels!r}; choose one of {', '.join(LABELS)}.")

    @property
    def num_chunks(self) -> int:
        """Chunks of a batch."""
        return max(1, self.batch_size // self.chunk_length)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def first_difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> str | None:
    """Return the first key on which two settings differ."""
    return next((key for key in sorted({*left, *right}) if left.get(key) != right.get(key)), None)
