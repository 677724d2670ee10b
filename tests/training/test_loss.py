"""The loss: which pairs count, what each guess has seen, and the gradients."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter, RecurrentDrafter
from redrafter_mlx.training.batches import Batch
from redrafter_mlx.training.corpus import Sample
from redrafter_mlx.training.loss import (
    Objective,
    Teaching,
    draft_features,
    head_logits,
)
from redrafter_mlx.training.settings import TrainingConfig
from tests.toy import toy_drafter, toy_target
from tests.training.corpora import greedy_sample, random_samples, whole_batch

H = 32  # TOY_TARGET.hidden_size

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"exit_dim": H, "head": "tied", "head_scale": 1.7},
    {"exit_dim": 24},
    {"num_draft_layers": 0},
    {"num_draft_layers": 0, "exit_dim": 24},
    {"rnn": False},
    {"draft_vocab_size": 20},
)


def soft_loss(logits: mx.array, taught: mx.array) -> mx.array:
    return Teaching.of(taught[None], "soft").loss(logits[None])[0]


def hard_loss(logits: mx.array, taught: mx.array) -> mx.array:
    return Teaching.of(taught[None], "hard").loss(logits[None])[0]


def toy_network(
    shape: dict[str, Any], target: Decoder | None = None
) -> tuple[Drafter, RecurrentDrafter]:
    drafter = toy_drafter(target or toy_target(), **shape)
    network = drafter._network
    if "draft_vocab" in network:
        network.draft_vocab = mx.arange(0, 40, 2, dtype=mx.int32)
        drafter = Drafter(network, drafter._target)
    return drafter, network


def test_contributing_pairs_of_a_hand_made_sequence() -> None:
    """Prompt 7 8, answer 10 11 12 13 14 15: row r holds answer token r, depth d guesses r + d."""
    target = toy_target()
    sample = Sample(np.array([7, 8, 10, 11, 12, 13, 14, 15], np.int32), 2, 0.0)
    batch = whole_batch(target, sample, num_rows=11)
    objective = Objective(target, TrainingConfig(draft_length=3, depth_decay=0.5))
    weights = np.array(objective.weights(mx.array(batch.tokens), mx.array(batch.num_rows)))
    pairs = {(int(r), int(d) + 1) for d, _, r in np.argwhere(weights)}
    assert pairs == {
        (0, 1), (1, 1), (2, 1), (3, 1), (4, 1),
        (0, 2), (1, 2), (2, 2), (3, 2),
        (0, 3), (1, 3), (2, 3),
    }  # fmt: skip
    assert [float(weights[d].max()) for d in range(3)] == [1.0, 0.5, 0.25]


def test_pairs_behind_a_token_that_the_drafter_cannot_propose_do_not_count() -> None:
    target = toy_target()
    sample = Sample(np.array([7, 8, 10, 12, 13, 14, 16, 18], np.int32), 2, 0.0)  # 13 is odd
    batch = whole_batch(target, sample, num_rows=9)
    objective = Objective(target, TrainingConfig(draft_length=3), mx.arange(0, 40, 2))
    weights = np.array(objective.weights(mx.array(batch.tokens), mx.array(batch.num_rows)))
    pairs = {(int(r), int(d) + 1) for d, _, r in np.argwhere(weights)}
    # 13 is row 2: no guess of it counts, and none whose path goes through it.
    assert pairs == {(0, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (2, 3)}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("draft_vocab_size", [None, 20])
def test_quantised_target_teaches_by_its_own_head(
    dtype: mx.Dtype, draft_vocab_size: int | None
) -> None:
    """Law: a target in 4 bits is scored and learnt from as it decodes, whatever it computes in."""
    target = toy_target(intermediate_size=64)
    target.set_dtype(dtype)
    nn.quantize(target, 32, 4)
    shape = {"exit_dim": H, "head": "tied", "draft_vocab_size": draft_vocab_size}
    drafter, network = toy_network(shape, target)
    batch = whole_batch(target, random_samples(3, seed=5)[2], num_rows=12)
    objective = Objective(target, TrainingConfig(draft_length=3), drafter.token_ids)
    assert objective.head.weight.dtype == mx.uint32
    step = nn.value_and_grad(network, lambda: objective.scores(network, batch).loss)
    loss, gradients = step()
    assert np.isfinite(loss.item())
    assert mx.any(gradients["rnn_w"]["weight"]).item()
    scores = objective.scores(network, batch)
    hidden, tokens = mx.array(batch.hidden).astype(mx.float32), mx.array(batch.tokens)
    ids = mx.arange(50) if drafter.token_ids is None else drafter.token_ids
    taught = target.logits(hidden[0, 1:])[:, ids]
    for row in range(9):
        h = hidden[0, row : row + 1]
        drafted = drafter.step(h, drafter.context(h), drafter.first_state(h), tokens[0, row][None])
        assert scores.guesses[0, 0, row].item() == mx.argmax(drafted.logits).item()
        assert scores.choices[0, 0, row].item() == mx.argmax(taught[row]).item()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_guess_is_scored_as_the_drafter_in_use_scores_it(shape: dict[str, Any]) -> None:
    """Law: logits in training at (row, depth) == those of Drafter.step fed the same tokens."""
    drafter, network = toy_network(shape)
    target = drafter._target
    batch = whole_batch(target, random_samples(1, seed=3)[0], num_rows=9)
    hidden, tokens = mx.array(batch.hidden).astype(mx.float32), mx.array(batch.tokens)
    features = draft_features(network, hidden, target.embed(tokens), 4)
    is_cut = drafter.token_ids is not None
    objective = Objective(target, TrainingConfig(), drafter.token_ids if is_cut else None)
    logits = head_logits(network, objective.head, features)
    for row in range(5):
        h = hidden[0, row : row + 1]
        context, state = drafter.context(h), drafter.first_state(h)
        for depth in range(4):
            step = drafter.step(h, context, state, tokens[0, row + depth : row + depth + 1])
            state = step.state
            assert mx.allclose(logits[depth, 0, row], step.logits[0], atol=1e-4)


def test_labels_are_the_targets_choice_from_the_row_that_a_guess_is_about() -> None:
    """Law: on a greedy answer, the choice at (r, d) is answer token r + d."""
    target = toy_target()
    sample = greedy_sample(target, [3, 1, 4], 10)
    batch = whole_batch(target, sample, num_rows=10)
    _, network = toy_network({})
    scores = Objective(target, TrainingConfig(draft_length=3)).scores(network, batch)
    choices, mask = np.array(scores.choices), np.array(scores.mask)
    assert mask.sum() == 7 * 3  # chunk of 7 positions, all inside
    for depth in range(3):
        assert choices[depth, 0].tolist() == sample.answer[depth + 1 : depth + 8].tolist()


def test_hidden_row_is_what_the_answer_token_was_chosen_from() -> None:
    target = toy_target()
    sample = greedy_sample(target, [3, 1, 4], 6)
    batch = whole_batch(target, sample, num_rows=6)
    chosen = mx.argmax(target.logits(mx.array(batch.hidden[0]).astype(mx.float32)), axis=-1)
    assert chosen.tolist() == sample.answer.tolist()


@pytest.mark.parametrize("labels", ["soft", "hard"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_finite_differences(shape: dict[str, Any], labels: str) -> None:
    drafter, network = toy_network(shape)
    network.freeze(recurse=False, keys=["draft_vocab"], strict=False)
    batch = whole_batch(drafter._target, random_samples(3, seed=5)[2], num_rows=12)
    config = TrainingConfig(labels=labels, draft_length=3)
    objective = Objective(drafter._target, config, drafter.token_ids)
    step = nn.value_and_grad(network, lambda: objective.scores(network, batch).loss)
    loss, gradients = step()
    random, size = np.random.default_rng(0), 1e-2
    weights = dict(tree_flatten(network.trainable_parameters()))
    for name, gradient in dict(tree_flatten(gradients)).items():
        noise = mx.array(random.standard_normal(gradient.shape).astype(np.float32))
        # Along the gradient itself the slope is its length: none of it can hide.
        for direction in (noise, gradient):
            unit, ends = direction / mx.linalg.norm(direction), []
            for sign in (1.0, -1.0):
                network.update(tree_unflatten([(name, weights[name] + sign * size * unit)]))
                ends.append(objective.scores(network, batch).loss.item())
            network.update(tree_unflatten([(name, weights[name])]))
            expected = (ends[0] - ends[1]) / (2 * size)
            found = (gradient * unit).sum().item()
            assert found == pytest.approx(expected, rel=0.02, abs=1e-3), name
    assert np.isfinite(loss.item())


def test_loss_of_a_large_batch_is_the_mean_of_its_pairs() -> None:
    """Added up one by one, the weights of 128 chunks would be off by 1 in 1e5."""
    drafter, network = toy_network({})
    random = np.random.default_rng(0)
    hidden = random.standard_normal((1, 36, H)).astype(np.float16)
    tokens = random.integers(0, 50, (1, 36)).astype(np.int32)
    objective = Objective(drafter._target, TrainingConfig())
    one, many = (
        objective.scores(
            network,
            Batch(hidden.repeat(num, 0), tokens.repeat(num, 0), np.full(num, 36, np.int32)),
        )
        for num in (1, 128)
    )
    assert many.loss.item() == pytest.approx(one.loss.item(), rel=2e-6)


@pytest.mark.parametrize("device", [mx.cpu, mx.gpu])
@pytest.mark.parametrize("scale", [1e-3, 3.0, 1e4])
def test_soft_loss_is_the_divergence_of_the_two_distributions(
    scale: float, device: mx.DeviceType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU computes it by powers; what a GPU takes runs here as well."""
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(device))
    drafted, taught = scale * mx.random.normal((2, 4, 9), key=mx.random.key(0))
    log_p, log_q = (log_softmax(np.array(x, np.float64)) for x in (taught, drafted))
    expected = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    assert np.array(soft_loss(drafted, taught)) == pytest.approx(expected, rel=1e-6, abs=1e-5)
    assert np.array(soft_loss(taught, taught)) == pytest.approx(0, abs=1e-5)


