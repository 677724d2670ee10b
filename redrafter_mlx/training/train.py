"""From a corpus to a drafter's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.convert.draft_vocab import Counts, most_used
from redrafter_mlx.convert.drafter import ImportOptions, write_drafter
from redrafter_mlx.file_errors import refusing, unreadable
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.loading.target import identify
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.training.batches import SampleSet
from redrafter_mlx.training.checkpoint import begin_run, check_run, read_settings
from redrafter_mlx.training.corpus import Corpus, Ids, open_corpus, read_shard, require_target
from redrafter_mlx.training.features import FeatureProgress, Shard, prepare_features
from redrafter_mlx.training.loss import Objective
from redrafter_mlx.training.settings import MAX_HIDDEN_BYTES, DrafterShape, TrainingConfig
from redrafter_mlx.training.start import ChooseTokens, StartOptions, network_tensors, start_network
from redrafter_mlx.training.trainer import Outcome, StepReport, Trainer

_DRAFTER_SUFFIXES = (".json", ".safetensors", ".bin", ".pt")


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
    max_hidden_bytes: int = MAX_HIDDEN_BYTES
    resume: bool = False

    @property
    def run_folder(self) -> Path:
        """Where the checkpoint, the log and the curves lie: beside ``out``."""
        out = self.out.resolve()
        return out.with_name(f"{out.name}.training")

    def settings(self, target: Decoder, corpora: Sequence[Corpus]) -> dict[str, Any]:
        """Return all that the weights depend on, as a JSON object."""
        return {
            **self.config.to_dict(),
            **asdict(self.shape),
            "dtype": str(target.dtype),
            "init_from": str(self.init_from) if self.init_from else None,
            "init_digest": digest_of(self.init_from) if self.init_from else None,
            "corpus": {str(c.folder): [shard.name for shard in c.shards] for c in corpora},
        }


def digest_of(source: Path) -> str:
    """Return the SHA-256 of a drafter's files, in hexadecimal, or of the one that it is.

    Raises:
        CheckpointError: One cannot be read. That there is none is for ``read_drafter`` to say.
    """
    inside = sorted(path for path in source.glob("*") if path.suffix in _DRAFTER_SUFFIXES)
    found = hashlib.sha256()
    with refusing(unreadable, source):
        for path in (path for path in (source, *inside) if path.is_file()):
            found.update(path.read_bytes())
    return found.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run that is about to begin or to go on.

    Attributes:
        plan: What it does.
        trainer: At the last checkpoint.
        num_positions: Answer tokens of the corpus.
    """

    plan: TrainingPlan
    trainer: Trainer
    num_positions: int


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
    """Train a drafter for a target and write its folder; see ``prepare`` and ``complete``."""
    return complete(prepare(model, plan, on_features), on_step)


def prepare(
    model: LoadedModel, plan: TrainingPlan, on_features: Callable[[FeatureProgress], None]
) -> Run:
    """Begin a run, or open the one to go on with; what cannot be done is refused at once.

    Args:
        model: The target; its own drafter is not used.
        plan: What to do.
        on_features: Called while the target reads the corpus.

    Raises:
        CheckpointError: The corpus is another target's, or a file cannot be used.
        ConfigError: The settings do not go together, or differ from the run to resume.
        ShapeError: ``init_from`` does not fit the target.
    """
    identity = identify(model.name, model.target)
    corpora = _as_begun([open_corpus(folder) for folder in plan.corpus], plan)
    for corpus in corpora:
        require_target(corpus, identity)
    settings = plan.settings(model.target, corpora)
    check_run(plan.run_folder, settings, resume=plan.resume)
    counts = _count_tokens(corpora, identity.vocab_size)
    options = StartOptions(
        plan.shape, plan.config.draft_length, identity, plan.init_from, plan.config.seed
    )
    network = start_network(model.target, options, chooser(counts, model.eos_ids))
    shards = _shards(model, corpora, plan.max_hidden_bytes, on_features)
    is_cut = network.config.draft_vocab_size is not None
    token_ids: mx.array | None = network.draft_vocab if is_cut else None
    objective = Objective(model.target, plan.config, token_ids)
    samples = SampleSet(model.target, shards)
    trainer = Trainer(network, objective, samples, plan.config, plan.run_folder)
    begin_run(plan.run_folder, settings)
    return Run(plan, trainer, int(counts.sum()))


def complete(run: Run, on_step: Callable[[StepReport], None]) -> Trained:
    """Train to the end and write the drafter's folder.

    Args:
        run: What ``prepare`` returned.
        on_step: Called after each step.

    Raises:
        CheckpointError: A file cannot be written.
        ConfigError: The loss is no number any more.
    """
    outcome = run.trainer.run(on_step)
    options = ImportOptions(draft_length=run.plan.config.draft_length)
    config = write_drafter(network_tensors(run.trainer.network), run.plan.out, options)
    return Trained(config, outcome, run.num_positions)


def _as_begun(corpora: Sequence[Corpus], plan: TrainingPlan) -> list[Corpus]:
    """Return the corpora with the shards that the run to resume began with: they may have grown."""
    begun = read_settings(plan.run_folder).get("corpus", {}) if plan.resume else {}

    def with_begun(corpus: Corpus) -> Corpus:
        names = begun.get(str(corpus.folder))
        if names is None:
            return corpus
        return replace(corpus, shards=tuple(s for s in corpus.shards if s.name in names))

    return [with_begun(corpus) for corpus in corpora]


def _shards(
    model: LoadedModel,
    corpora: Sequence[Corpus],
    max_bytes: int,
    on_features: Callable[[FeatureProgress], None],
) -> list[Shard]:
    shards: list[Shard] = []
    for corpus in corpora:
        found = prepare_features(model.target, corpus, max_bytes, on_features)
        max_bytes -= sum(shard.hidden.nbytes for shard in found if shard.hidden is not None)
        shards += found
    return shards


def chooser(counts: Counts, eos_ids: frozenset[int]) -> ChooseTokens:
    """Return what chooses the most used tokens, those that end an answer always.

    Args:
        counts: (vocab_size,), how often each token is used.
        eos_ids: Those that end an answer.
    """

    def choose(size: int, among: Ids | None) -> Ids:
        if among is None:
            return most_used(counts, size, eos_ids)
        always = np.flatnonzero(np.isin(among, list(eos_ids))).tolist()
        return among[most_used(counts[among], size, always)]

    return choose


def _count_tokens(corpora: Sequence[Corpus], vocab_size: int) -> Counts:
    """Return how often each token is in an answer, (vocab_size,)."""
    counts = np.zeros(vocab_size, np.int64)
    for path in (path for corpus in corpora for path in corpus.shards):
        answers = [sample.answer for sample in read_shard(path, vocab_size)]
        if answers:
            counts += np.bincount(np.concatenate(answers), minlength=vocab_size)
    return counts
