"""Laws of the loop: the text is plain decoding's own, and every end is exact."""

import itertools
import math
import threading
import time
from dataclasses import replace
from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import BeamShape, GenerationConfig, SamplingConfig
from redrafter_mlx.decoding import sampling as sampling_module
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.pace import Pace, RoundCosts
from redrafter_mlx.decoding.prefill import prefill_step
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import PromptError
from redrafter_mlx.models.drafter import DraftStep
from tests.toy import Oracle, toy_drafter, toy_model, toy_target

PROMPT = [7, 3, 9, 1, 22]
SHAPES = [BeamShape(*shape) for shape in [(1, 2), (1, 5), (2, 3), (3, 4), (8, 8), (50, 3)]]
STEP = prefill_step()
GREEDY, SAMPLED = SamplingConfig(), SamplingConfig(temperature=0.8, top_p=0.95, seed=5)
# Every round has the whole shape, and nothing but the drafter drafts.
FIXED = {"is_adaptive": False, "use_lookup": False}


def answer(model, config=None, prompt=PROMPT, stats=None, **changes) -> list[int]:
    """Return the answer's ids and check what the cache is left with."""
    config = config or GenerationConfig(**({"max_tokens": 40} | FIXED | changes))
    kv_cache = model.target.make_kv_cache()
    tokens = list(decode(model, kv_cache, prompt, config, stats or DecodeStats()))
    assert kv_cache.offset == len(prompt) + len(tokens) - 1
    return tokens


@cache
def target_of(seed: int = 0):
    return toy_target(seed)


@cache
def plain(seed=0, *, max_tokens=40, sampling=GREEDY, prompt=tuple(PROMPT)):
    """Return what the target says by itself, each token's pass by its own."""
    model = toy_model(target_of(seed))
    return answer(model, max_tokens=max_tokens, sampling=sampling, prompt=list(prompt))


@cache
def oracle(count: int) -> Oracle:
    """Return what knows the first ``count`` tokens of the answer to PROMPT."""
    return Oracle(target_of(), PROMPT, plain(max_tokens=count))