def log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(-1, keepdims=True)
    normalised: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


def test_hard_loss_is_the_log_probability_of_the_label() -> None:
    logits = 3 * mx.random.normal((5, 9), key=mx.random.key(1))
    labels = mx.array([0, 8, 3, 3, 1])
    taught = mx.arange(9) == labels[:, None]
    q = np.exp(np.array(logits, np.float64))
    expected = -np.log(q[np.arange(5), np.array(labels)] / q.sum(-1))
    assert np.array(hard_loss(logits, taught)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("loss", [soft_loss, hard_loss])
def test_half_precision_logits_of_sixty_thousand_give_a_finite_loss(loss) -> None:
    logits = mx.array([[6e4, -6e4, 0.0, 1.0]], mx.float16)
    for taught in (logits, logits[:, ::-1]):
        value, gradient = mx.value_and_grad(lambda x, y=taught: loss(x, y).sum())(logits)
        assert np.isfinite(value.item())
        assert np.isfinite(np.array(gradient)).all()


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_batch_in_which_nothing_counts_has_loss_zero_and_no_gradient(labels: str) -> None:
    drafter, network = toy_network({})
    batch = Batch(
        np.zeros((2, 9, H), np.float16), np.zeros((2, 9), np.int32), np.array([1, 0], np.int32)
    )
    objective = Objective(drafter._target, TrainingConfig(labels=labels))
    loss, gradients = nn.value_and_grad(network, lambda: objective.scores(network, batch).loss)()
    assert loss.item() == 0.0
    assert all(not mx.any(part).item() for part in dict(tree_flatten(gradients)).values())


def test_draft_vocabulary_maps_ids_to_columns_and_back() -> None:
    token_ids = mx.array([3, 4, 17, 49])
    columns = Objective(toy_target(), TrainingConfig(), token_ids).columns
    assert columns[token_ids].tolist() == [0, 1, 2, 3]
    others = [token for token in range(50) if token not in (3, 4, 17, 49)]
    assert set(np.array(columns[mx.array(others)]).tolist()) == {-1}
