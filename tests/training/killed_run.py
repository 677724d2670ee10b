"""A small training run that kills itself, to be run as a program: FOLDER PHASE."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from redrafter_mlx.loading.target import identify
from redrafter_mlx.training import checkpoint, distill, features, reading, trainer
from redrafter_mlx.training.corpus import READ, Sample, create_corpus
from redrafter_mlx.training.distill import DistillConfig
from redrafter_mlx.training.settings import DrafterShape, TrainingConfig
from redrafter_mlx.training.texts import Exchange
from redrafter_mlx.training.train import Trained, TrainingPlan, train_drafter
from tests.toy import toy_model, toy_target
from tests.training.corpora import corpus_on_disk, random_samples

STEPS = 8


def plan(folder: Path, *, resume: bool = False, keeps_hidden: bool = True) -> TrainingPlan:
    config = TrainingConfig(
        steps=STEPS, batch_size=64, chunk_length=8, evaluate_every=3, checkpoint_every=2,
        held_out=0.2, labels="soft", learning_rate=1e-2,
    )  # fmt: skip
    shape = DrafterShape(head="own", draft_vocab_size=30)
    return TrainingPlan(
        (folder / "corpus",),
        folder / "drafter",
        shape,
        config,
        max_hidden_bytes=1 << 30 if keeps_hidden else 0,
        resume=resume,
    )


def write_corpus(folder: Path) -> None:
    """Write answers whose prompts begin alike, as behind one system prompt."""
    system = np.array([9, 8, 7, 6, 5], np.int32)
    samples = [
        Sample(np.concatenate([system, one.tokens]), 5 + one.prompt_length, 0.0)
        for one in random_samples(20)
    ]
    corpus_on_disk(folder / "corpus", toy_target(), samples, shard_size=5)


def train(folder: Path, *, resume: bool = False, keeps_hidden: bool = True) -> Trained:
    model = toy_model(toy_target(), eos_ids=[2])
    wanted = plan(folder, resume=resume, keeps_hidden=keeps_hidden)
    return train_drafter(model, wanted, lambda _: None, lambda _: None)


def answer(folder: Path) -> None:
    target = toy_target()
    prompts = [np.array([3, token], np.int32) for token in range(12)]
    config = DistillConfig(batch_size=4, max_tokens=9)
    create_corpus(folder / "corpus", identify("toy", target))
    distill.distill(
        target, frozenset({2}), prompts, (folder / "corpus", "x"), config, lambda _: None
    )


def read(folder: Path) -> None:
    """Read 150 texts, three shards of them."""

    def encode(exchange: Exchange) -> Sample:
        number = int(exchange.messages[0]["content"])
        return Sample(np.array([3, number % 50, 1], np.int32), 1, READ)

    create_corpus(folder / "corpus", identify("toy", toy_target()))
    texts = folder / "texts.txt"
    texts.write_text("".join(f"{number}\n" for number in range(150)))
    samples = reading.read_samples(texts, encode, 50)
    reading.add_samples(folder / "corpus", reading.file_digest(texts), samples)


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_call(number: int, module: Any, name: str) -> None:
    """Make the process die in the n-th call of a function."""
    function, calls = getattr(module, name), [0]

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            die()
        return function(*args, **kwargs)

    setattr(module, name, counting)


# Where each phase dies: in the n-th call of a function.
PHASES: dict[str, tuple[int, Any, str]] = {
    "features": (8, features.HiddenReader, "read"),
    "step": (6, trainer, "cut_gradients"),
    "step on hidden states run anew": (6, trainer, "cut_gradients"),
    "measuring": (2, trainer, "measure"),
    "checkpoint": (3, checkpoint.mx, "save_safetensors"),
    # Four of hidden states, the settings, the log, the first checkpoint; two steps and a
    # checkpoint, two steps: now the third one is written whole and not moved yet.
    "moving": (13, os, "fsync"),
    "writing": (1, sys.modules["redrafter_mlx.training.train"], "write_drafter"),
    "answering": (14, distill, "decode_batch"),
    "answer shard": (2, distill, "write_shard"),
    "answer to be moved": (5, os, "fsync"),
    "answers begun": (1, os, "fsync"),
    "reading": (2, reading, "write_shard"),
}


if __name__ == "__main__":
    mx.disable_compile()
    place, wanted = Path(sys.argv[1]), sys.argv[2]
    die_at_call(*PHASES[wanted])
    if wanted.startswith("answer"):
        answer(place)
    elif wanted == "reading":
        read(place)
    else:
        train(place, keeps_hidden="anew" not in wanted)
