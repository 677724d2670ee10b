"""From a corpus to a drafter's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.convert.draft_vocab import most_used
from redrafter_mlx.convert.drafter import ImportOptions, write_drafter
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.loading.target import identify
from redrafter_mlx.training.batches import SampleSet
from redrafter_mlx.training.checkpoint import open_run
from redrafter_mlx.training.corpus import Corpus, open_corpus, require_target
from redrafter_mlx.training.features import FeatureProgress, Shard, prepare_features
from redrafter_mlx.training.loss import Objective
from redrafter_mlx.training.settings import DrafterShape, TrainingConfig
from redrafter_mlx.training.start import StartOptions, network_tensors, start_network
from redrafter_mlx.training.trainer import Outcome, StepReport, Trainer

DEFAULT_HIDDEN_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What is trained on what.

    Attributes:
        corpus: Folders that ``distill`` made.
        out: Folder of the drafter to make.
        shape: The drafter's sizes.
        config: How it is trained.
        init_from: A drafter's folder to start from.
        max_hidden_bytes: Most bytes of hidden states kept beside the corpus.
        resume: Whether a run that was begun may go on.
    """

    corpus: tuple[Path, ...]
    out: Path
    shape: DrafterShape = field(default_factory=DrafterShape)
    config: TrainingConfig = field(default_factory=TrainingConfig)
    init_from: Path | None = None
    max_hidden_bytes: int = DEFAULT_HIDDEN_BYTES
    resume: bool = False

    @property
    def run_folder(self) -> Path:
        """Where the checkpoint, the log and the curves lie: beside ``out``."""
        return self.out.with_name(f"{self.out.name}.training")

    def settings(self, corpora: Sequence[Corpus]) -> dict[str, Any]:
        """Return all that the weights depend on, as a JSON object."""
        return {
            **self.config.to_dict(),
            **asdict(self.shape),
            "init_from": str(self.init_from) if self.init_from else None,
            "corpus": {str(c.folder): [shard.name for shard in c.shards] for c in corpora},
        }


@dataclass(frozen=True, slots=True)
class Trained:
    """A drafter that was written.

    Attributes:
        config: Of the drafter.
        outcome: How the run ended.
        num_positions: Answer tokens of the corpus.
    """

    config: DrafterConfig
    outcome: Outcome
    num_positions: int


def train_drafter(
    model: LoadedModel,
    plan: TrainingPlan,
    on_features: Callable[[FeatureProgress], None],
    on_step: Callable[[StepReport], None],
) -> Trained:
    """Train a drafter for a target and write its folder.

    Args:
        model: The target; its own drafter is not used.
        plan: What to do.
        on_features: Called while the target reads the corpus.
        on_step: Called after each step.

    Raises:
        CheckpointError: The corpus is another target's, or a file cannot be used.
        ConfigError: The settings do not go together, or differ from the run to resume.
        ShapeError: ``init_from`` does not fit the target.
    """
    trainer, num_positions = prepare(model, plan, on_features)
    outcome = trainer.run(on_step)
    options = ImportOptions(draft_length=plan.config.draft_length)
    config = write_drafter(network_tensors(trainer.network), plan.out, options)
    return Trained(config, outcome, num_positions)


def prepare(
    model: LoadedModel, plan: TrainingPlan, on_features: Callable[[FeatureProgress], None]
) -> tuple[Trainer, int]:
    """Open or begin a run; return its trainer and the answer tokens of the corpus."""
    identity = identify(model.name, model.target)
    corpora = [open_corpus(folder) for folder in plan.corpus]
    for corpus in corpora:
        require_target(corpus, identity)
    open_run(plan.run_folder, plan.settings(corpora), resume=plan.resume)
    options = StartOptions(
        plan.shape, plan.config.draft_length, identity, plan.init_from, plan.config.seed
    )
    shards = _shards(model, corpora, plan.max_hidden_bytes, on_features)

    def choose_tokens(size: int) -> npt.NDArray[np.int32]:
        return most_used(_count_tokens(shards, identity.vocab_size), size, model.eos_ids)

    network = start_network(model.target, options, choose_tokens)
    is_cut = network.config.draft_vocab_size is not None
    token_ids: mx.array | None = network.draft_vocab if is_cut else None
    objective = Objective(model.target, plan.config, token_ids)
    samples = SampleSet(model.target, shards)
    trainer = Trainer(network, objective, samples, plan.config, plan.run_folder)
    return trainer, sum(len(sample.answer) for shard in shards for sample in shard.samples)


def _shards(
    model: LoadedModel,
    corpora: Sequence[Corpus],
    max_bytes: int,
    on_features: Callable[[FeatureProgress], None],
) -> list[Shard]:
    shards: list[Shard] = []
    for corpus in corpora:
        shards += prepare_features(model.target, corpus, max_bytes, on_features)
        max_bytes -= sum(shard.hidden.nbytes for shard in shards if shard.hidden is not None)
    return shards


def _count_tokens(shards: Sequence[Shard], vocab_size: int) -> npt.NDArray[np.int64]:
    counts = np.zeros(vocab_size, np.int64)
    for shard in shards:
        for sample in shard.samples:
            counts += np.bincount(sample.answer, minlength=vocab_size)
    return counts
