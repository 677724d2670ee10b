"""The promise: what is emitted follows the target's own law, whatever was drafted.

A toy target of 8 tokens is run over every prefix up to depth 2 once, and its logits are the
truth. Then ``choose`` and ``accept`` decide 200,000 times over a fixed draft, many draws in one
batch, and the three tokens that follow are counted against the truth by chi-square. Two
acceptance rules that are known to be wrong must fail the same test.
"""

from __future__ import annotations

import itertools
import math

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import BeamShape, GenerationConfig, SamplingConfig
from redrafter_mlx.decoding.beam import draft
from redrafter_mlx.decoding.sampling import choose
from redrafter_mlx.decoding.tree import Accepted, DraftTree, accept
from redrafter_mlx.generation import generate
from tests.toy import toy_drafter, toy_model, toy_target

VOCAB, DEPTH = 8, 3
NUM_DRAWS, BATCH = 200_000, 20_000
PROMPT = [1, 5, 2, 0, 6]
SMALLEST_P = 0.001


@pytest.fixture(scope="module")
def target():
    return toy_target(seed=11, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def prefix_logits(target) -> dict[tuple[int, ...], np.ndarray]:
    """Return the target's logits behind PROMPT and each prefix of up to two tokens."""
    prefixes = [p for n in range(DEPTH) for p in itertools.product(range(VOCAB), repeat=n)]
    parents = [prefixes.index(p[:-1]) if p else 0 for p in prefixes]
    tokens = [p[-1] if p else PROMPT[-1] for p in prefixes]
    tree = DraftTree.from_rows(
        np.array(tokens, np.int32), np.array(parents, np.int32), np.zeros(len(tokens), np.float32)
    )
    kv_cache = target.make_kv_cache()
    target(mx.array(PROMPT[:-1]), kv_cache)
    kv_cache.commit(range(len(PROMPT) - 1))
    logits = np.array(target.logits(target(mx.array(tree.tokens), kv_cache, tree)))
    return dict(zip(prefixes, logits, strict=True))


def exact_probs(logits: np.ndarray, config: SamplingConfig) -> np.ndarray:
    """Filter, then temper, in float64 and without the code under test."""
    probs = np.exp(logits.astype(np.float64) - logits.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    mass_above = np.cumsum(probs[order]) - probs[order]
    kept = order[mass_above < config.top_p] if config.top_p < 1.0 else order
    tempered = np.zeros(VOCAB)
    tempered[kept] = probs[kept] ** (1.0 / config.temperature)
    return tempered / tempered.sum()


def exact_joint(prefix_logits, config):
    """Return (8, 8, 8), the law of the next three tokens."""
    joint = np.ones((VOCAB,) * DEPTH)
    for prefix, logits in prefix_logits.items():
        shape = (VOCAB,) + (1,) * (DEPTH - 1 - len(prefix))
        joint[prefix] *= exact_probs(logits, config).reshape(shape)
    return joint


def chi_square_p(counts: np.ndarray, law: np.ndarray) -> float:
    """Return the p-value of counts under a law; rare cells are pooled, impossible ones fatal.

    Source: Wilson and Hilferty's normal approximation, PNAS 17 (1931).
    """
    counts, expected = counts.ravel(), law.ravel() * counts.sum()
    if counts[expected == 0.0].any():
        return 0.0
    is_rare = expected < 20.0
    observed = np.append(counts[~is_rare], counts[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    is_used = expected > 5.0
    terms = (observed - expected)[is_used] ** 2 / expected[is_used]
    freedom = len(terms) - 1
    spread = 2.0 / (9.0 * freedom)
    z = ((terms.sum() / freedom) ** (1 / 3) - (1.0 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def rows_logits(tree, prefix_logits):
    """Return the true logits at each row; beyond the depth counted they do not matter."""
    rows = []
    for row in range(tree.num_rows):
        prefix = tuple(tree.tokens[tree.ancestors[row]][1:].tolist())
        rows.append(prefix_logits[prefix[: DEPTH - 1]])
    return np.stack(rows)


def choose_in_batch(logits: np.ndarray, steps: np.ndarray, start: int, config) -> np.ndarray:
    """Choose for BATCH draws at once: each draw has positions of its own.

    Args:
        logits: (rows, 8) for all draws, or (BATCH, rows, 8).
        steps: (rows,), which of a draw's positions each row stands at.
        start: First draw's number.
        config: Its seed is that of the whole run.
    """
    stride = int(steps.max()) + 1
    draws = np.arange(BATCH)[:, None] * stride
    depths = (draws + steps[None]).astype(np.int32)
    all_rows = np.broadcast_to(logits, (BATCH, *logits.shape[-2:])).reshape(-1, VOCAB)
    chosen = choose(mx.array(all_rows), config, start * 64, depths.ravel())
    return np.array(chosen).reshape(BATCH, -1)


def emit(tree, prefix_logits, config, start, *, steps, rule=accept):
    """Return (BATCH, 3): what a round emits, filled up by plain steps of the target."""
    chosen = choose_in_batch(rows_logits(tree, prefix_logits), steps, start, config)
    path = walk_in_batch(tree, chosen, rule)
    count = (path[:, 1:] >= 0).sum(axis=1)
    draws = np.arange(BATCH)
    emitted = np.full((BATCH, DEPTH + tree.max_depth + 1), -1)
    emitted[:, : tree.max_depth] = np.where(path >= 0, tree.tokens[path], -1)[:, 1:]
    emitted[draws, count] = chosen[draws, path[draws, count]]
    return fill_up(emitted[:, :DEPTH], count + 1, prefix_logits, config, start)


def walk_in_batch(tree: DraftTree, chosen: np.ndarray, rule) -> np.ndarray:
    """Return (BATCH, max_depth + 1) paths; draws that no child can tell apart share a walk."""
    is_child = np.zeros((tree.num_rows, VOCAB), bool)
    is_child[tree.parents[1:], tree.tokens[1:]] = True
    matters = np.where(is_child[np.arange(tree.num_rows), chosen], chosen, VOCAB)
    kinds, kind_of = np.unique(matters, axis=0, return_inverse=True)
    paths = np.stack([np.array(rule(tree, mx.array(kind)).path) for kind in kinds])
    return paths[kind_of.ravel()]


def fill_up(emitted, count, prefix_logits, config, start):
    for place in range(1, DEPTH):
        logits = np.stack([prefix_logits[tuple(row)] for row in _clean(emitted[:, :place])])
        plain = choose_in_batch(logits[:, None], np.array([0]), start + 10**7 * place, config)
        missing = count <= place
        emitted[missing, place] = plain[missing, 0]
    return emitted


def _clean(rows):
    return np.maximum(rows, 0).tolist()


def law_p(tree, prefix_logits, config, *, steps=None, rule=accept, emit=emit):
    counts = np.zeros((VOCAB,) * DEPTH)
    steps = tree.depths if steps is None else steps
    for start in range(0, NUM_DRAWS, BATCH):
        emitted = emit(tree, prefix_logits, config, start, steps=steps, rule=rule)
        np.add.at(counts, tuple(emitted.T), 1)
    return chi_square_p(counts, exact_joint(prefix_logits, config))


def drafted_tree(target, width: int, length: int) -> DraftTree:
    drafter = toy_drafter(target, seed=4)
    hidden = mx.random.normal((1, 32), key=mx.random.key(3))
    drafted = draft(drafter, hidden, mx.array([PROMPT[-1]]), BeamShape(width, length))
    tokens = np.append(np.int32(PROMPT[-1]), np.array(drafted.tokens))
    parents = np.append(np.int32(0), np.array(drafted.parents))
    log_probs = np.append(np.float32(0), np.array(drafted.log_probs))
    return DraftTree.from_rows(tokens, parents, log_probs)


def tree_with_duplicates(prefix_logits):
    """Return a tree in which two rows spell each of the likeliest first and second tokens."""
    first = int(prefix_logits[()].argmax())
    second, third = np.argsort(-prefix_logits[(first,)])[:2].tolist()
    tokens = [PROMPT[-1], first, first, second, third, second]
    parents = [0, 0, 0, 1, 2, 2]
    return DraftTree.from_rows(
        np.array(tokens, np.int32), np.array(parents, np.int32), np.zeros(6, np.float32)
    )


SETTINGS = [
    SamplingConfig(temperature=temperature, top_p=top_p, seed=seed)
    for seed, (temperature, top_p) in enumerate(itertools.product((0.7, 1.0), (1.0, 0.9)))
]
SHAPES = [(1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize("config", SETTINGS, ids=lambda c: f"T{c.temperature}-p{c.top_p}")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_drafted_trees_keep_the_targets_law(target, prefix_logits, shape, config):
    """Law: the three tokens behind ``next_token`` are distributed as the target's own."""
    tree = drafted_tree(target, *shape)
    assert law_p(tree, prefix_logits, config) > SMALLEST_P


@pytest.mark.parametrize("rows_agree", [True, False])
@pytest.mark.parametrize("config", SETTINGS, ids=lambda c: f"T{c.temperature}-p{c.top_p}")
def test_duplicate_children_keep_the_targets_law(prefix_logits, config, rows_agree):
    """Law: also where duplicates choose differently, as rounding can make them."""
    tree = tree_with_duplicates(prefix_logits)
    steps = tree.depths if rows_agree else np.arange(tree.num_rows)
    assert law_p(tree, prefix_logits, config, steps=steps) > SMALLEST_P


def accept_longest(tree: DraftTree, chosen: mx.array) -> Accepted:
    """Take the row with the longest match: wrong where duplicates choose differently."""
    depths, ancestors = mx.array(tree.depths), mx.array(tree.ancestors)
    is_wrong = (mx.array(tree.tokens) != chosen[mx.array(tree.parents)]) & (depths > 0)
    is_right = ~(ancestors & is_wrong[None]).any(axis=1)
    row = mx.argmax(mx.where(is_right, depths, -1), keepdims=True).astype(mx.int32)
    places = mx.arange(tree.max_depth + 1)
    at_depth = ancestors[row] & (depths[None] == places[:, None])
    rows = mx.argmax(at_depth, axis=1).astype(mx.int32)
    return Accepted(path=mx.where(places <= depths[row], rows, -1), last_row=row)


def test_picking_the_longest_of_two_duplicates_fails(prefix_logits):
    tree = tree_with_duplicates(prefix_logits)
    steps = np.arange(tree.num_rows)
    p_value = law_p(tree, prefix_logits, SETTINGS[2], steps=steps, rule=accept_longest)
    assert p_value < 1e-9


def emit_by_ratio(tree, prefix_logits, config, start, *, steps, rule):
    """Keep the draft token with probability p / q, else draw from the rest of p over q."""
    rng = np.random.default_rng(start)
    p, q = exact_probs(prefix_logits[()], config), np.full(VOCAB, np.nan)
    token = int(tree.tokens[1])
    q[token] = np.exp(tree.log_probs[1])
    q[np.arange(VOCAB) != token] = (1.0 - q[token]) / (VOCAB - 1)
    rest = np.maximum(p - q, 0.0)
    is_kept = rng.random(BATCH) < p[token] / q[token]
    emitted = np.full((BATCH, DEPTH), -1)
    emitted[:, 0] = np.where(is_kept, token, rng.choice(VOCAB, BATCH, p=rest / rest.sum()))
    return fill_up(emitted, np.ones(BATCH), prefix_logits, config, start)


def test_accepting_by_the_ratio_of_target_and_drafter_fails(target, prefix_logits):
    """The p/q test is exact for drafts sampled from q; a beam's best token is not one."""
    tree = drafted_tree(target, 1, 2)
    assert law_p(tree, prefix_logits, SETTINGS[2], emit=emit_by_ratio) < 1e-9


@pytest.mark.parametrize("shape", [None, (2, 3)], ids=str)
def test_generate_itself_keeps_the_targets_law(target, prefix_logits, shape):
    """Law: 5,000 seeds of the whole program, the first token given by the prompt."""
    drafter = toy_drafter(target, seed=4) if shape else None
    model = toy_model(target, drafter)
    beam = BeamShape(*shape) if shape else None
    law = exact_joint(prefix_logits, SamplingConfig(temperature=1.0, top_p=0.9))
    counts = np.zeros_like(law)
    for seed in range(5_000):
        sampling = SamplingConfig(temperature=1.0, top_p=0.9, seed=seed)
        config = GenerationConfig(max_tokens=DEPTH, sampling=sampling, beam=beam, is_adaptive=False)
        counts[generate(model, PROMPT, config).tokens] += 1
    assert chi_square_p(counts, law) > SMALLEST_P
