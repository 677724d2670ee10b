"""Training reaches what it promises, and what it promises is what generate finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from redrafter_mlx.config import BeamShape, GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import ConfigError
from redrafter_mlx.loading.drafter import load_drafter
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter, RecurrentDrafter
from redrafter_mlx.training.batches import SampleSet
from redrafter_mlx.training.checkpoint import load_checkpoint
from redrafter_mlx.training.corpus import Sample
from redrafter_mlx.training.evaluate import Measured, Walk, measure, walk_text
from redrafter_mlx.training.features import HiddenReader
from redrafter_mlx.training.loss import Objective
from redrafter_mlx.training.optimizer import AdamW, cut_gradients, learning_rate, trainable
from redrafter_mlx.training.settings import DrafterShape, TrainingConfig
from redrafter_mlx.training.train import TrainingPlan, prepare, train_drafter
from redrafter_mlx.training.trainer import StepReport, Trainer
from tests.toy import toy_drafter, toy_model, toy_target
from tests.training.corpora import (
    corpus_on_disk,
    greedy_sample,
    random_samples,
    sample_set,
)

DEPTHS = 4


@pytest.fixture(scope="module")
def target() -> Decoder:
    target = toy_target(seed=4)
    # Sure of itself, as a trained model is: with near-ties soft labels have no right answer.
    target.lm_head.weight = 8 * target.lm_head.weight
    return target


@pytest.fixture(scope="module")
def answers(target: Decoder) -> list[Sample]:
    return [greedy_sample(target, [1 + seed, 7 * seed % 50, 9], 24) for seed in range(6)]


def train_on(
    target: Decoder, samples: Sequence[Sample], folder: Path, **settings: Any
) -> RecurrentDrafter:
    """Train a new drafter with a head of its own, nothing held out."""
    config = TrainingConfig(
        **{"held_out": 0.0, "batch_size": 128, "chunk_length": 8, "learning_rate": 1e-2, **settings}
    )
    network = toy_drafter(target)._network
    objective = Objective(target, config)
    trainer = Trainer(network, objective, sample_set(target, samples), config, folder)
    trainer.run(lambda _: None)
    return network


def predicted(
    network: RecurrentDrafter, target: Decoder, samples: Sequence[Sample], **settings: Any
) -> Measured:
    config = TrainingConfig(draft_length=DEPTHS, **settings)
    objective = Objective(target, config)
    return measure(objective, network, sample_set(target, samples), range(len(samples)), config)


def generated(drafter: Drafter, samples: Sequence[Sample], shape: BeamShape) -> Walk:
    """Let the real loop answer the same prompts."""
    model, walk = toy_model(drafter._target, drafter), Walk(0, 0)
    for sample in samples:
        stats = DecodeStats()
        config = GenerationConfig(
            max_tokens=sample.num_answer_tokens, beam=shape, is_adaptive=False, use_lookup=False
        )
        prompt = sample.tokens[: sample.prompt_length].tolist()
        kv_cache = model.target.make_kv_cache()
        tokens = list(decode(model, kv_cache, prompt, config, stats))
        assert tokens == sample.answer.tolist()
        walk += Walk(stats.emitted_tokens - 1, stats.num_rounds)
    return walk


@pytest.mark.parametrize(
    ("labels", "least", "steps"),
    [("hard", 1.0, 350), pytest.param("soft", 0.97, 250, marks=pytest.mark.slow)],
)
def test_overfitted_drafter_is_always_right_and_generate_agrees(
    tmp_path: Path, target: Decoder, answers: list[Sample], labels: str, least: float, steps: int
) -> None:
    """With soft labels two tokens that are as good as tied may change places."""
    network = train_on(target, answers, tmp_path, steps=steps, labels=labels)
    found = predicted(network, target, answers)
    assert min(found.accuracy_by_depth) >= least
    shape = BeamShape(beam_width=1, beam_length=DEPTHS + 1)
    real = generated(Drafter(network, target), answers, shape)
    assert found.tokens_per_round == pytest.approx(real.tokens_per_round, rel=0.02)
    if least == 1.0:
        full = sum(-(-(sample.num_answer_tokens - 1) // (DEPTHS + 1)) for sample in answers)
        assert real.num_rounds == full


@pytest.fixture(scope="module")
def half_trained(
    tmp_path_factory: pytest.TempPathFactory, target: Decoder, answers: list[Sample]
) -> RecurrentDrafter:
    return train_on(target, answers, tmp_path_factory.mktemp("run"), steps=12)


@pytest.mark.parametrize("shape", [(1, 5), (2, 4), (3, 3)])
def test_half_trained_drafter_does_as_well_in_generate_as_training_says(
    half_trained: RecurrentDrafter,
    target: Decoder,
    answers: list[Sample],
    shape: tuple[int, int],
) -> None:
    drafter, beam = Drafter(half_trained, target), BeamShape(*shape)
    reader, walk = HiddenReader(target), Walk(0, 0)
    for sample in answers:
        walk += walk_text(drafter, reader.read(sample), sample.answer, beam)
    real = generated(drafter, answers, beam)
    assert 1.1 < real.tokens_per_round < 4.0
    assert walk.tokens_per_round == pytest.approx(real.tokens_per_round, rel=0.02)
    if shape == (1, DEPTHS + 1):
        found = predicted(half_trained, target, answers)
        assert found.tokens_per_round == pytest.approx(real.tokens_per_round, rel=0.02)


def test_small_steps_change_the_master_weights(target: Decoder, tmp_path: Path) -> None:
    """One step at rate 1e-5 changes 99 % of the weights: in half precision most would stay."""
    network = toy_drafter(target)._network
    before = {name: mx.array(part) for name, part in trainable(network).items()}
    config = TrainingConfig(steps=1, held_out=0.0, learning_rate=1e-5, warmup=0.0)
    samples = sample_set(target, random_samples(10))
    Trainer(network, Objective(target, config), samples, config, tmp_path).run(lambda _: None)
    changed = sum(
        np.sum(np.array(part != before[name])) for name, part in trainable(network).items()
    )
    assert changed >= 0.99 * sum(part.size for part in before.values())
    assert all(part.dtype == mx.float32 for part in trainable(network).values())


def test_adamw_follows_its_definition() -> None:
    weight, gradients = mx.array([[1.0, -2.0]]), [mx.array([[0.5, -1.0]]), mx.array([[0.1, 3.0]])]
    optimizer, weights = AdamW({"w": weight}, weight_decay=0.1), {"w": weight}
    mean = square = mx.zeros((1, 2))
    expected = weight
    for step, gradient in enumerate(gradients):
        weights = optimizer.update(weights, {"w": gradient}, 0.01, step)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient * gradient
        unbiased = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.98 ** (step + 1))
        move = unbiased[0] / (mx.sqrt(unbiased[1]) + 1e-8)
        expected = expected - 0.01 * (move + 0.1 * expected)
    assert mx.allclose(weights["w"], expected, atol=1e-6)


def test_rate_rises_then_falls_to_its_floor() -> None:
    config = TrainingConfig(learning_rate=1.0, warmup=0.1, final_rate=0.05)
    rates = [learning_rate(step, 100, config) for step in range(101)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert all(left >= right for left, right in pairwise(rates[9:]))
    assert rates[55] == pytest.approx(0.05 + 0.95 / 2)
    assert rates[100] == pytest.approx(0.05)


def test_long_gradients_are_cut_and_short_ones_are_not() -> None:
    gradients = {"a": mx.array([3.0]), "b": mx.array([4.0])}
    cut, norm = cut_gradients(gradients, 1.0)
    assert norm.item() == 5.0
    assert [cut[name].item() for name in "ab"] == pytest.approx([0.6, 0.8])
    assert cut_gradients(gradients, 9.0)[0]["b"].item() == 4.0


def test_gradients_of_a_large_head_are_not_longer_than_they_seem() -> None:
    _, norm = cut_gradients({"head": mx.full((2000, 4000), 0.1)}, 1.0)
    assert norm.item() == pytest.approx(0.1 * 8e6**0.5, rel=1e-5)


def test_parts_of_a_batch_add_up_to_the_whole(
    target: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the weights after some steps do not depend on how a batch is cut to fit the memory."""
    results = []
    for num_bytes in (1 << 30, 1):
        monkeypatch.setattr("redrafter_mlx.training.loss.MAX_LOGITS_BYTES", num_bytes)
        samples = random_samples(12)
        network = train_on(target, samples, tmp_path / str(num_bytes), steps=3)
        results.append(dict(tree_flatten(network.parameters())))
    for name, whole in results[0].items():
        assert mx.allclose(whole, results[1][name], atol=2e-4), name


