"""Speeds at several contexts: all sides on one prompt, the cache at the length that is named."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.bench import anatomy, context_prompts, contexts
from redrafter_mlx.bench.context_prompts import (
    MAX_QUESTION,
    Context,
    check_room,
    random_context,
    random_twin,
    real_context,
)
from redrafter_mlx.bench.context_times import (
    SHAPES,
    ShapeTimes,
    Timing,
    attention_seconds,
    measure,
    time_rounds,
)
from redrafter_mlx.bench.contexts import report
from redrafter_mlx.config import PLAIN_BEAM_SHAPE, GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import ConfigError
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.prompts import Prompt
from tests.toy import Oracle, toy_drafter, toy_model, toy_target

LENGTH, NUM_SHARED, NUM_TOKENS = 40, 31, 6


def answer_to(target: Decoder, prompt: list[int], num_tokens: int) -> list[int]:
    """Decode plainly from an empty cache."""
    config = GenerationConfig(max_tokens=num_tokens, beam=PLAIN_BEAM_SHAPE, ignore_eos=True)
    model = toy_model(target)
    return list(decode(model, target.make_kv_cache(), prompt, config, DecodeStats()))


@pytest.fixture(scope="module")
def context() -> Context:
    target = toy_target()
    rng = np.random.default_rng(1)
    text = rng.integers(50, size=NUM_SHARED).tolist()
    prompts = [text + rng.integers(50, size=LENGTH - NUM_SHARED).tolist() for _ in range(3)]
    model = toy_model(target, toy_drafter(target))
    return Context("toy", model, target.make_kv_cache(), prompts, NUM_SHARED)


def test_all_sides_answer_each_prompt_at_the_wanted_context(context: Context) -> None:
    """Law: what a side reads from the cache is its prompt, whatever was decoded there before."""
    target, told = context.model.target, list[str]()
    found = measure(context, NUM_TOKENS, told.append)
    assert len(found) == 3
    assert told == ["reading", *(f"prompt {number} of 3" for number in (1, 2, 3))]
    for prompt, times in zip(context.prompts, found, strict=True):
        answer = answer_to(target, prompt, NUM_TOKENS + 12)[1:]
        assert list(times) == list(SHAPES)
        for shape_times in times.values():
            assert shape_times.is_text_equal
            assert set(shape_times.timed.part_seconds) == {
                "draft", "verify", "accept", "host", "commit"
            }  # fmt: skip
            for timing in (shape_times.plain, shape_times.rounds, shape_times.timed):
                assert timing.context == LENGTH
                assert timing.tokens == answer[: len(timing.tokens)]
                assert len(timing.tokens) >= NUM_TOKENS


def test_what_is_shared_is_read_once(context: Context) -> None:
    """Law: a prompt is brought to its last token, from where it differs from the one before."""
    context.read(0)
    shared = [array[:, :, :NUM_SHARED] + 0 for array in context.kv_cache.arrays]
    rows = []
    target = context.model.target

    class Counted:
        def __call__(self, tokens: mx.array, kv_cache: Any) -> mx.array:
            rows.append((kv_cache.offset, tokens.shape[0]))
            return target(tokens, kv_cache)

    model: Any = replace(context.model, target=Counted())  # type: ignore[arg-type]
    assert replace(context, model=model).read(1) == context.prompts[1]
    assert rows == [(NUM_SHARED, LENGTH - 1 - NUM_SHARED)]
    assert context.kv_cache.offset == LENGTH - 1
    for before, array in zip(shared, context.kv_cache.arrays, strict=True):
        assert mx.array_equal(before, array[:, :, :NUM_SHARED])


def test_only_whole_rounds_are_timed(context: Context) -> None:
    """Law: with a drafter that is always right, a round of length 4 brings 4 tokens."""
    target, prompt = context.model.target, context.read(2)
    answer = answer_to(target, prompt, 40)
    model = toy_model(target, Oracle(target, prompt, answer))
    config = GenerationConfig(
        beam=SHAPES[0], ignore_eos=True, use_lookup=False, is_adaptive=False, timed_every=1
    )
    timing = time_rounds(replace(context, model=model), prompt, config, 7)
    assert (timing.num_rounds, timing.num_rows) == (2, 8)
    assert timing.tokens == answer[1:9]
    # The parts are those of the same two rounds.
    assert 0.0 < sum(timing.part_seconds.values()) <= timing.seconds


def test_random_context_is_as_long_as_its_prompts() -> None:
    target = toy_target()
    twin = random_twin(toy_model(target, toy_drafter(target, draft_vocab_size=20)))
    assert twin.target.config == replace(target.config, max_positions=32_768)
    context = random_context(twin, 120, 2)
    assert context.num_tokens == 120
    assert context.kv_cache.offset == context.num_shared == 88
    first, second = context.prompts
    assert first[:88] == second[:88]
    assert first[88:] != second[88:]
    for times in measure(context, NUM_TOKENS, lambda what: None):
        for found in times.values():
            assert {found.plain.context, found.rounds.context, found.timed.context} == {120}


def test_random_twin_needs_a_drafter() -> None:
    with pytest.raises(ConfigError, match="toy has no drafter"):
        random_twin(toy_model(toy_target()))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """Make texts of letters, a token each; one of three questions is too long."""
    found = [Prompt("abcd", "code"), Prompt("x" * (MAX_QUESTION + 1), "code"), Prompt("ef", "code")]
    monkeypatch.setattr(context_prompts, "bench_prompts", lambda: found)
    for module in (context_prompts, anatomy):
        monkeypatch.setattr(module, "chat_prompt", lambda model, text: [ord(x) for x in text])
    return toy_model(toy_target())


def test_real_prompts_are_different_questions_behind_one_text(asked: LoadedModel) -> None:
    context = real_context(asked, 30, 2)
    first, second = ("".join(map(chr, prompt)) for prompt in context.prompts)
    assert len(first) == len(second) == context.num_tokens == 30
    assert first.endswith("abcd") and second.endswith("ef")
    assert context.num_shared == 26
    assert first[:26] == second[:26]
    assert context.kv_cache.offset == 0


def test_more_prompts_than_short_questions_are_refused(asked: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="prompts is 3; choose a value from 1 to 2"):
        real_context(asked, 30, 3)


@pytest.mark.parametrize("num_tokens", [MAX_QUESTION, 500])
def test_a_context_without_room_is_refused(num_tokens: int) -> None:
    with pytest.raises(ConfigError, match=f"context is {num_tokens}; choose a value from 101 to 4"):
        check_room(num_tokens, 20, max_positions=512)


@pytest.mark.parametrize(
    ("shape", "num_rows", "mask"),
    [(PLAIN_BEAM_SHAPE, 1, None), (SHAPES[0], 4, "causal"), (SHAPES[1], 6, (1, 1, 6, 46))],
)
def test_attention_is_over_the_whole_context_in_every_layer(
    context: Context, monkeypatch: pytest.MonkeyPatch, shape: Any, num_rows: int, mask: Any
) -> None:
    context.read(0)
    context.kv_cache.start_pass(num_rows, keeps_rows=False)
    calls = []

    def attend(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any) -> mx.array:
        shown = mask.shape if isinstance(mask, mx.array) else mask
        calls.append((q.shape[1:3], k.shape[1:3], v.shape[1:3], shown))
        return q

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attend)
    assert attention_seconds(context, shape, num_rows) > 0.0
    held = (2, LENGTH + num_rows)
    assert set(calls) == {((4, num_rows), held, held, mask)}
    assert len(calls) % 2 == 0  # two layers


def test_a_row_is_in_plain_steps_of_its_context() -> None:
    plain = Timing(40, [1, 2, 3, 4], num_rounds=4, num_rows=4, seconds=0.4, part_seconds={})
    rounds = Timing(40, [1, 2, 3, 4], num_rounds=2, num_rows=8, seconds=0.3, part_seconds={})
    parts = {"draft": 0.04, "verify": 0.25, "accept": 0.01, "host": 0.02, "commit": 0.01}
    timed = replace(rounds, tokens=[1, 2, 3, 5], seconds=0.33, part_seconds=parts)
    times = ShapeTimes(plain, rounds, timed, plain_attention=0.02, attention=0.05)
    slow = replace(times, plain=replace(plain, seconds=0.8))
    text = report({"40": [dict.fromkeys(SHAPES, one) for one in (times, times, slow)]})
    cells: dict[str, str] = {}
    for table in text.split("## ")[1:]:
        head, _, row, other = (line.split(" | ") for line in table.splitlines()[2:6])
        assert row[:2] == ["| 40", "(1, 4)"]
        assert other[1:] == ["(2, 4)", *row[2:]]
        cells |= dict(zip(head[2:], row[2:], strict=True))
    assert cells == {
        "plain tokens/s": "10.00 (5.00 to 10.00)",
        "drafting tokens/s": "13.33 (13.33 to 13.33)",
        "times plain": "1.33 (1.33 to 2.67)",
        "tokens a round |": "2.00 (2.00 to 2.00) |",
        "round": "1.50 (0.75 to 1.50)",
        "draft": "0.200",
        "verify": "1.250",
        "rest": "0.200",
        "times plain by verify alone |": "1.600 |",
        "in a step": "0.200",
        "in a round": "0.500",
        "ms left of a step": "80.00 (80.00 to 180.00)",
        "ms left of a round |": "100.00 (100.00 to 100.00) |",
    }
    assert text.endswith("equal in 0 of 6 cases.\n")
    assert not times.is_text_equal
    assert replace(times, timed=rounds).is_text_equal


def run(monkeypatch: pytest.MonkeyPatch, model: LoadedModel, *options: str) -> int:
    monkeypatch.setattr(contexts, "load", lambda name, drafter: model)
    monkeypatch.setattr(sys, "argv", ["contexts", *options])
    return contexts.main()


@pytest.fixture
def drafting() -> LoadedModel:
    target = toy_target()
    return toy_model(target, toy_drafter(target))


RANDOM = ("--contexts", "--random-contexts")
FEW = ("--prompts", "1", "--tokens", "3")


def test_the_tables_have_a_row_a_shape_at_each_context(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drafting: LoadedModel
) -> None:
    assert run(monkeypatch, drafting, *RANDOM, "101", "120", *FEW) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split(" | ")[:2] for line in lines if line.startswith("| 1")]
    assert names == 3 * [
        [f"| {length}, random", shape] for length in (101, 120) for shape in ("(1, 4)", "(2, 4)")
    ]
    assert lines[-1] == "The texts of all sides were equal in 4 of 4 cases."


def test_what_is_done_is_shown_where_it_is_broken_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drafting: LoadedModel
) -> None:
    def broken_off(context: Context, *rest: Any) -> Any:
        if context.num_tokens == 120:
            raise KeyboardInterrupt
        return measure(context, *rest)

    monkeypatch.setattr(contexts, "measure", broken_off)
    assert run(monkeypatch, drafting, *RANDOM, "101", "120", *FEW) == 130
    told = capsys.readouterr().out
    assert "| 101, random | (2, 4) |" in told
    assert "| 120" not in told


def test_no_twin_is_made_where_none_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: LoadedModel, drafting: LoadedModel
) -> None:
    """It takes as much memory as the model in float32."""
    monkeypatch.delattr(contexts, "random_twin")
    options = ("--contexts", "101", "--random-contexts", *FEW)
    assert run(monkeypatch, drafting, *options) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*RANDOM, "120", "99999"), "context is 99999; choose a value from 101 to 32736."),
        ((*RANDOM, "120", "--tokens", "0"), "tokens is 0; choose a value from 1 to 10000."),
        ((*RANDOM, "120", "--prompts", "0"), "prompts is 0; choose a value from 1 to 10000."),
    ],
)
def test_what_is_out_of_range_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    drafting: LoadedModel,
    options: tuple[str, ...],
    message: str,
) -> None:
    assert run(monkeypatch, drafting, *options) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"{message}\n"


def test_a_model_without_a_drafter_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: LoadedModel
) -> None:
    """Its rounds would be plain steps by another name."""
    assert run(monkeypatch, asked, "--contexts", "101", "--random-contexts", *FEW) == 1
    assert capsys.readouterr().err == "toy has no drafter; name its folder by --drafter.\n"
