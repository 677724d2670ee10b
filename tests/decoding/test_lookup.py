"""Lookup proposals against a naive search, their cost, and the rates that rank them."""

import math
import random
import sys

import pytest

from redrafter_mlx.decoding import lookup
from redrafter_mlx.decoding.lookup import (
    DECAY,
    MATCH_LENGTHS,
    PRIOR_CONFIDENCE,
    PRIOR_WEIGHT,
    LookupIndex,
    Proposal,
)


def propose_naively(tokens: list[int], max_tokens: int) -> Proposal | None:
    """Search the whole text anew, and copy from it one token at a time."""
    for length in (4, 3, 2):
        suffix = tokens[-length:]
        for end in range(len(tokens) - 1, length - 1, -1):
            if max_tokens and tokens[end - length : end] == suffix:
                text = list(tokens)
                for source in range(end, end + max_tokens):
                    text.append(text[source])
                return Proposal(tuple(text[len(tokens) :]), length)
    return None


@pytest.mark.parametrize("seed", range(60))
def test_proposals_equal_a_naive_search(seed):
    """Law: however the tokens arrive, each proposal is the one that a search of them all finds."""
    rng = random.Random(seed)
    num_symbols = rng.choice((1, 2, 3, 6, 20))
    largest = rng.choice((num_symbols - 1, 150_000, 2**32 - 1))
    tokens = [largest - rng.randrange(num_symbols) for _ in range(rng.randrange(120))]
    index = LookupIndex(tokens[: (known := rng.randrange(len(tokens) + 1))])
    while True:
        max_tokens = rng.randrange(10)
        assert index.propose(max_tokens) == propose_naively(tokens[:known], max_tokens)
        if known == len(tokens):
            break
        size = rng.choice((0, 1, 1, 2, 7))
        index.extend(tokens[known : known + size])
        known = min(known + size, len(tokens))


@pytest.mark.parametrize(
    ("text", "max_tokens", "expected"),
    [
        ("", 4, None),
        ("a", 4, None),
        ("aa", 4, None),  # no earlier pair
        ("aaa", 4, ("aaaa", 2)),
        ("aaaaaaaa", 3, ("aaa", 4)),
        ("abab", 4, ("abab", 2)),
        ("xabcabcab", 7, ("cabcabc", 4)),
        ("abXabYab", 1, ("Y", 2)),  # the later of two
        ("abcdX-bcdY-abcd", 1, ("X", 4)),  # the longer before the later
        ("abXcaba", 4, None),  # one token alone is no match
        ("abXab", 0, None),
        ("abXab", 1, ("X", 2)),
        ("abXab", 5, ("XabXa", 2)),
    ],
)
def test_worked_examples(text, max_tokens, expected):
    index = LookupIndex([ord(letter) for letter in text])
    proposal = index.propose(max_tokens)
    if proposal is None:
        assert expected is None
    else:
        assert ("".join(map(chr, proposal.tokens)), proposal.match_length) == expected


def test_leading_zeros_are_no_match():
    """Token 0 counts as a token, not as the place before the first one."""
    index = LookupIndex([0, 7])
    index.extend([5, 0, 7])
    assert index.propose(1) == Proposal((5,), 2)
    assert LookupIndex([7, 5, 0, 7]).propose(1) is None


class WatchedList(list[int]):
    """A list that counts the places that are read of it."""

    num_reads = 0


def watch(name):
    plain = getattr(list, name)

    def read(self, *args):
        is_one_place = name == "__getitem__" and not isinstance(args[0], slice)
        self.num_reads += 1 if is_one_place else len(self)
        return plain(self, *args)

    setattr(WatchedList, name, read)


for reader in ("__getitem__", "__iter__", "__contains__", "__reversed__", "index", "count", "copy"):
    watch(reader)


def count_lines(call):
    """Return how many lines of the module ``call`` runs."""
    num_lines = 0

    def trace(frame, event, arg):
        nonlocal num_lines
        num_lines += event == "line"
        return trace if frame.f_code.co_filename == lookup.__file__ else None

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    return num_lines


