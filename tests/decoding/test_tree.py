"""The tree, its pruning, and the walk that accepts from it."""

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.decoding.tree import DraftTree, accept


def tree_of(tokens: list[int], parents: list[int], log_probs: list[float] | None = None):
    scores = np.array(log_probs or [0.0] * len(tokens), np.float32)
    return DraftTree.from_rows(np.array(tokens, np.int32), np.array(parents, np.int32), scores)


def walk(tree: DraftTree, chosen: list[int]) -> list[int]:
    accepted = accept(tree, mx.array(chosen))
    path = [row for row in np.array(accepted.path).tolist() if row >= 0]
    assert accepted.last_row.tolist() == path[-1:]
    return path


def test_depths_and_ancestors_follow_from_the_parents():
    tree = tree_of([9, 1, 2, 3, 4], [0, 0, 0, 1, 3])
    assert tree.depths.tolist() == [0, 1, 1, 2, 3]
    assert [np.flatnonzero(row).tolist() for row in tree.ancestors] == [
        [0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 3, 4],
    ]  # fmt: skip
    assert not tree.is_chain
    assert tree_of([9, 1, 2], [0, 0, 1]).is_chain


def test_pruning_keeps_the_most_probable_rows_that_form_a_tree():
    tree = tree_of([9, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3], [0.0, -1.0, -2.0, -1.5, -2.5, -4.0])
    kept = tree.pruned(max_rows=4, max_depth=9)
    assert kept.tokens.tolist() == [9, 1, 2, 3]
    assert kept.parents.tolist() == [0, 0, 0, 1]
    assert tree.pruned(max_rows=9, max_depth=1).tokens.tolist() == [9, 1, 2]
    assert tree.pruned(max_rows=1, max_depth=0).tokens.tolist() == [9]
    assert tree.pruned(max_rows=6, max_depth=3) is tree


def test_a_child_that_rounds_above_its_parent_never_comes_without_it():
    tree = tree_of([9, 1, 2, 3], [0, 0, 0, 1], [0.0, -2.0, -1.0, -0.5])
    assert tree.pruned(max_rows=2, max_depth=9).tokens.tolist() == [9, 2]
    assert tree.pruned(max_rows=3, max_depth=9).tokens.tolist() == [9, 1, 2]


