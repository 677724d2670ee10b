"""The promise: what is emitted follows the target's own law, whatever was drafted.

A toy target of 8 tokens is run over every prefix up to depth 2 once, and its logits are the
truth. Then ``choose`` and ``accept`` decide 200,000 times over a fixed draft, many draws in one
batch, and the three tokens that follow are counted against the truth by chi-square. Two
acceptance rules that are known to be wrong must fail the same test. What 5,000 seeds choose by
the truth is counted, too, and the whole program must give those texts, seed by seed.
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
PREFIXES = [p for n in range(DEPTH) for p in itertools.product(range(VOCAB), repeat=n)]


@pytest.fixture(scope="module")
def target():
    return toy_target(seed=11, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def prefix_logits(target) -> np.ndarray:
    """Return (73, 8), the target's logits behind PROMPT and each of PREFIXES."""
    parents = [PREFIXES.index(p[:-1]) if p else 0 for p in PREFIXES]
    tokens = [p[-1] if p else PROMPT[-1] for p in PREFIXES]
    tree = DraftTree.from_rows(
        np.array(tokens, np.int32), np.array(parents, np.int32), np.zeros(len(tokens), np.float32)
    )
    kv_cache = target.make_kv_cache()
    target(mx.array(PROMPT[:-1]), kv_cache)
    kv_cache.commit(range(len(PROMPT) - 1))
    return np.array(target.logits(target(mx.array(tree.tokens), kv_cache, tree)))


def places(prefixes: np.ndarray) -> np.ndarray:
    """Return (draws,), the place among PREFIXES of each row of (draws, up to 2)."""
    length = prefixes.shape[1]
    return (VOCAB**length - 1) // (VOCAB - 1) + prefixes @ VOCAB ** np.arange(length)[::-1]


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
    for prefix, logits in zip(PREFIXES, prefix_logits, strict=True):
        shape = (VOCAB,) + (1,) * (DEPTH - 1 - len(prefix))
        joint[prefix] *= exact_probs(logits, config).reshape(shape)
    return joint


def chi_square_p(texts: np.ndarray, law: np.ndarray) -> float:
    """Return the p-value of texts under a law; rare ones are pooled, impossible ones fatal.

    Args:
        texts: (draws, 3).
        law: (8, 8, 8).

    Source: Wilson and Hilferty's normal approximation, PNAS 17 (1931).
    """
    cells = np.ravel_multi_index(tuple(texts.T), law.shape)
    counts, expected = np.bincount(cells, minlength=law.size), law.ravel() * len(texts)
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
    paths = [tree.tokens[tree.ancestors[row]][1:DEPTH] for row in range(tree.num_rows)]
    return np.concatenate([prefix_logits[places(path[None])] for path in paths])


def choose_in_batch(logits: np.ndarray, steps: np.ndarray, start: int, config) -> np.ndarray:
    """Choose for many draws at once: each draw has positions of its own.

    Args:
        logits: (draws, rows, 8).
        steps: (rows,), which of a draw's positions each row stands at.
        start: First draw's number.
        config: Its seed is that of the whole run.
    """
    draws = np.arange(len(logits))[:, None] * (int(steps.max()) + 1)
    depths = (draws + steps).astype(np.int32)
    all_rows = mx.array(logits.reshape(-1, VOCAB))
    return np.array(choose(all_rows, config, start * 64, depths.ravel())).reshape(depths.shape)


def emit(tree, prefix_logits, config, start, *, steps, rule=accept):
    """Return (BATCH, 3): what a round emits, filled up by plain steps of the target."""
    logits = rows_logits(tree, prefix_logits)
    chosen = choose_in_batch(np.broadcast_to(logits, (BATCH, *logits.shape)), steps, start, config)
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
    codes = matters @ (VOCAB + 1) ** np.arange(tree.num_rows)
    _, firsts, kind_of = np.unique(codes, return_index=True, return_inverse=True)
    paths = np.stack([np.array(rule(tree, mx.array(kind)).path) for kind in matters[firsts]])
    return paths[kind_of]


