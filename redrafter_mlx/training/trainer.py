"""The training loop: it can be killed at any moment and goes on from its checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from redrafter_mlx.errors import ConfigError
from redrafter_mlx.models.drafter import RecurrentDrafter
from redrafter_mlx.training.batches import (
    Batch,
    SampleSet,
    choose_held_out,
    gather,
    plan_epoch,
    plan_steps,
)
from redrafter_mlx.training.checkpoint import (
    Best,
    Checkpoint,
    RunLog,
    load_checkpoint,
    save_checkpoint,
)
from redrafter_mlx.training.evaluate import Measured, measure
from redrafter_mlx.training.loss import Objective, chunks_at_once
from redrafter_mlx.training.optimizer import (
    AdamW,
    Arrays,
    assign,
    cut_gradients,
    learning_rate,
    trainable,
)
from redrafter_mlx.training.settings import TrainingConfig

# Held-out positions that are measured: enough for a tokens-per-round good to about 1 %.
MAX_HELD_OUT_POSITIONS = 12_000


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step or a measurement of the held-out part brought.

    Attributes:
        step: Steps done.
        num_steps: Steps in all.
        loss: Of the batch.
        accuracy_by_depth: On the batch.
        rate: Learning rate.
        gradient_norm: Before it was cut.
        positions_per_second: Of this step.
        held_out: Where it was measured after this step.
    """

    step: int
    num_steps: int
    loss: float
    accuracy_by_depth: tuple[float, ...]
    rate: float
    gradient_norm: float
    positions_per_second: float
    held_out: Measured | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        num_steps: Steps in all.
        best_step: The step whose weights are kept.
        best_tokens_per_round: Theirs on the held-out part; 0 where there is none.
    """

    num_steps: int
    best_step: int
    best_tokens_per_round: float


class Trainer:
    """Trains one drafter; its network holds the newest weights."""

    def __init__(
        self,
        network: RecurrentDrafter,
        objective: Objective,
        samples: SampleSet,
        config: TrainingConfig,
        folder: Path,
    ) -> None:
        """Split the corpus and go to where the run's checkpoint is.

        Raises:
            ConfigError: The corpus has nothing to train on.
        """
        self.network = network
        self._objective = objective
        self._samples = samples
        self._config = config
        self._folder = folder
        usable = [i for i in range(len(samples)) if samples.sample(i).num_answer_tokens > 1]
        held = choose_held_out(len(usable), config.held_out, config.seed)
        self._held_out = _first_positions(samples, [usable[i] for i in held])
        measured = set(self._held_out)
        self._sizes = [
            (i, samples.sample(i).num_answer_tokens) for i in usable if i not in measured
        ]
        if not self._sizes:
            raise ConfigError("The corpus has no answer of two tokens or more; make a larger one.")
        self.num_steps = config.steps or self._count_steps()
        weights = trainable(network)
        self._optimizer = AdamW(weights, config.weight_decay)
        self._step, self._best = 0, Best(0, 0.0, weights)
        self._restore(load_checkpoint(folder))
        self._loss_and_gradients = nn.value_and_grad(network, self._loss)

    def run(self, report: Callable[[StepReport], None]) -> Outcome:
        """Train to the end; the network then holds the best weights.

        Args:
            report: Called after each step.
        """
        log = RunLog(self._folder, self._step)
        if self._step == 0:
            self._save()
        started = time.perf_counter()
        for batch in islice(self._batches(), self.num_steps - self._step):
            result = self._train_step(batch, started)
            if self._is_due(self._config.evaluate_every) and self._held_out:
                result = self._measured(result)
            log.write(_as_line(result))
            report(result)
            if self._is_due(self._config.checkpoint_every):
                self._save()
            started = time.perf_counter()
        if self._held_out:
            assign(self.network, self._best.weights)
        return Outcome(self.num_steps, self._best.step, self._best.tokens_per_round)

    def _is_due(self, every: int) -> bool:
        return self._step % every == 0 or self._step == self.num_steps

    def _count_steps(self) -> int:
        """Return the steps of all epochs; the order of one does not change their number much."""
        config = self._config
        epoch = plan_epoch(self._sizes, config.chunk_length, config.num_chunks, [config.seed, 2, 0])
        return max(1, math.ceil(config.epochs * sum(len(pool) for pool in epoch)))

    def _batches(self) -> Iterator[Batch]:
        """Yield the batches behind the steps already done."""
        config = self._config
        num_rows = config.chunk_length + config.draft_length
        to_skip = self._step
        for pool in plan_steps(self._sizes, config.chunk_length, config.num_chunks, config.seed):
            skipped = min(to_skip, len(pool))
            to_skip -= skipped
            if pool[skipped:]:
                yield from gather(self._samples, pool[skipped:], num_rows)

    def _train_step(self, batch: Batch, started: float) -> StepReport:
        config = self._config
        weights = trainable(self.network)
        totals, gradients = self._pass(batch)
        gradients, norm = cut_gradients(gradients, config.max_gradient_norm)
        self._require_numbers(totals.loss, float(np.array(norm)))
        rate = learning_rate(self._step, self.num_steps, config)
        updated = self._optimizer.update(weights, gradients, rate, self._step)
        assign(self.network, updated)
        mx.eval(updated, self._optimizer.means, self._optimizer.squares, norm)
        self._step += 1
        seconds = time.perf_counter() - started
        return StepReport(
            step=self._step,
            num_steps=self.num_steps,
            loss=totals.loss,
            accuracy_by_depth=totals.accuracy,
            rate=rate,
            gradient_norm=float(np.array(norm)),
            positions_per_second=totals.num_positions / seconds,
        )

    def _require_numbers(self, loss: float, norm: float) -> None:
        """Stop before the weights are no numbers, either."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise ConfigError(
                f"Step {self._step + 1} has loss {loss} and a gradient of length {norm}: training "
                f"has diverged; begin anew with a learning rate under {self._config.learning_rate}."
            )

    def _pass(self, batch: Batch) -> tuple[_Totals, Arrays]:
        """Return a batch's figures and gradients, taken in parts that fit the memory."""
        weights = self._objective.weights(mx.array(batch.tokens), mx.array(batch.num_rows))
        scale = max(float(np.array(weights).sum(dtype=np.float64)), 1e-6)
        totals, gradients = _Totals(self._config.draft_length), dict[str, mx.array]()
        num_chunks = chunks_at_once(self.network, self._config)
        for part in _split(batch, num_chunks):
            figures, tree = self._loss_and_gradients(part, scale)
            gradients = _added(gradients, dict(tree_flatten(tree)))
            mx.eval(gradients, figures)
            totals.add(part, *figures)
        return totals, gradients

    def _loss(self, batch: Batch, scale: float) -> tuple[mx.array, mx.array, mx.array]:
        scores = self._objective.scores(self.network, batch, scale)
        is_right = (scores.guesses == scores.choices) & scores.mask
        return scores.loss, is_right.sum(axis=(1, 2)), scores.mask.sum(axis=(1, 2))

    def _measured(self, result: StepReport) -> StepReport:
        held_out = measure(
            self._objective, self.network, self._samples, self._held_out, self._config
        )
        if held_out.tokens_per_round > self._best.tokens_per_round:
            self._best = Best(self._step, held_out.tokens_per_round, trainable(self.network))
        return replace(result, held_out=held_out)

    def _save(self) -> None:
        save_checkpoint(
            self._folder,
            Checkpoint(
                step=self._step,
                weights=trainable(self.network),
                means=self._optimizer.means,
                squares=self._optimizer.squares,
                best=self._best,
            ),
        )

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        self._step, self._best = checkpoint.step, checkpoint.best
        self._optimizer.means = checkpoint.means
        self._optimizer.squares = checkpoint.squares
        assign(self.network, checkpoint.weights)


