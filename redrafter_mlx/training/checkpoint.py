"""A training run on disk: one checkpoint, replaced in one step, and a log beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.folders import sync
from redrafter_mlx.training.files import write_object, write_whole
from redrafter_mlx.training.optimizer import Arrays
from redrafter_mlx.training.settings import first_difference
from redrafter_mlx.weights import load_tensors, read_json

CHECKPOINT_FILE = "checkpoint.safetensors"
SETTINGS_FILE = "run.json"
LOG_FILE = "log.jsonl"

_KINDS = ("weights", "means", "squares")


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The weights that did best on the held-out part.

    Attributes:
        step: Behind which they were measured; 0 where none were yet.
        tokens_per_round: What they brought there.
        weights: Trainable tensors.
    """

    step: int
    tokens_per_round: float
    weights: Arrays


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    Attributes:
        step: Steps done.
        weights: Trainable tensors.
        means: The optimiser's memory of their gradients; ``squares``: of the squares.
        best: The best weights up to here.
    """

    step: int
    weights: Arrays
    means: Arrays
    squares: Arrays
    best: Best


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace a run's checkpoint; the former one stays until the new one is whole."""
    best = checkpoint.best
    parts = {kind: getattr(checkpoint, kind) for kind in _KINDS} | {"best": best.weights}
    arrays = {
        f"{kind}/{name}": tensor for kind, part in parts.items() for name, tensor in part.items()
    }
    arrays["steps"] = mx.array([checkpoint.step, best.step], mx.int32)
    # Bit for bit: rounded, weights that did just as well would seem to do better.
    arrays["score"] = mx.array(np.array([best.tokens_per_round], np.float64).view(np.uint32))
    mx.eval(arrays)
    write_whole(folder / CHECKPOINT_FILE, lambda file: mx.save_safetensors(file, arrays))


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Return a run's checkpoint, ``None`` where it has none yet.

    Raises:
        CheckpointError: It cannot be read.
    """
    path = folder / CHECKPOINT_FILE
    if not path.exists():
        return None
    arrays = load_tensors(path)
    mx.eval(arrays)
    try:
        step, best_step = map(int, np.array(arrays.pop("steps")))
        (score,) = np.array(arrays.pop("score")).view(np.float64).tolist()
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is no checkpoint of a training run; remove it.") from error
    parts = {kind: _of_kind(arrays, kind) for kind in _KINDS}
    return Checkpoint(step, **parts, best=Best(best_step, score, _of_kind(arrays, "best")))


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the run that is there, empty where there is none."""
    path = folder / SETTINGS_FILE
    return read_json(path, f"remove {folder} and train again") if path.exists() else {}


def check_run(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Check that a run may begin, or go on with these settings.

    Raises:
        CheckpointError: There is one and ``resume`` is false.
        ConfigError: Its settings are other ones.
    """
    former = read_settings(folder)
    if not former:
        return
    if not resume:
        raise CheckpointError(f"{folder} holds a run already; go on with --resume, or remove it.")
    key = first_difference(former, json.loads(json.dumps(settings)))
    if key is not None:
        raise ConfigError(
            f"The run in {folder} has {key} {_shown(former.get(key))}, not "
            f"{_shown(settings.get(key))}; resume with the same settings."
        )


def begin_run(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write down what a run is about to be."""
    write_object(folder / SETTINGS_FILE, settings)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " and ".join(f"{name} ({len(part)} shards)" for name, part in value.items())
    return f"{value!r:.60}"


class RunLog:
    """A JSON line for each thing that a run reports."""

    def __init__(self, folder: Path, step: int) -> None:
        """Open the log; lines behind ``step``, of a run that was killed, are dropped."""
        self._path = folder / LOG_FILE
        kept = [line for line in self.lines(folder) if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_whole(self._path, lambda file: file.write(text.encode()))

    @staticmethod
    def lines(folder: Path) -> list[dict[str, Any]]:
        """Return the whole lines of a run's log; a last one cut by a kill is left out."""
        path = folder / LOG_FILE
        if not path.exists():
            return []
        found = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def write(self, values: Mapping[str, Any]) -> None:
        """Add a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            sync(file.fileno())


def _of_kind(arrays: Arrays, kind: str) -> Arrays:
    prefix = f"{kind}/"
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in arrays.items()
        if name.startswith(prefix)
    }
