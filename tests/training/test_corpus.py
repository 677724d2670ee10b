"""Corpora on disk: whole shards, the target that made them, hidden states beside them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.loading.target import identify
from redrafter_mlx.training.batches import SampleSet
from redrafter_mlx.training.corpus import (
    create_corpus,
    open_corpus,
    read_shard,
    require_target,
    shard_path,
    write_shard,
)
from redrafter_mlx.training.distill import distill
from redrafter_mlx.training.features import (
    FeatureProgress,
    HiddenReader,
    hidden_path,
    prepare_features,
)
from redrafter_mlx.training.settings import DistillConfig, DrafterShape
from redrafter_mlx.training.train import TrainingPlan, prepare
from tests.toy import toy_model, toy_target
from tests.training.corpora import corpus_on_disk, random_samples

V = 50


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def test_shard_reads_back_as_written(tmp_path: Path) -> None:
    samples = [
        replace(sample, temperature=t)
        for sample, t in zip(random_samples(3), (0.0, 0.8, float("nan")), strict=True)
    ]
    path = shard_path(tmp_path, "own-ab", 7)
    write_shard(path, samples)
    assert path.name == "shard-own-ab-00007.npz"
    for ours, theirs in zip(read_shard(path, V), samples, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        assert ours.prompt_length == theirs.prompt_length
        np.testing.assert_allclose(ours.temperature, theirs.temperature)
    assert [sample.is_greedy for sample in read_shard(path, V)] == [True, False, False]


def test_answers_of_the_pytorch_trials_are_read(shared: Path) -> None:
    samples = read_shard(shared / "data/distill/smollm2-135m.npz", 49152)
    assert len(samples) == 4544
    assert sum(sample.num_answer_tokens for sample in samples) == 777_940


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.full(9, 50, np.int32)}, "ids up to 50.*vocabulary has 50"),
        ({"tokens": np.full(9, -1, np.int32)}, "vocabulary has 50"),
        ({"lengths": np.array([4, 4], np.int32)}, "do not add up"),
        ({"prompt_lengths": np.array([5, 1], np.int32)}, "do not add up"),
        ({"prompt_lengths": np.array([0, 1], np.int32)}, "without a prompt"),
        ({"lengths": np.array([4.0, 5.0])}, "something else than ids"),
        ({"temperature": np.zeros(3, np.float32)}, "different lengths"),
        ({"tokens": None}, "no .npz with tokens"),
    ],
)
def test_broken_shard_is_refused(tmp_path: Path, changes, message: str) -> None:
    arrays = {
        "tokens": np.arange(9, dtype=np.int32),
        "lengths": np.array([4, 5], np.int32),
        "prompt_lengths": np.array([1, 1], np.int32),
        "temperature": np.zeros(2, np.float32),
    } | changes
    np.savez(tmp_path / "x.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(CheckpointError, match=message):
        read_shard(tmp_path / "x.npz", V)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 cut short", b"no archive"])
def test_file_that_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(CheckpointError, match="make it again"):
        read_shard(tmp_path / "x.npz", V)


def test_corpus_of_another_target_is_refused(tmp_path: Path) -> None:
    target, other = toy_target(), toy_target()
    target.fingerprint, other.fingerprint = "aaaa", "bbbb"
    corpus_on_disk(tmp_path / "corpus", target, random_samples(3))
    plan = TrainingPlan((tmp_path / "corpus",), tmp_path / "drafter")
    with pytest.raises(CheckpointError, match="fingerprint is aaaa, not by toy with bbbb"):
        prepare(toy_model(other), plan, lambda _: None)
    assert not plan.run_folder.exists()
    with pytest.raises(CheckpointError, match="fingerprint"):
        create_corpus(tmp_path / "corpus", identify("toy", other))
    wider = replace(identify("toy", target), vocab_size=99)
    with pytest.raises(CheckpointError, match="vocab_size is 50, not by toy with 99"):
        require_target(open_corpus(tmp_path / "corpus"), wider)


def test_what_a_killed_beginner_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "corpus.json.partial-01234567").touch()
    create_corpus(tmp_path, identify("toy", toy_target()))
    assert open_corpus(tmp_path).target == identify("toy", toy_target())


def test_folder_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(CheckpointError, match="is no corpus"):
        create_corpus(tmp_path, identify("toy", toy_target()))
    with pytest.raises(CheckpointError, match=r"has no corpus\.json"):
        open_corpus(tmp_path)


def test_hidden_states_are_those_of_a_fresh_pass_over_each_sequence() -> None:
    """Law: what is shared with the sequence before is not run again and changes nothing."""
    target, reader = toy_target(), HiddenReader(toy_target())
    system = [9, 8, 7, 6, 5]
    for sample in random_samples(8):
        tokens = np.array([*system, *sample.tokens], np.int32)
        sample = replace(sample, tokens=tokens, prompt_length=5 + sample.prompt_length)
        whole = target(mx.array(tokens), target.make_kv_cache())
        expected = np.array(whole)[sample.prompt_length - 1 : -1]
        np.testing.assert_allclose(reader.read(sample), expected, atol=5e-3)


def test_text_that_was_just_read_is_read_again() -> None:
    """Its whole answer is in the cache, and its hidden states are wanted all the same."""
    reader, sample = HiddenReader(toy_target()), random_samples(3)[2]
    first, again = reader.read(sample), reader.read(sample)
    assert len(again) == sample.num_answer_tokens
    np.testing.assert_allclose(first, again, atol=2e-3)


def test_hidden_states_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = toy_target()
    corpus = corpus_on_disk(tmp_path, target, random_samples(9))
    first = prepare_features(target, corpus, 1 << 30, lambda _: None)
    monkeypatch.setattr(HiddenReader, "read", None)
    again = prepare_features(target, corpus, 1 << 30, lambda _: None)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.hidden, other.hidden)


def test_hidden_states_beyond_the_limit_are_run_anew(tmp_path: Path) -> None:
    target = toy_target()
    corpus = corpus_on_disk(tmp_path, target, random_samples(12))
    kept = prepare_features(target, corpus, 1 << 30, lambda _: None)
    assert kept[0].hidden is not None
    num_bytes = kept[0].hidden.nbytes
    for shard in corpus.shards:
        hidden_path(shard).unlink()
    limited = prepare_features(target, corpus, num_bytes, lambda _: None)
    assert [shard.hidden is not None for shard in limited] == [True, False, False]
    assert sum(path.stat().st_size for path in (tmp_path / "hidden").iterdir()) < num_bytes + 999
    everything = prepare_features(target, corpus, 1 << 30, lambda _: None)
    assert all(shard.hidden is not None for shard in everything)
    used = prepare_features(target, corpus, 0, lambda _: None)
    assert all(shard.hidden is not None for shard in used), "what is there is used"
    stored, anew = SampleSet(target, kept), SampleSet(target, limited)
    for index in range(12):
        np.testing.assert_allclose(stored.hidden(index), anew.hidden(index), atol=2e-3)


@pytest.mark.parametrize("num_kept", [1, 3])
def test_progress_ends_at_what_is_kept(tmp_path: Path, num_kept: int) -> None:
    """Else the time left would be told for shards that are not read at all."""
    target, samples = toy_target(), random_samples(12)
    corpus = corpus_on_disk(tmp_path, target, samples)
    num_positions = sum(sample.num_answer_tokens for sample in samples[: 4 * num_kept])
    seen: list[FeatureProgress] = []
    prepare_features(target, corpus, 2 * 32 * num_positions, seen.append)
    assert [one.num_positions for one in seen] == [num_positions] * 4 * num_kept
    assert seen[-1].num_done == num_positions


def test_limit_of_hidden_states_is_for_all_corpora_together(tmp_path: Path) -> None:
    """Three corpora of as many bytes each, and room for just as many: all are kept."""
    target, folders = toy_target(), [tmp_path / name for name in "abc"]
    samples = random_samples(4)
    for folder in folders:
        corpus_on_disk(folder, target, samples)
    num_bytes = 3 * 2 * 32 * sum(sample.num_answer_tokens for sample in samples)
    for limit, num_files in ((num_bytes, 3), (num_bytes - 1, 2)):
        plan = TrainingPlan(
            tuple(folders),
            tmp_path / "drafter",
            DrafterShape(head="own"),
            max_hidden_bytes=limit,
        )
        prepare(toy_model(target), plan, lambda _: None)
        files = list(tmp_path.glob("*/hidden/*.npy"))
        assert len(files) == num_files
        for file in files:
            file.unlink()
        shutil.rmtree(plan.run_folder)


@pytest.mark.parametrize("array", [np.zeros((3, 32), np.float16), np.zeros((9, 32)), None])
def test_hidden_states_of_another_corpus_are_refused(tmp_path: Path, array) -> None:
    target = toy_target()
    corpus = corpus_on_disk(tmp_path, target, random_samples(4))
    file = hidden_path(corpus.shards[0])
    file.parent.mkdir()
    if array is None:
        file.write_bytes(b"x")
    else:
        np.save(file, array)
    with pytest.raises(CheckpointError, match="remove it"):
        prepare_features(target, corpus, 1 << 30, lambda _: None)


def test_hidden_states_that_half_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    target = toy_target()
    target.model.norm.weight = 1e6 * target.model.norm.weight
    with pytest.raises(CheckpointError, match="do not fit half precision"):
        HiddenReader(target).read(random_samples(1)[0])
    config = DistillConfig(batch_size=1, max_tokens=2)
    with pytest.raises(CheckpointError, match="do not fit half precision"):
        distill(target, frozenset(), [np.array([1])], (tmp_path, "x"), config, lambda _: None)
    assert not list(tmp_path.glob("shard-*"))