def fill_up(emitted, count, prefix_logits, config, start):
    for place in range(1, DEPTH):
        missing = np.flatnonzero(count <= place)
        logits = prefix_logits[places(emitted[missing, :place]), None]
        plain = choose_in_batch(logits, np.array([0]), start + 10**7 * place, config)
        emitted[missing, place] = plain[:, 0]
    return emitted


def law_p(tree, prefix_logits, config, *, steps=None, rule=accept, emit=emit):
    steps = tree.depths if steps is None else steps
    texts = [
        emit(tree, prefix_logits, config, start, steps=steps, rule=rule)
        for start in range(0, NUM_DRAWS, BATCH)
    ]
    return chi_square_p(np.concatenate(texts), exact_joint(prefix_logits, config))


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
    first = int(prefix_logits[0].argmax())
    second, third = np.argsort(-prefix_logits[PREFIXES.index((first,))])[:2].tolist()
    tokens = [PROMPT[-1], first, first, second, third, second]
    parents = [0, 0, 0, 1, 2, 2]
    return DraftTree.from_rows(
        np.array(tokens, np.int32), np.array(parents, np.int32), np.zeros(6, np.float32)
    )


SETTINGS = [
    SamplingConfig(temperature=temperature, top_p=top_p, seed=seed)
    for seed, (temperature, top_p) in enumerate(itertools.product((0.7, 1.0), (1.0, 0.9)))
]
# Each shape and each setting, not each pair: a rule that bends one bends them all.
CASES = [
    ((1, 2), SETTINGS[1]),
    ((2, 3), SETTINGS[2]),
    ((3, 4), SETTINGS[0]),
    ((3, 4), SETTINGS[3]),
]


def name_of(value: object) -> str:
    if isinstance(value, SamplingConfig):
        return f"T{value.temperature}-p{value.top_p}"
    return str(value)


@pytest.mark.parametrize(("shape", "config"), CASES, ids=name_of)
def test_drafted_trees_keep_the_targets_law(target, prefix_logits, shape, config):
    """Law: the three tokens behind ``next_token`` are distributed as the target's own."""
    tree = drafted_tree(target, *shape)
    assert law_p(tree, prefix_logits, config) > SMALLEST_P


@pytest.mark.parametrize("rows_agree", [True, False])
@pytest.mark.parametrize("config", [SETTINGS[1], SETTINGS[2]], ids=name_of)
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
    p, q = exact_probs(prefix_logits[0], config), np.full(VOCAB, np.nan)
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


def nucleus(seed: int) -> SamplingConfig:
    return SamplingConfig(temperature=1.0, top_p=0.9, seed=seed)


@pytest.fixture(scope="module")
def texts_of_seeds(prefix_logits) -> np.ndarray:
    """Return (5000, 3), what each seed chooses behind PROMPT by the true logits."""
    logits = mx.array(prefix_logits)
    depths = np.array([len(prefix) for prefix in PREFIXES], np.int32)
    chosen = np.array(
        mx.stack([choose(logits, nucleus(s), len(PROMPT) - 1, depths) for s in range(5_000)])
    )
    texts = np.empty((len(chosen), 0), int)
    for _ in range(DEPTH):
        next_tokens = chosen[np.arange(len(chosen)), places(texts)]
        texts = np.column_stack([texts, next_tokens])
    return texts


def test_seeds_keep_the_targets_law(prefix_logits, texts_of_seeds):
    """Law: so are the first three tokens over the seeds, at the same positions."""
    assert chi_square_p(texts_of_seeds, exact_joint(prefix_logits, nucleus(0))) > SMALLEST_P


@pytest.mark.parametrize("shape", [None, (2, 3)], ids=str)
def test_generate_itself_keeps_the_targets_law(target, texts_of_seeds, shape):
    """Law: the whole program gives each seed the text that the truth gives it."""
    model = toy_model(target, toy_drafter(target, seed=4) if shape else None)
    beam = BeamShape(*shape) if shape else None
    texts = [
        generate(
            model,
            PROMPT,
            GenerationConfig(
                max_tokens=DEPTH, sampling=nucleus(seed), beam=beam, is_adaptive=False
            ),
        ).tokens
        for seed in range(150)
    ]
    assert np.array_equal(texts, texts_of_seeds[:150])
