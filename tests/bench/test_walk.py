"""A walk along texts counts the rounds that decoding takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrafter_mlx.bench import walk
from redrafter_mlx.bench.walk import walk_corpus
from redrafter_mlx.config import BeamShape
from redrafter_mlx.errors import ConfigError
from redrafter_mlx.training.corpus import Sample
from tests.toy import Oracle, toy_model, toy_target
from tests.training.corpora import corpus_on_disk, greedy_sample, random_samples


def test_walk_of_a_drafter_that_knows_the_answer(tmp_path: Path) -> None:
    target = toy_target()
    sample = greedy_sample(target, [3, 1, 4], 14)
    read = Sample(random_samples(1)[0].tokens, 1, float("nan"))
    corpus_on_disk(tmp_path, target, [read, sample])
    oracle = Oracle(target, sample.tokens[:3].tolist(), sample.answer.tolist())
    shapes = [BeamShape(1, 4), BeamShape(2, 3), BeamShape(1, 1)]
    walks = walk_corpus(toy_model(target, oracle), tmp_path, shapes)
    # 13 tokens behind the first, 4, 3 and 1 a round; the text that was only read is left out.
    assert [walks[shape].num_rounds for shape in shapes] == [4, 5, 13]
    assert {walk.num_emitted for walk in walks.values()} == {13}
    with pytest.raises(ConfigError, match="limit is 0"):
        walk_corpus(toy_model(target, oracle), tmp_path, shapes, limit=0)


def test_corpus_without_a_greedy_answer_is_refused(tmp_path: Path) -> None:
    target = toy_target()
    tokens = random_samples(1)[0].tokens
    corpus_on_disk(tmp_path, target, [Sample(tokens, 1, 0.8), Sample(tokens, 1, float("nan"))])
    with pytest.raises(ConfigError, match="has no greedy answer"):
        walk_corpus(toy_model(target, Oracle(target, [3], [1])), tmp_path, [BeamShape(1, 4)])


def test_model_without_a_drafter_is_refused(tmp_path: Path) -> None:
    corpus_on_disk(tmp_path, toy_target(), random_samples(2))
    with pytest.raises(ConfigError, match="No drafter"):
        walk_corpus(toy_model(toy_target()), tmp_path, [BeamShape(1, 4)])


def test_command_tells_each_shape_or_in_one_line_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = toy_target()
    sample = greedy_sample(target, [3, 1, 4], 14)
    corpus_on_disk(tmp_path / "corpus", target, [sample])
    oracle = Oracle(target, sample.tokens[:3].tolist(), sample.answer.tolist())
    monkeypatch.setattr(walk, "load", lambda *_, **__: toy_model(target, oracle))
    for corpus, code in (("corpus", 0), ("absent", 1)):
        options = ["--corpus", str(tmp_path / corpus), "--shapes", "1,4", "2,3"]
        monkeypatch.setattr("sys.argv", ["walk", *options])
        assert walk.main() == code
    shown = capsys.readouterr()
    assert shown.out == (
        "(1,4): 13 tokens in 4 rounds, 3.2500 tokens a round\n"
        "(2,3): 13 tokens in 5 rounds, 2.6000 tokens a round\n"
    )
    assert shown.err.count("\n") == 1 and "has no corpus.json" in shown.err
