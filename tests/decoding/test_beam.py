"""Beam search: the same beams as an exhaustive one, without a prefix twice."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import BeamShape
from redrafter_mlx.decoding.beam import best_continuations, draft
from tests.toy import toy_drafter, toy_target

VOCAB = 11


def tensors_of(drafter):
    network = drafter._network
    return {
        "w": np.array(network.rnn_w.weight),
        "u": np.array(network.rnn_u.weight),
        "b": np.array(network.rnn_u.bias),
        "blocks": [(np.array(x.linear.weight), np.array(x.linear.bias)) for x in network.blocks],
        "head": np.array(network.lm_head[-1].weight),
    }


def silu(x):
    return x / (1 + np.exp(-x))


def reference_log_probs(tensors, embedding, hidden, prefix):
    """Score the token after ``prefix`` as the paper's formulas do, all in float64."""
    state = np.zeros_like(hidden)
    for token in prefix:
        state = silu(tensors["w"] @ embedding[token] + tensors["u"] @ state + tensors["b"])
    x = np.concatenate([hidden, state])
    for weight, bias in tensors["blocks"]:
        x = x + silu(weight @ x + bias)
    logits = tensors["head"] @ x
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def reference_beams(tensors, embedding, hidden, next_token, shape):
    beams = {(next_token,): 0.0}
    for _ in range(shape.num_draft_steps):
        grown = {}
        for prefix, score in beams.items():
            log_probs = reference_log_probs(tensors, embedding, hidden, prefix)
            grown |= {(*prefix, t): score + log_probs[t] for t in range(VOCAB)}
        best = sorted(grown, key=grown.get, reverse=True)[: shape.beam_width]
        beams = {prefix: grown[prefix] for prefix in best}
    return beams


def drafted_beams(drafted, next_token, shape):
    tokens = [next_token, *drafted.tokens.tolist()]
    parents = [0, *drafted.parents.tolist()]
    scores = [0.0, *drafted.log_probs.tolist()]
    paths = {0: (next_token,)}
    for row in range(1, len(tokens)):
        paths[row] = (*paths[parents[row]], tokens[row])
    assert len(set(paths.values())) == len(paths)
    return {path: scores[row] for row, path in paths.items() if len(path) == shape.beam_length}


@pytest.mark.parametrize(("width", "length"), list(itertools.product((1, 2, 3, 11), (2, 3, 4))))
def test_beams_equal_those_of_an_exhaustive_search(width, length):
    target = toy_target(vocab_size=VOCAB)
    drafter = toy_drafter(target)
    tensors, embedding = tensors_of(drafter), np.array(target.model.embed_tokens.weight)
    shape = BeamShape(width, length)
    for seed in range(3):
        hidden = mx.random.normal((1, 32), key=mx.random.key(seed))
        drafted = draft(drafter, hidden, mx.array([seed]), shape)
        ours = drafted_beams(drafted, seed, shape)
        expected = reference_beams(tensors, embedding, np.array(hidden[0]), seed, shape)
        assert ours.keys() == expected.keys()
        for path, score in expected.items():
            assert abs(ours[path] - score) < 1e-4


def test_fewer_candidates_than_beams_are_all_kept():
    target = toy_target(vocab_size=VOCAB)
    drafted = draft(toy_drafter(target), mx.ones((1, 32)), mx.array([0]), BeamShape(64, 3))
    assert drafted.tokens.shape == (VOCAB + 64,)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_scores_are_normalised_in_float32(dtype):
    logits = (mx.random.normal((1, 5000), key=mx.random.key(2)) * 8).astype(dtype)
    best = best_continuations(logits, mx.array([0.0]), 3)
    exact = np.array(logits.astype(mx.float32))[0].astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    assert np.abs(np.array(best.log_probs) - exact[np.array(best.columns)]).max() < 1e-5


def test_joint_scores_are_log_probabilities():
    """Law: over all continuations the probabilities sum to the beam's own."""
    logits = mx.random.normal((2, VOCAB)) * 4
    best = best_continuations(logits, mx.array([0.0, -1.0]), 2 * VOCAB)
    sums = np.zeros(2)
    np.add.at(sums, np.array(best.beams), np.exp(np.array(best.log_probs)))
    assert np.allclose(sums, [1.0, np.exp(-1.0)], atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"exit_dim": 32},
        {"exit_dim": 48},
        {"num_draft_layers": 0},
        {"num_draft_layers": 0, "exit_dim": 32},
        {"rnn": False},
        {"head": "tied", "exit_dim": 32, "head_scale": 0.7},
    ],
)
def test_the_split_first_layer_gives_what_the_whole_one_gives(changes):
    """Law: h's part computed once a draft changes nothing."""
    target = toy_target()
    drafter = toy_drafter(target, **changes)
    network = drafter._network
    hidden = mx.random.normal((1, 32), key=mx.random.key(8))
    state = mx.random.normal((3, 32), key=mx.random.key(9))
    tokens = mx.array([4, 7, 9])
    step = drafter.step(hidden, drafter.context(hidden), state, tokens)
    new_state = network.next_state(state, target.embed(tokens))
    x = mx.concatenate([mx.broadcast_to(hidden, state.shape), new_state], axis=-1)
    x = network.input_proj(x) if "input_proj" in network else x
    for block in network.blocks:
        x = block(x)
    is_tied = drafter.config.head == "tied"
    logits = target.logits(x) * 0.7 if is_tied else network.lm_head[-1](x)
    assert mx.abs(step.logits - logits).max().item() < 1e-4
    assert mx.abs(step.state - new_state).max().item() < 1e-6


@pytest.mark.parametrize("head", ["own", "tied"])
def test_a_draft_vocabulary_proposes_only_its_tokens_by_the_full_heads_scores(head):
    target = toy_target()
    kept = [3, 8, 20, 21, 44]
    changes = {"head": head, "exit_dim": 32 if head == "tied" else 64}
    full = toy_drafter(target, **changes)
    cut_network = type(full._network)(
        type(full.config)(**(full.config.to_dict() | {"draft_vocab_size": len(kept)}))
    )
    cut_network.update(full._network.parameters())
    cut_network.draft_vocab = mx.array(kept)
    if head == "own":
        cut_network.lm_head[-1].weight = full._network.lm_head[-1].weight[mx.array(kept)]
    cut = type(full)(cut_network, target)
    hidden, token = mx.ones((1, 32)), mx.array([5])
    whole = full.step(hidden, full.context(hidden), full.first_state(hidden), token)
    part = cut.step(hidden, cut.context(hidden), cut.first_state(hidden), token)
    assert mx.abs(whole.logits[:, mx.array(kept)] - part.logits).max().item() < 1e-5
    drafted = draft(cut, hidden, token, BeamShape(2, 4))
    assert set(drafted.tokens.tolist()) <= set(kept)
