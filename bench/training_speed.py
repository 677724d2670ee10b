"""Training speed beside the same maths in PyTorch, on a CPU, the sides taking turns.

Run it as ``python -m redrafter_mlx.bench.training_speed``. Each trial is a process of its own
and trains a drafter of SmolLM2-135M's size from the same weights on the same batches; the
losses of the first trials must agree before anything is reported. On Linux, MLX takes the
BLAS that LD_PRELOAD names; PyTorch, which brings its own, is run without it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import mlx.core as mx
import numpy as np

from redrafter_mlx.bench.torch_training import peak_bytes
from redrafter_mlx.config import DrafterConfig, check_range
from redrafter_mlx.errors import ConfigError, ReDrafterError
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import RecurrentDrafter
from redrafter_mlx.models.target_config import TargetConfig
from redrafter_mlx.training.batches import SampleSet, gather, plan_steps
from redrafter_mlx.training.corpus import Sample
from redrafter_mlx.training.features import Shard
from redrafter_mlx.training.files import write_arrays
from redrafter_mlx.training.loss import Objective
from redrafter_mlx.training.optimizer import assign, learning_rate, trainable
from redrafter_mlx.training.settings import TrainingConfig
from redrafter_mlx.training.trainer import StepReport, Trainer

TOLERANCE = 1e-4
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """What is trained: by default a drafter of SmolLM2-135M's width over 8,192 tokens.

    Attributes:
        hidden_size: Of target and drafter.
        vocab_size: Columns of the output head.
        batch_size: Positions a step.
        steps: Steps a trial; the first one warms up.
    """

    hidden_size: int = 576
    vocab_size: int = 8192
    batch_size: int = 1024
    steps: int = 3

    @property
    def config(self) -> TrainingConfig:
        """The default training, without measurements between the steps."""
        return TrainingConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            held_out=0.0,
            evaluate_every=self.steps,
            checkpoint_every=self.steps,
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """One process's training.

    Attributes:
        losses: Of each step.
        seconds: Of each step.
        peak_bytes: The most memory that the process had.
    """

    losses: list[float]
    seconds: list[float]
    peak_bytes: int

    def positions_per_second(self, size: Size) -> float:
        """Return the median speed of the steps behind the first."""
        return size.batch_size / statistics.median(self.seconds[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Target, new drafter and sequences, the same in every process."""

    target: Decoder
    network: RecurrentDrafter
    samples: SampleSet
    lengths: list[tuple[int, int]]


def make_problem(size: Size) -> Problem:
    """Make a target that is only a head, a drafter, and one epoch of whole chunks."""
    random = np.random.default_rng(0)

    def noise(shape: tuple[int, ...], scale: float) -> mx.array:
        return mx.array((scale * random.standard_normal(shape)).astype(np.float32))

    target = Decoder(_head_only(size), is_tied=True)
    width = size.hidden_size
    target.model.embed_tokens.weight = noise((size.vocab_size, width), 2 / width**0.5)
    config = DrafterConfig(width, size.vocab_size, width, num_draft_layers=2, head="tied")
    network = RecurrentDrafter(config)
    weights = {
        name: noise(tensor.shape, 1 / width**0.5)
        for name, tensor in sorted(trainable(network).items())
    }
    assign(network, weights)
    rows = 4 * size.config.chunk_length + 1
    num = size.steps * size.batch_size // (rows - 1)
    tokens = random.integers(0, size.vocab_size, (num, rows + 1)).astype(np.int32)
    samples = [Sample(row, 1, 0.8) for row in tokens]
    hidden = random.standard_normal((num * rows, width)).astype(np.float16)
    mx.eval(target.parameters(), network.parameters())
    return Problem(
        target,
        network,
        SampleSet(target, [Shard(samples, hidden)]),
        [(index, rows) for index in range(num)],
    )


def _head_only(size: Size) -> TargetConfig:
    return TargetConfig.from_dict(
        {
            "model_type": "llama",
            "hidden_size": size.hidden_size,
            "intermediate_size": size.hidden_size,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "vocab_size": size.vocab_size,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        }
    )


def write_problem(problem: Problem, size: Size, path: Path) -> None:
    """Write what the other side needs: the weights, and the batches as the trainer takes them."""
    config = size.config
    num_rows = config.chunk_length + config.draft_length
    pools = plan_steps(problem.lengths, config.chunk_length, config.num_chunks, config.seed)
    chunks = list(islice(chain.from_iterable(pools), size.steps))
    batches = list(gather(problem.samples, chunks, num_rows))
    arrays = {f"weight/{name}": np.array(w) for name, w in trainable(problem.network).items()}
    arrays |= {
        "head": np.array(problem.target.model.embed_tokens.weight),
        "hidden": np.stack([batch.hidden for batch in batches]),
        "tokens": np.stack([batch.tokens for batch in batches]),
        "num_rows": np.stack([batch.num_rows for batch in batches]),
        "rates": np.array([learning_rate(step, size.steps, config) for step in range(size.steps)]),
        "depths": np.array(config.draft_length),
        "depth_decay": np.array(config.depth_decay),
        "weight_decay": np.array(config.weight_decay),
        "max_norm": np.array(config.max_gradient_norm),
    }
    write_arrays(path, arrays)