class _Totals:
    """A batch's figures, added up over its parts."""

    def __init__(self, depths: int) -> None:
        self.loss = 0.0
        self.num_positions = 0
        self._right, self._count = np.zeros(depths), np.zeros(depths)

    def add(self, part: Batch, loss: mx.array, right: mx.array, count: mx.array) -> None:
        self.loss += float(np.array(loss))
        num_positions = part.tokens.shape[1] - len(self._right)
        # The last row of an answer is a label at most, never a position.
        self.num_positions += int((part.num_rows - 1).clip(0, num_positions).sum())
        self._right += np.array(right)
        self._count += np.array(count)

    @property
    def accuracy(self) -> tuple[float, ...]:
        return tuple((self._right / np.maximum(self._count, 1)).tolist())


def _split(batch: Batch, num_chunks: int) -> Iterator[Batch]:
    """Yield a batch in parts of ``num_chunks`` chunks, without the padding at its end."""
    used = int(np.flatnonzero(batch.num_rows).max(initial=0)) + 1
    for start in range(0, used, num_chunks):
        part = slice(start, min(start + num_chunks, used))
        yield Batch(batch.hidden[part], batch.tokens[part], batch.num_rows[part])


def _added(left: Arrays, right: Arrays) -> Arrays:
    return {name: left[name] + part if left else part for name, part in right.items()}


def _first_positions(samples: SampleSet, indexes: Sequence[int]) -> list[int]:
    """Return the first sequences that hold ``MAX_HELD_OUT_POSITIONS`` positions together."""
    kept, num_positions = [], 0
    for index in indexes:
        if num_positions >= MAX_HELD_OUT_POSITIONS:
            break
        kept.append(index)
        num_positions += samples.sample(index).num_answer_tokens
    return sorted(kept)


def _as_line(report: StepReport) -> dict[str, Any]:
    """Return a line of the log, without what is not there."""
    return {key: value for key, value in asdict(report).items() if value is not None}
