"""A small training run that kills itself, to be run as a program: FOLDER PHASE."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx

from redrafter_mlx.training import checkpoint, distill, features, files, trainer
from redrafter_mlx.training.distill import DistillConfig
from redrafter_mlx.training.settings import DrafterShape, TrainingConfig
from redrafter_mlx.training.train import Trained, TrainingPlan, train_drafter
from tests.toy import toy_model, toy_target
from tests.training.corpora import corpus_on_disk, random_samples

STEPS = 8


def plan(folder: Path, *, resume: bool = False) -> TrainingPlan:
    config = TrainingConfig(
        steps=STEPS, batch_size=64, chunk_length=8, evaluate_every=3, checkpoint_every=2,
        held_out=0.2, labels="soft", learning_rate=1e-2,
    )  # fmt: skip
    shape = DrafterShape(head="own", draft_vocab_size=30)
    return TrainingPlan((folder / "corpus",), folder / "drafter", shape, config, resume=resume)


def write_corpus(folder: Path) -> None:
    corpus_on_disk(folder / "corpus", toy_target(), random_samples(20), shard_size=5)


def train(folder: Path, *, resume: bool = False) -> Trained:
    model = toy_model(toy_target(), eos_ids=[2])
    return train_drafter(model, plan(folder, resume=resume), lambda _: None, lambda _: None)


def answer(folder: Path) -> None:
    import numpy as np

    prompts = [np.array([3, token], np.int32) for token in range(12)]
    config = DistillConfig(batch_size=4, max_tokens=9)
    distill.distill(
        toy_target(), frozenset({2}), prompts, (folder / "corpus", "x"), config, lambda _: None
    )


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


def arm(phase: str) -> None:
    if phase == "features":
        die_at_call(8, features.HiddenReader, "read")
    elif phase == "step":
        die_at_call(6, trainer, "cut_gradients")
    elif phase == "measuring":
        die_at_call(2, trainer, "measure")
    elif phase == "checkpoint":
        # The third checkpoint is written and not yet moved to its place.
        die_at_call(3, checkpoint.mx, "save_safetensors")
    elif phase == "moving":
        die_at_call(9, files.os, "fsync")
    elif phase == "writing":
        die_at_call(1, sys.modules["redrafter_mlx.training.train"], "write_drafter")
    elif phase == "answering":
        die_at_call(14, distill, "decode_batch")
    elif phase == "answer shard":
        die_at_call(2, distill, "write_shard")


if __name__ == "__main__":
    mx.disable_compile()
    place, wanted = Path(sys.argv[1]), sys.argv[2]
    arm(wanted)
    if wanted.startswith("answer"):
        answer(place)
    else:
        train(place)