def run_ours(size: Size) -> Trial:
    """Train with this package's trainer."""
    problem, reports = make_problem(size), list[StepReport]()
    objective = Objective(problem.target, size.config)
    with tempfile.TemporaryDirectory() as folder:
        args = problem.network, objective, problem.samples, size.config, Path(folder)
        Trainer(*args).run(reports.append)
    seconds = [size.batch_size / report.positions_per_second for report in reports]
    return Trial([report.loss for report in reports], seconds, peak_bytes())


def run_trial(arguments: list[str], threads: int, *, keeps_blas: bool) -> Trial:
    """Run one side in a process of its own.

    Raises:
        ConfigError: It failed.
    """
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    if not keeps_blas:
        environment.pop("LD_PRELOAD", None)
    command = [sys.executable, "-m", *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise ConfigError(f"{' '.join(arguments)} failed: {ended.stderr.strip()[-300:]}")
    return Trial(**json.loads(ended.stdout.splitlines()[-1]))


def compare(size: Size, trials: int, threads: int) -> dict[str, list[Trial]]:
    """Train on both sides in turn; return each side's trials.

    Raises:
        ConfigError: A side failed, or the sides do not agree on the losses.
    """
    sides: dict[str, list[Trial]] = {"MLX": [], "PyTorch": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        write_problem(make_problem(size), size, path)
        ours = ["redrafter_mlx.bench.training_speed", "--only-ours", *_as_options(size)]
        theirs = ["redrafter_mlx.bench.torch_training", str(path), str(threads)]
        for _ in range(trials):
            sides["MLX"].append(run_trial(ours, threads, keeps_blas=True))
            sides["PyTorch"].append(run_trial(theirs, threads, keeps_blas=False))
            require_agreement(*(found[-1] for found in sides.values()))
    return sides


def require_agreement(ours: Trial, theirs: Trial) -> None:
    """Refuse to compare sides that do not do the same.

    Raises:
        ConfigError: A loss differs by more than ``TOLERANCE``.
    """
    for step, (left, right) in enumerate(zip(ours.losses, theirs.losses, strict=True), 1):
        if not abs(left - right) <= TOLERANCE:
            raise ConfigError(
                f"The loss of step {step} is {left:.6f} here and {right:.6f} in PyTorch; the two "
                "sides must do the same: mend one."
            )


def report_lines(sides: Mapping[str, list[Trial]], size: Size) -> list[str]:
    """Return a table of the medians, and their ratio."""
    lines = [f"{'':8} {'positions/s':>12} {'peak GB':>8} {'loss of the last step':>22}"]
    speeds = {}
    for name, trials in sides.items():
        speeds[name] = statistics.median(trial.positions_per_second(size) for trial in trials)
        peak = statistics.median(trial.peak_bytes for trial in trials)
        lines.append(
            f"{name:8} {speeds[name]:12.1f} {peak / 1e9:8.2f} {trials[-1].losses[-1]:22.6f}"
        )
    return [*lines, f"MLX over PyTorch: {speeds['MLX'] / speeds['PyTorch']:.2f}"]


def _as_options(size: Size) -> list[str]:
    return [
        f"--hidden-size={size.hidden_size}",
        f"--vocab-size={size.vocab_size}",
        f"--batch-size={size.batch_size}",
        f"--steps={size.steps}",
    ]


def main() -> int:
    """Compare from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = Size()
    parser.add_argument("--hidden-size", type=int, default=usual.hidden_size)
    parser.add_argument("--vocab-size", type=int, default=usual.vocab_size)
    parser.add_argument("--batch-size", type=int, default=usual.batch_size)
    parser.add_argument("--steps", type=int, default=usual.steps)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-ours", action="store_true", help="train once, print JSON")
    options = parser.parse_args()
    try:
        check_range("steps", options.steps, 2, 10_000)
        check_range("trials", options.trials, 1, 1000)
    except ConfigError as error:
        parser.error(str(error))
    size = Size(options.hidden_size, options.vocab_size, options.batch_size, options.steps)
    if options.only_ours:
        mx.set_default_device(mx.cpu)
        sys.stdout.write(json.dumps(asdict(run_ours(size))) + "\n")
        return 0
    if importlib.util.find_spec("torch") is None:
        sys.stderr.write("PyTorch is missing: pip install 'redrafter-mlx[torch]' brings it.\n")
        return 1
    try:
        lines = report_lines(compare(size, options.trials, options.threads), size)
    except ReDrafterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