@pytest.mark.parametrize("seed", range(30))
def test_pruning_a_random_tree_gives_a_tree_within_its_limits(seed):
    """Law: each kept row's path is the path that it had."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 65))
    parents = [0, *(int(rng.integers(0, row)) for row in range(1, size))]
    tokens = list(range(size))
    tree = tree_of(tokens, parents, (-rng.random(size)).tolist())
    max_rows, max_depth = int(rng.integers(1, 65)), int(rng.integers(0, 12))
    kept = tree.pruned(max_rows, max_depth)
    assert 1 <= kept.num_rows <= max_rows
    assert kept.max_depth <= max_depth
    for row, token in enumerate(kept.tokens):
        before = set(tree.tokens[tree.ancestors[token]].tolist())
        assert set(kept.tokens[kept.ancestors[row]].tolist()) == before


def test_the_walk_follows_the_tokens_chosen_at_the_parents():
    tree = tree_of([9, 1, 2, 3, 4], [0, 0, 0, 2, 3])
    assert walk(tree, [2, 7, 3, 4, 8]) == [0, 2, 3, 4]
    assert walk(tree, [2, 7, 5, 4, 8]) == [0, 2]
    assert walk(tree, [6, 7, 3, 4, 8]) == [0]
    assert walk(tree_of([9], [0]), [5]) == [0]


def test_a_row_deeper_down_never_matches_across_a_gap():
    tree = tree_of([9, 1, 2, 3], [0, 0, 1, 2])
    assert walk(tree, [5, 2, 3, 4]) == [0]


def test_of_two_rows_with_one_prefix_the_lowest_chooses_and_all_children_go_on():
    tree = tree_of([9, 1, 1, 2, 3], [0, 0, 0, 1, 2])
    assert walk(tree, [1, 3, 2, 0, 0]) == [0, 1, 4]
    assert walk(tree, [1, 2, 3, 0, 0]) == [0, 1, 3]
    assert walk(tree, [1, 7, 3, 0, 0]) == [0, 1]


def test_row_0_is_never_its_own_child():
    tree = tree_of([9, 9], [0, 0])
    assert walk(tree, [9, 9]) == [0, 1]


def test_a_chain_shares_the_rows_that_are_there_and_raises_their_chance():
    tree = tree_of([9, 1, 2, 3], [0, 0, 0, 1], [0.0, -1.0, -2.0, -3.0])
    merged = tree.with_chain([1, 3, 5, 6], [-0.5, -0.6, -0.7, -0.8])
    assert merged.tokens.tolist() == [9, 1, 2, 3, 5, 6]
    assert merged.parents.tolist() == [0, 0, 0, 1, 3, 4]
    assert np.allclose(merged.log_probs, [0.0, -0.5, -2.0, -0.6, -0.7, -0.8])
    assert merged.is_looked_up.tolist() == [False, False, False, False, True, True]


def test_a_chain_that_is_there_already_adds_nothing_and_lowers_nothing():
    tree = tree_of([9, 1, 3], [0, 0, 1], [0.0, -0.1, -0.2])
    merged = tree.with_chain([1, 3], [-1.0, -2.0])
    assert merged.tokens.tolist() == [9, 1, 3]
    assert np.allclose(merged.log_probs, [0.0, -0.1, -0.2])
    assert not merged.is_looked_up.any()


@pytest.mark.parametrize("seed", range(20))
def test_a_merged_tree_has_no_duplicates_and_keeps_every_path(seed):
    """Law: merging adds one path, and no prefix is there twice."""
    rng = np.random.default_rng(seed)
    tree = DraftTree.of_root(0)
    chains = [rng.integers(0, 3, 5).tolist() for _ in range(6)]
    for chain in chains:
        tree = tree.with_chain(chain, (-np.arange(1.0, 6.0)).tolist())
    assert tree.twins.tolist() == list(range(tree.num_rows))
    paths = [tree.tokens[row_ancestors].tolist()[1:] for row_ancestors in tree.ancestors]
    assert all(chain in paths for chain in chains)
    assert tree.num_rows == 1 + len({tuple(c[:k]) for c in chains for k in range(1, 6)})


def naive_walk(tree: DraftTree, chosen: list[int]) -> list[int]:
    """Walk level by level, all rows of a prefix together, as ``accept`` must."""
    path, alive = [0], [0]
    while True:
        token = chosen[alive[0]]
        alive = [
            row
            for row in range(1, tree.num_rows)
            if int(tree.parents[row]) in alive and int(tree.tokens[row]) == token
        ]
        if not alive:
            return path
        path.append(alive[0])


@pytest.mark.parametrize("seed", range(60))
def test_the_walk_equals_a_naive_one_on_random_trees_with_duplicates(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 65))
    parents = [0, *(int(rng.integers(0, row)) for row in range(1, size))]
    tree = tree_of(rng.integers(0, 3, size).tolist(), parents)
    chosen = rng.integers(0, 3, size).tolist()
    assert walk(tree, chosen) == naive_walk(tree, chosen)


def test_rows_are_ordered_depth_first_the_likelier_before_its_siblings():
    tree = tree_of([9, 1, 2, 3, 4, 5], [0, 0, 0, 2, 1, 2], [0.0, -2.0, -1.0, -3.0, -4.0, -1.5])
    moved = tree.likeliest_first()
    assert moved.tokens.tolist() == [9, 2, 5, 3, 1, 4]
    assert moved.parents.tolist() == [0, 0, 1, 1, 0, 4]
    assert moved.likeliest_first() is moved
    assert tree_of([9], [0]).likeliest_first().num_rows == 1


@pytest.mark.parametrize("seed", range(30))
def test_another_order_of_rows_is_the_same_tree(seed):
    """Law: the paths and their log-probabilities stay, and parents come first."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    parents = [0, *(int(rng.integers(0, row)) for row in range(1, size))]
    tree = tree_of(list(range(size)), parents, (-rng.random(size)).tolist())
    moved = tree.likeliest_first()

    def paths(one: DraftTree) -> dict[tuple[int, ...], float]:
        rows = range(one.num_rows)
        return {
            tuple(sorted(one.tokens[one.ancestors[row]].tolist())): float(one.log_probs[row])
            for row in rows
        }

    assert paths(moved) == paths(tree)