def naive_greedy(target, count: int) -> list[int]:
    """Recompute the whole sequence for each token, without a cache to go wrong."""
    tokens = list(PROMPT)
    for _ in range(count):
        hidden = target(mx.array(tokens), target.make_kv_cache())
        tokens.append(int(np.array(target.logits(hidden[-1:])).argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("seed", range(4))
def test_plain_greedy_decoding_equals_recomputing_every_token(seed):
    assert plain(seed, max_tokens=20) == naive_greedy(target_of(seed), 20)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_speculative_text_equals_plain_text(shape, sampling):
    """Law: one seed gives one text, with a random drafter of any shape and with none."""
    for seed in range(2):
        model = toy_model(target_of(seed), toy_drafter(target_of(seed), seed + 50))
        assert answer(model, beam=shape, sampling=sampling) == plain(seed, sampling=sampling)


@pytest.mark.parametrize("max_rows", [1, 2, 5, 64])
def test_a_row_budget_does_not_change_the_text(max_rows):
    target = target_of()
    model, stats = toy_model(target, toy_drafter(target)), DecodeStats()
    shape = BeamShape(4, 5, max_rows)
    assert answer(model, beam=shape, stats=stats) == plain()
    assert stats.verified_rows <= max_rows * stats.num_rounds


@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("width", [1, 3])
def test_an_oracle_is_accepted_whole(width, length):
    """Law: rounds = ceil((n - 1) / beam_length), and acceptance is 1 at each depth."""
    model, stats = toy_model(target_of(), oracle(43)), DecodeStats()
    tokens = answer(model, beam=BeamShape(width, length), max_tokens=43, stats=stats)
    assert tokens == plain(max_tokens=43)
    assert stats.num_rounds == math.ceil(42 / length)
    assert stats.tokens_per_round == 42 / stats.num_rounds
    assert stats.acceptance_by_depth == [1.0] * (length - 1)


@pytest.mark.parametrize("max_tokens", range(1, 13))
@pytest.mark.parametrize("length", range(1, 6))
def test_max_tokens_is_exact_at_every_depth_of_an_accepted_run(length, max_tokens):
    model, shape = toy_model(target_of(), oracle(12)), BeamShape(2, length)
    tokens = answer(model, beam=shape, max_tokens=max_tokens)
    assert tokens == plain(max_tokens=12)[:max_tokens]


@pytest.mark.parametrize("length", range(1, 6))
def test_eos_ends_the_answer_at_every_depth_of_an_accepted_run(length):
    """Law: the end token is the last one, nothing behind it is emitted or counted."""
    expected = plain(max_tokens=12)
    for token in set(expected):
        end = expected.index(token) + 1
        stats = DecodeStats()
        model = toy_model(target_of(), oracle(12), eos_ids=[token, 49])
        assert answer(model, beam=BeamShape(2, length), stats=stats) == expected[:end]
        assert stats.emitted_tokens == end
        assert sum(stats.accepted_by_depth) <= end - 1
    kept = answer(model, beam=BeamShape(2, length), max_tokens=12, ignore_eos=True)
    assert kept == expected


@pytest.mark.parametrize("shape", [None, BeamShape(1, 4), BeamShape(3, 3)], ids=str)
def test_closed_after_any_token_the_cache_is_right_and_goes_on(shape):
    """Law: closing leaves the prompt and every yielded token but the last in the cache."""
    target, expected = target_of(), plain(max_tokens=16)
    model = toy_model(target, oracle(16) if shape else None)
    config = GenerationConfig(max_tokens=16, beam=shape, **FIXED)
    for count in range(1, 16):
        kv_cache = target.make_kv_cache()
        decoded = decode(model, kv_cache, PROMPT, config, DecodeStats())
        taken = list(itertools.islice(decoded, count))
        decoded.close()
        assert taken == expected[:count]
        assert kv_cache.offset == len(PROMPT) + count - 1
        rest = decode(model, kv_cache, PROMPT + taken, config, DecodeStats())
        assert list(itertools.islice(rest, 16 - count)) == expected[count:]


def test_a_cache_that_holds_the_whole_prompt_runs_its_last_token_again():
    """Law: a repeated prompt on one cache gives the same answer."""
    target = target_of()
    kv_cache, model = target.make_kv_cache(), toy_model(target, toy_drafter(target))
    config = GenerationConfig(max_tokens=8, beam=BeamShape(2, 3), **FIXED)
    answers = [list(decode(model, kv_cache, PROMPT, config, DecodeStats())) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("count", range(1, 10))
def test_a_draft_token_counts_as_accepted_when_it_is_yielded(count):
    """Law: nothing behind the last yielded token is counted."""
    target, expected = target_of(), plain(max_tokens=12)
    model, stats = toy_model(target, oracle(12)), DecodeStats()
    config = GenerationConfig(max_tokens=12, beam=BeamShape(1, 5), **FIXED)
    decoded = decode(model, target.make_kv_cache(), PROMPT, config, stats)
    assert list(itertools.islice(decoded, count)) == expected[:count]
    decoded.close()
    assert stats.emitted_tokens == count
    in_rounds = (count - 1) - (count - 1) // 5
    assert sum(stats.accepted_by_depth) == in_rounds


def test_closed_before_the_first_token_nothing_is_wrong():
    target = target_of()
    kv_cache = target.make_kv_cache()
    decode(toy_model(target), kv_cache, PROMPT, GenerationConfig(), DecodeStats()).close()
    assert kv_cache.offset == 0


@pytest.mark.parametrize("shape", [None, BeamShape(3, 5)], ids=str)
def test_the_end_of_the_context_ends_the_answer(shape):
    """Law: prompt and answer never pass max_position_embeddings."""
    target = toy_target(max_positions=30)
    drafter = toy_drafter(target) if shape else None
    tokens = answer(toy_model(target, drafter), beam=shape, max_tokens=1000)
    assert len(tokens) == 30 - len(PROMPT)
    assert tokens == plain(max_tokens=30 - len(PROMPT))


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers():
    target = toy_target(max_positions=30)
    with pytest.raises(PromptError, match=r"30 tokens .* 30"):
        answer(toy_model(target), prompt=[1] * 30)
    assert len(answer(toy_model(target), prompt=[1] * 29)) == 1
    with pytest.raises(PromptError, match="empty"):
        answer(toy_model(target), prompt=[])


@pytest.mark.parametrize("size", [STEP - 1, STEP, 2 * STEP + 3])
def test_a_long_prompt_is_prefilled_in_chunks_to_the_same_text(size):
    target = toy_target(max_positions=2048)
    prompt = mx.random.randint(0, 50, (size,), key=mx.random.key(0)).tolist()
    model = toy_model(target, toy_drafter(target))
    tokens = answer(model, prompt=prompt, max_tokens=5, beam=BeamShape(2, 3))
    hidden = target(mx.array(prompt + tokens), target.make_kv_cache())
    assert np.array(target.logits(hidden)).argmax(axis=-1)[size - 1 : -1].tolist() == tokens


def test_a_cached_prefix_changes_nothing_but_the_count():
    """Law: a later prompt over a rewound cache equals a fresh prefill, token for token."""
    target = target_of()
    model = toy_model(target, toy_drafter(target))
    config = GenerationConfig(max_tokens=20, beam=BeamShape(3, 4), **FIXED)
    kv_cache, stats = target.make_kv_cache(), DecodeStats()
    first = list(decode(model, kv_cache, PROMPT, config, DecodeStats()))
    second_prompt = [*PROMPT, *first, 5, 6, 7]
    second = list(decode(model, kv_cache, second_prompt, config, stats))
    assert second == answer(model, config, prompt=second_prompt)
    assert stats.cached_tokens == len(PROMPT) + len(first) - 1
    kv_cache.rewind(3)
    edited = [*PROMPT[:3], 40, 41]
    assert list(decode(model, kv_cache, edited, config, DecodeStats())) == answer(
        model, config, prompt=edited
    )


@pytest.mark.parametrize("shape", [None, BeamShape(3, 4)], ids=str)
def test_a_decode_begun_in_one_thread_is_continued_in_another(shape):
    """Law: MLX's streams belong to threads, but nothing lazy is left to another one."""
    target = target_of()
    model = toy_model(target, toy_drafter(target) if shape else None)
    config = GenerationConfig(max_tokens=24, beam=shape, **FIXED)
    expected = answer(model, config)
    kv_cache, tokens = target.make_kv_cache(), []

    def take(count: int) -> None:
        decoded = decode(model, kv_cache, PROMPT + tokens, config, DecodeStats())
        taken = list(itertools.islice(decoded, count))
        decoded.close()
        tokens.extend(taken)

    for count in (5, 1, 7, 11):
        worker = threading.Thread(target=take, args=(count,))
        worker.start()
        worker.join()
    assert tokens == expected


FLAGS = itertools.product((GREEDY, SAMPLED), *[(True, False)] * 3)


@pytest.mark.parametrize(
    ("seed", "sampling", "use_lookup", "use_drafter", "is_adaptive"),
    [(number % 3, *flags) for number, flags in enumerate(FLAGS)],
)
def test_whatever_drafts_the_text_is_the_targets_own(
    seed, sampling, use_lookup, use_drafter, is_adaptive
):
    """Law: lookups, row budgets, parking and probes change no token."""
    prompt = PROMPT * 3
    expected = plain(seed, prompt=tuple(prompt), max_tokens=90, sampling=sampling)
    model, stats = (
        toy_model(target_of(seed), toy_drafter(target_of(seed), seed + 50)),
        DecodeStats(),
    )
    config = GenerationConfig(
        max_tokens=90,
        sampling=sampling,
        is_adaptive=is_adaptive,
        use_lookup=use_lookup,
        use_drafter=use_drafter,
    )
    assert answer(model, config, prompt=prompt, stats=stats) == expected
    assert stats.emitted_tokens == 90
    assert sum(stats.accepted_by_source.values()) == 89 - stats.num_rounds


def test_a_drafter_that_is_never_right_is_parked_and_probed():
    target = target_of()
    model, stats = toy_model(target, toy_drafter(target)), DecodeStats()
    answer(model, max_tokens=200, is_adaptive=True, stats=stats)
    assert model.pace.is_parked
    assert stats.num_plain_steps > 150
    assert 5 < stats.num_rounds - stats.num_plain_steps < 40


def test_a_parked_drafter_that_is_right_again_returns_within_the_answer():
    target = toy_target()
    expected = answer(toy_model(target), max_tokens=60)
    model = toy_model(target, Oracle(target, PROMPT, list(expected)))
    while not model.pace.is_parked:
        model.pace.record_round(num_tokens=1, cost=1.3, expected_tokens=1.0)
    stats = DecodeStats()
    config = GenerationConfig(max_tokens=60, is_adaptive=True, use_lookup=False)
    assert answer(model, config, stats=stats) == expected
    assert not model.pace.is_parked
    assert stats.num_rounds <= 40


def test_what_pace_a_model_has_is_kept_from_answer_to_answer():
    target = target_of()
    model = toy_model(target, toy_drafter(target))
    answer(model, max_tokens=100, is_adaptive=True)
    stats = DecodeStats()
    answer(model, max_tokens=40, is_adaptive=True, stats=stats)
    assert stats.num_plain_steps >= 35


def test_costs_are_expected_as_they_are_behind_the_prompt():
    costs = RoundCosts(verify=(1.0, 1.1), growth=(0.1, 0.2))
    model = replace(toy_model(target_of()), pace=Pace(costs))
    answer(model, max_tokens=1)
    assert model.pace.costs == costs.at(len(PROMPT)) != costs


@pytest.mark.parametrize("shape", [BeamShape(1, 5), BeamShape(3, 4)], ids=str)
def test_timing_the_parts_changes_nothing_else(shape):
    target = target_of()
    model, stats = toy_model(target, toy_drafter(target)), DecodeStats()
    assert answer(model, beam=shape, timed_every=3, stats=stats) == plain()
    assert stats.num_timed_rounds == math.ceil(stats.num_rounds / 3)
    assert set(stats.part_milliseconds) == {"draft", "verify", "accept", "commit", "host"}
    assert all(value > 0 for value in stats.part_milliseconds.values())


@pytest.mark.parametrize("max_tokens", [8, 40])
def test_the_first_round_is_timed_however_many_plain_steps_come_before(max_tokens):
    """A text of few tokens has few rounds, and an adaptive one begins with plain steps."""
    target, stats = target_of(), DecodeStats()
    model = toy_model(target, oracle(40))
    config = GenerationConfig(max_tokens=max_tokens, timed_every=8, use_lookup=False)
    assert answer(model, config, stats=stats) == plain(max_tokens=max_tokens)
    assert 0 < stats.num_plain_steps < stats.num_rounds
    assert stats.num_timed_rounds == math.ceil((stats.num_rounds - stats.num_plain_steps) / 8)
    assert set(stats.part_milliseconds) == {"draft", "verify", "accept", "commit", "host"}


def test_a_reader_has_no_part_in_the_time_of_a_round(monkeypatch):
    real_clock, skew = time.perf_counter, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: real_clock() + skew)
    target = toy_target()
    model, stats = toy_model(target, toy_drafter(target)), DecodeStats()
    config = GenerationConfig(max_tokens=6, timed_every=1, **FIXED)
    for _ in decode(model, target.make_kv_cache(), PROMPT, config, stats):
        skew += 1000.0
    assert stats.num_timed_rounds > 2
    assert sum(stats.part_milliseconds.values()) < 1e5


class Overflowing(Oracle):
    """A drafter whose scores are no numbers."""

    def step(self, *arguments):
        step = super().step(*arguments)
        return DraftStep(step.state, step.logits * mx.nan)


def test_a_drafter_that_overflows_changes_nothing():
    target = toy_target()
    expected = answer(toy_model(target), max_tokens=60)
    model = toy_model(target, Overflowing(target, PROMPT, expected))
    assert answer(model, max_tokens=60, is_adaptive=True) == expected
    assert answer(model, beam=BeamShape(3, 4), max_tokens=60) == expected


def test_memory_that_is_free_goes_back_now_and_then(monkeypatch):
    """Law: after each chunk of a prompt and every 256 tokens."""
    calls = []
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append(None))
    monkeypatch.setattr("redrafter_mlx.decoding.prefill.prefill_step", lambda: 8)
    answer(toy_model(toy_target(max_positions=1000)), prompt=PROMPT * 5, max_tokens=520)
    assert len(calls) == 3 + 2


@pytest.mark.parametrize("size", [1, 8, 9, 16, 17, 30])
def test_a_long_prompt_is_told_between_its_chunks(monkeypatch, size):
    """Law: told or stopped, the cache holds whole chunks and the text is the same."""
    monkeypatch.setattr("redrafter_mlx.decoding.prefill.prefill_step", lambda: 8)
    model, prompt = toy_model(toy_target()), [3 + place % 40 for place in range(size)]
    config, kv_cache = GenerationConfig(max_tokens=5), model.target.make_kv_cache()
    expected = answer(model, config, prompt)
    told = []

    def tell(num_read, num_tokens):
        assert kv_cache.offset == num_read
        assert num_tokens == size
        told.append(num_read)
        return num_read != 16

    stats = DecodeStats()
    tokens = list(decode(model, kv_cache, prompt, config, stats, tell))
    is_stopped = size > 16
    assert told == [read for read in (8, 16) if read < size]
    assert tokens == ([] if is_stopped else expected)
    assert kv_cache.offset == (16 if is_stopped else size + 4)
    again = DecodeStats()
    assert list(decode(model, kv_cache, prompt, config, again, lambda *counts: None)) == expected
    assert again.cached_tokens == (16 if is_stopped else size - 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_any_shape_budget_and_drafter_gives_the_plain_text(seed):
    """Law: random trees, widths and lengths 1 to 8, budgets 1 to 64, greedy and sampled."""
    rng = np.random.default_rng(seed)
    target = toy_target(seed)
    drafter = toy_drafter(target, seed + 1, num_draft_layers=int(rng.integers(0, 4)))
    shape = BeamShape(*(int(rng.integers(1, 9)) for _ in range(2)), int(rng.integers(1, 65)))
    sampling = SAMPLED if seed % 2 else GREEDY
    prompt = rng.integers(0, 50, int(rng.integers(1, 40))).tolist() * int(rng.integers(1, 4))
    changes = {"max_tokens": 120, "sampling": sampling}
    expected = answer(toy_model(target), prompt=prompt, **changes)
    for is_adaptive in (True, False):
        for use_lookup in (True, False):
            changes |= {"is_adaptive": is_adaptive, "use_lookup": use_lookup, "beam": shape}
            assert answer(toy_model(target, drafter), prompt=prompt, **changes) == expected


@pytest.mark.slow
def test_a_thousand_rounds_in_little_memory_change_nothing():
    """Law: with buffers freed at once and made anew, the text is the same to its end."""
    target = toy_target(max_positions=2048)
    model = toy_model(target, toy_drafter(target))
    expected = answer(toy_model(target), max_tokens=1500)
    old_limit = mx.set_cache_limit(0)
    try:
        stats = DecodeStats()
        assert answer(model, beam=BeamShape(3, 4), max_tokens=1500, stats=stats) == expected
        assert stats.num_rounds > 1000
    finally:
        mx.set_cache_limit(old_limit)


@pytest.mark.slow
def test_compiled_rounds_give_the_same_text_from_shape_to_shape():
    """Law: what was compiled for one number of rows is right for the next."""
    target = toy_target()
    model = toy_model(target, toy_drafter(target))
    expected = answer(toy_model(target))
    mx.enable_compile()
    try:
        for shape in [*SHAPES, *reversed(SHAPES)]:
            assert answer(model, beam=shape) == expected
    finally:
        mx.disable_compile()


@pytest.mark.parametrize("seed", range(2))
def test_a_choice_that_was_not_ranked_far_enough_is_made_again(monkeypatch, seed):
    """Law: with next to no candidates ranked, the text is still plain decoding's."""
    monkeypatch.setattr(sampling_module, "NUM_CANDIDATES", 3)
    target = target_of(seed)
    model = toy_model(target, toy_drafter(target, seed + 50))
    sampling = SamplingConfig(temperature=1.2, top_p=0.97, seed=seed)
    expected = answer(toy_model(target), sampling=sampling)
    assert answer(model, beam=BeamShape(3, 4), sampling=sampling) == expected