def test_same_seed_same_drafter_and_another_seed_another(target: Decoder, tmp_path: Path) -> None:
    corpus_on_disk(tmp_path / "corpus", target, random_samples(16))
    drafters = []
    for number, seed in enumerate((0, 0, 1)):
        config = TrainingConfig(steps=4, seed=seed, batch_size=32, chunk_length=8)
        out = tmp_path / f"drafter{number}"
        plan = TrainingPlan(
            (tmp_path / "corpus",), out, DrafterShape(exit_dim=16, head="own"), config
        )
        train_drafter(toy_model(target), plan, lambda _: None, lambda _: None)
        drafters.append((out / "model.safetensors").read_bytes()[-2000:])
        assert load_drafter(out, target).config.draft_length == 4
    assert drafters[0] == drafters[1] != drafters[2]


def test_run_that_is_refused_leaves_nothing_behind(target: Decoder, tmp_path: Path) -> None:
    """Nor does the target read the corpus first: it may take hours."""
    corpus_on_disk(tmp_path / "corpus", target, random_samples(4))
    for shape in (DrafterShape(draft_vocab_size=51), DrafterShape(exit_dim=24)):
        plan = TrainingPlan((tmp_path / "corpus",), tmp_path / "drafter", shape)
        with pytest.raises(ConfigError):
            prepare(toy_model(target), plan, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    assert not (tmp_path / "corpus/hidden").exists()


def test_run_that_diverges_ends_with_its_last_numbers(target: Decoder, tmp_path: Path) -> None:
    config = TrainingConfig(
        steps=50, held_out=0.0, learning_rate=10.0, batch_size=64, checkpoint_every=1
    )
    network, samples = toy_drafter(target)._network, sample_set(target, random_samples(10))
    network.rnn_w.weight = 1e18 * network.rnn_w.weight
    trainer = Trainer(network, Objective(target, config), samples, config, tmp_path)
    with pytest.raises(ConfigError, match=r"diverged; begin anew with a learning rate under 10\.0"):
        trainer.run(lambda _: None)
    kept = load_checkpoint(tmp_path)
    assert kept is not None
    assert all(np.isfinite(np.array(part)).all() for part in kept.weights.values())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_step_in_which_nothing_counts_reports_numbers(
    target: Decoder, tmp_path: Path, temperature: float
) -> None:
    """No answer token is in the draft vocabulary: every pair is masked out, no guess is right."""
    samples = [Sample(np.full(12, 7, np.int32), 2, temperature)] * 4
    config = TrainingConfig(steps=1, held_out=0.25, batch_size=64)
    network = toy_drafter(target, draft_vocab_size=2)._network
    objective, reports = Objective(target, config, mx.array([1, 3])), list[StepReport]()
    network.freeze(recurse=False, keys=["draft_vocab"])
    trainer = Trainer(network, objective, sample_set(target, samples), config, tmp_path)
    trainer.run(reports.append)
    (report,) = reports
    assert (report.loss, report.gradient_norm) == (0.0, 0.0)
    assert report.accuracy_by_depth == (0.0,) * DEPTHS
    assert report.held_out == Measured(0.0, (0.0,) * DEPTHS, 1.0)


def test_held_out_part_comes_from_the_whole_corpus_and_the_rest_is_trained_on(
    target: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrafter_mlx.training.trainer.MAX_HELD_OUT_POSITIONS", 60)
    samples = sample_set(target, [Sample(np.arange(9, dtype=np.int32), 1, 0.0)] * 100)
    config = TrainingConfig(steps=1, held_out=0.5)
    network = toy_drafter(target)._network
    trainer = Trainer(network, Objective(target, config), samples, config, tmp_path)
    measured = trainer._held_out
    assert len(measured) == 8
    assert min(measured) < 33 and max(measured) >= 66
    assert {index for index, _ in trainer._sizes} == set(range(100)) - set(measured)


def test_measurement_does_not_depend_on_how_it_is_cut_to_fit_the_memory(
    target: Decoder, answers: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = toy_drafter(target)._network
    whole = predicted(network, target, answers)
    scored = []
    scores = Objective.scores

    def counting(self, network, batch, scale=None):
        scored.append(len(batch.tokens))
        return scores(self, network, batch, scale)

    monkeypatch.setattr(Objective, "scores", counting)
    monkeypatch.setattr("redrafter_mlx.training.loss.MAX_LOGITS_BYTES", 2 * 4 * 50 * 32)
    cut = predicted(network, target, answers)
    assert scored == [2, 2, 2]
    assert cut.loss == pytest.approx(whole.loss, rel=1e-5)
    assert cut.accuracy_by_depth == whole.accuracy_by_depth
    assert cut.tokens_per_round == whole.tokens_per_round


def test_measurement_runs_each_text_once(
    target: Decoder, answers: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrafter_mlx.training.loss.MAX_LOGITS_BYTES", 1)
    asked, hidden = [], SampleSet.hidden

    def counting(self, index):
        asked.append(index)
        return hidden(self, index)

    monkeypatch.setattr(SampleSet, "hidden", counting)
    predicted(toy_drafter(target)._network, target, answers, chunk_length=8)
    assert sorted(asked) == list(range(len(answers)))


def test_weights_that_did_best_are_kept_and_a_tie_is_no_better(
    target: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([1.5, 2.0, 2.0, 1.2])
    monkeypatch.setattr(
        "redrafter_mlx.training.trainer.measure", lambda *_: Measured(1.0, (0.5,), next(scores))
    )
    config = TrainingConfig(steps=4, held_out=0.2, evaluate_every=1, learning_rate=1e-2)
    network, samples = toy_drafter(target)._network, sample_set(target, random_samples(10))
    trainer = Trainer(network, Objective(target, config), samples, config, tmp_path)
    seen = list[mx.array]()
    outcome = trainer.run(lambda _: seen.append(network.rnn_w.weight))
    assert (outcome.best_step, outcome.best_tokens_per_round) == (2, 2.0)
    assert [mx.array_equal(network.rnn_w.weight, weight) for weight in seen] == [
        False, True, False, False,
    ]  # fmt: skip


def test_speed_counts_each_position_once(
    target: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch of steps of a second each: every row of an answer but its last is a position."""
    clock = count()
    monkeypatch.setattr("redrafter_mlx.training.trainer.time.perf_counter", lambda: next(clock))
    samples, reports = random_samples(12), list[StepReport]()
    config = TrainingConfig(epochs=1.0, held_out=0.0, batch_size=64, chunk_length=8)
    network = toy_drafter(target)._network
    objective, corpus = Objective(target, config), sample_set(target, samples)
    Trainer(network, objective, corpus, config, tmp_path).run(reports.append)
    assert len(reports) > 1
    assert sum(report.positions_per_second for report in reports) == sum(
        sample.num_answer_tokens - 1 for sample in samples
    )


def test_corpus_without_answers_is_refused(target: Decoder, tmp_path: Path) -> None:
    corpus_on_disk(tmp_path / "corpus", target, [Sample(np.array([1, 2], np.int32), 2, 0.0)])
    plan = TrainingPlan((tmp_path / "corpus",), tmp_path / "drafter")
    with pytest.raises(ConfigError, match="no answer of two tokens"):
        prepare(toy_model(target), plan, lambda _: None)
