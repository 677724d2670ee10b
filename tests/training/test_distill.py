"""Answers in batches are those that the target gives alone."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.errors import ConfigError
from redrafter_mlx.models.target_config import RopeConfig
from redrafter_mlx.training.batch_decode import decode_batch, prefill_batch
from redrafter_mlx.training.corpus import read_shard
from redrafter_mlx.training.distill import DistillProgress, distill, sample_rows
from redrafter_mlx.training.features import HiddenReader, hidden_path
from redrafter_mlx.training.settings import DistillConfig
from tests.toy import toy_target
from tests.training.corpora import greedy_sample

PROMPTS = [np.array(p, np.int32) for p in ([5], [3, 1, 4, 1, 5, 9, 2], [3, 1, 4, 2], [3, 1], [8])]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qk_norm": True, "qkv_bias": True},
        {"rope": RopeConfig(kind="linear", factor=2.0)},
        {"num_kv_heads": 4, "head_dim": 16},
    ],
)
def test_batched_pass_gives_each_sequence_what_it_gets_alone(changes) -> None:
    """Law: hidden states in a padded batch == those of a fresh pass over each sequence."""
    target = toy_target(seed=2, **changes)
    state = prefill_batch(target, PROMPTS)
    texts = [prompt.tolist() for prompt in PROMPTS]
    random = np.random.default_rng(0)
    for step in range(70):  # past the room that there is at first
        if step == 10:
            state.keep([0, 1, 3, 4])
            texts.pop(2)
        tokens = random.integers(0, 50, len(texts)).astype(np.int32)
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.append(token)
        decode_batch(target, state, mx.array(tokens))
        mx.eval(state.arrays)
        if step in (0, 9, 10, 69):
            for row, text in enumerate(texts):
                alone = target(mx.array(text), target.make_kv_cache())[-1]
                assert mx.allclose(state.hidden[row], alone, atol=1e-3), (step, row)


def run(folder: Path, max_positions: int = 512, **settings: object):
    target = toy_target(seed=4, max_positions=max_positions)
    config = DistillConfig(**{"batch_size": 3, "max_tokens": 12, **settings})  # type: ignore[arg-type]
    done = distill(target, frozenset({40}), PROMPTS, (folder, "x"), config, lambda _: None)
    paths = sorted(folder.glob("shard-*.npz"))
    return target, done, [sample for path in paths for sample in read_shard(path, 50)], paths


def test_greedy_answers_are_those_of_decoding_alone(tmp_path: Path) -> None:
    target, done, samples, paths = run(tmp_path, temperatures=(0.0,))
    assert len(paths) == 2 and done.num_prompts == len(samples) == len(PROMPTS)
    for sample, prompt in zip(samples, PROMPTS, strict=True):
        alone = greedy_sample(target, prompt.tolist(), 12).answer.tolist()
        if 40 in alone:
            alone = alone[: alone.index(40) + 1]
        assert sample.answer.tolist() == alone
        assert sample.tokens[: sample.prompt_length].tolist() == prompt.tolist()
    assert done.num_tokens == sum(sample.num_answer_tokens for sample in samples)
    assert {12} < {sample.num_answer_tokens for sample in samples}, "one must end early"


def test_hidden_states_that_are_kept_are_those_that_train_would_compute(tmp_path: Path) -> None:
    target, _, samples, paths = run(tmp_path)
    kept = np.concatenate([np.load(hidden_path(path)) for path in paths])
    reader = HiddenReader(target)
    expected = np.concatenate([reader.read(sample) for sample in samples])
    np.testing.assert_allclose(kept, expected, atol=5e-3)


def test_temperatures_are_taken_in_turn_and_a_seed_gives_one_corpus(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        _, _, samples, _ = run(tmp_path / name, temperatures=(0.0, 0.8), seed=seed)
        assert [sample.temperature for sample in samples] == pytest.approx([0, 0.8, 0, 0.8, 0])
        texts.append([sample.tokens.tolist() for sample in samples])
    assert texts[0] == texts[1]
    assert texts[0][::2] == texts[2][::2]
    assert texts[0][1::2] != texts[2][1::2]


def test_it_stops_at_the_tokens_asked_for_and_goes_on_when_more_are(tmp_path: Path) -> None:
    _, done, samples, paths = run(tmp_path, num_tokens=5)
    assert len(paths) == 1
    written = paths[0].stat().st_mtime_ns
    _, more, longer, paths = run(tmp_path, num_tokens=10_000)
    assert paths[0].stat().st_mtime_ns == written
    assert len(longer) == len(PROMPTS) and more.new_tokens == more.num_tokens - done.num_tokens
    assert [sample.tokens.tolist() for sample in longer[:3]] == [
        sample.tokens.tolist() for sample in samples
    ]


def test_long_prompts_are_left_out(tmp_path: Path) -> None:
    _, done, samples, _ = run(tmp_path, max_prompt_tokens=4)
    assert done.num_prompts == len(samples) == 4


def test_end_of_the_context_ends_an_answer(tmp_path: Path) -> None:
    """Law: an answer is the beginning of the one that a longer context allows."""
    _, _, samples, _ = run(tmp_path / "long", temperatures=(0.0,))
    _, done, cut, _ = run(tmp_path / "short", temperatures=(0.0,), max_positions=7)
    assert done.num_prompts == 4, "the prompt of seven tokens leaves no room"
    whole = [sample for sample in samples if sample.prompt_length < 7]
    for ours, theirs in zip(cut, whole, strict=True):
        assert ours.tokens.tolist() == theirs.tokens[:7].tolist()
    assert max(len(sample.tokens) for sample in cut) == 7


def test_progress_counts_what_is_there_and_what_is_new(tmp_path: Path) -> None:
    run(tmp_path, num_tokens=5)
    seen: list[DistillProgress] = []
    config = DistillConfig(batch_size=3, max_tokens=12)
    target = toy_target(seed=4)
    done = distill(target, frozenset({40}), PROMPTS, (tmp_path, "x"), config, seen.append)
    there = sum(
        sample.num_answer_tokens for sample in read_shard(tmp_path / "shard-x-00000.npz", 50)
    )
    assert [(one.num_prompts, one.num_tokens - there, one.new_tokens) for one in seen[:2]] == [
        (3, 2, 2),
        (3, 4, 4),
    ]
    assert done.num_tokens == there + done.new_tokens == seen[-1].num_tokens


def test_settings_that_change_the_answers_change_the_part() -> None:
    base = DistillConfig()
    assert base.part("a") == DistillConfig(num_tokens=9).part("a")
    others = [
        DistillConfig(seed=1),
        DistillConfig(temperatures=(0.0,)),
        DistillConfig(max_tokens=9),
    ]
    assert len({base.part("a"), base.part("b"), *(other.part("a") for other in others)}) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperatures": ()}, "No temperature"),
        ({"temperatures": (-1.0,)}, "temperature is -1.0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_tokens": 0}, "num_tokens is 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DistillConfig(**settings)


def test_draws_follow_the_distribution() -> None:
    """20,000 draws of four probabilities: each within 4 standard deviations."""
    probs, num = np.array([0.1, 0.0, 0.6, 0.3]), 20_000
    logits = mx.broadcast_to(mx.log(mx.array(probs + 1e-30)), (num, 4)).astype(mx.float32)
    draws = mx.random.uniform(shape=(num,), key=mx.random.key(3))
    counts = np.bincount(np.array(sample_rows(logits, draws)), minlength=4)
    limit = 4 * np.sqrt(num * probs * (1 - probs)) + 0.5
    assert (np.abs(counts - num * probs) <= limit).all()
    impossible = mx.array([[-1e9, 0.0, -1e9]])
    assert sample_rows(impossible, mx.array([0.0])).tolist() == [1]
    edges = sample_rows(logits[:2], mx.array([0.0, 1.0 - 2**-24]))
    assert edges.tolist() == [0, 3]