def test_a_further_token_costs_the_same_after_any_number():
    """Law: neither growth nor a proposal reads the text anew."""
    rng = random.Random(0)
    costs = set()
    for num_tokens in (100, 20_000):
        index = LookupIndex([rng.randrange(50) for _ in range(num_tokens)])
        index._tokens = watched = WatchedList(index._tokens)
        extend_lines = count_lines(lambda index=index: index.extend([1, 2, 3, 1, 2, 3]))
        assert watched.num_reads == 0
        propose_lines = count_lines(lambda index=index: index.propose(5))
        assert watched.num_reads == 5
        costs.add((extend_lines, propose_lines))
    assert len(costs) == 1


def test_confidence_starts_at_the_prior_and_grows_with_the_match():
    index = LookupIndex()
    for length in MATCH_LENGTHS:
        found = (index.confidence(length), index.confidence(length, 2), index.confidence(length, 9))
        first, further = PRIOR_CONFIDENCE[length]
        assert found == pytest.approx((first, further, further))
    firsts, furthers = zip(*(PRIOR_CONFIDENCE[length] for length in (2, 3, 4)), strict=True)
    assert list(firsts) == sorted(firsts)
    assert list(furthers) == sorted(furthers)


def test_confidence_by_hand():
    """Four proposed and two kept test three tokens: one first, two further, one of those right."""
    index = LookupIndex()
    first, further = PRIOR_CONFIDENCE[3]
    index.record(3, num_proposed=4, num_accepted=2)
    assert index.confidence(3) == pytest.approx((first * PRIOR_WEIGHT + 1) / (PRIOR_WEIGHT + 1))
    expected = (further * PRIOR_WEIGHT + 1) / (PRIOR_WEIGHT + 2)
    assert index.confidence(3, depth=2) == pytest.approx(expected)
    index.record(3, num_proposed=2, num_accepted=2)  # all kept: nothing was found wrong
    expected = (further * PRIOR_WEIGHT + DECAY + 1) / (PRIOR_WEIGHT + 2 * DECAY + 1)
    assert index.confidence(3, depth=2) == pytest.approx(expected)
    index.record(3, num_proposed=0, num_accepted=0)
    assert index.confidence(3, depth=2) == pytest.approx(expected)
    assert index.confidence(2) == pytest.approx(PRIOR_CONFIDENCE[2][0])


def test_recent_proposals_count_more():
    rising, falling = LookupIndex(), LookupIndex()
    for accepted in (0, 0, 0, 4, 4, 4):
        rising.record(4, 4, accepted)
        falling.record(4, 4, 4 - accepted)
    for depth in (1, 2):
        assert rising.confidence(4, depth) > falling.confidence(4, depth)


@pytest.mark.parametrize("accepted", [0, 6])
def test_a_long_streak_leaves_the_rate_inside_its_range(accepted):
    """Law: 0 < confidence < 1, so that a deeper row never outranks its parent."""
    index = LookupIndex()
    for _ in range(5_000):
        index.record(2, 6, accepted)
    for depth in (1, 2):
        assert 0.0 < index.confidence(2, depth) < 1.0
    if accepted:
        assert index.confidence(2) > PRIOR_CONFIDENCE[2][0]
        assert index.confidence(2, depth=2) > 0.95
    else:
        assert index.confidence(2) < 0.25


def test_log_probs_are_the_joint_ones():
    index = LookupIndex()
    index.record(2, 3, 1)
    first, further = index.confidence(2), index.confidence(2, depth=2)
    expected = [math.log(first), math.log(first * further), math.log(first * further**2)]
    assert index.log_probs(Proposal((5, 6, 7), 2)) == pytest.approx(expected)
    assert index.log_probs(Proposal((5,), 2)) == pytest.approx(expected[:1])
    assert index.log_probs(Proposal((), 2)) == ()
