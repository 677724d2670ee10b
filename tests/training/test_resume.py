"""A run that is killed goes on as if it had never stopped, to the last bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.training.checkpoint import (
    Best,
    Checkpoint,
    RunLog,
    load_checkpoint,
    save_checkpoint,
)
from redrafter_mlx.training.settings import DrafterShape
from redrafter_mlx.training.train import digest_of, train_drafter
from redrafter_mlx.weights import load_tensors
from tests.toy import toy_model, toy_target
from tests.training import killed_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    killed_run.write_corpus(folder)
    killed_run.train(folder)
    return folder


def kill_in(folder: Path, phase: str) -> None:
    """Run until the process kills itself in a phase."""
    command = [sys.executable, "-m", "tests.training.killed_run", str(folder), phase]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


def assert_same_run(ours: Path, theirs: Path) -> None:
    """Check weights and optimiser bit for bit, and that each step is logged once."""
    for file in ("drafter/model.safetensors", "drafter.training/checkpoint.safetensors"):
        left, right = load_tensors(ours / file), load_tensors(theirs / file)
        assert left.keys() == right.keys()
        for name, tensor in right.items():
            assert mx.array_equal(left[name], tensor), name
    logs = [RunLog.lines(folder / "drafter.training") for folder in (ours, theirs)]
    assert [line["step"] for line in logs[0]] == list(range(1, killed_run.STEPS + 1))
    assert [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]
    assert [line.get("held_out") for line in logs[0]] == [line.get("held_out") for line in logs[1]]


def assert_nothing_is_left(folder: Path) -> None:
    """Check that no part of a file lies about; an empty one may be somebody's who begins."""
    assert not [path for path in folder.rglob("*.partial-*") if path.stat().st_size]


@pytest.mark.parametrize(
    "phase",
    [
        slow("features"),
        slow("step"),
        slow("measuring"),
        "checkpoint",
        slow("moving"),
        slow("writing"),
    ],
)
def test_killed_run_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, whole: Path, phase: str
) -> None:
    killed_run.write_corpus(tmp_path)
    kill_in(tmp_path, phase)
    assert not (tmp_path / "drafter").exists()
    killed_run.train(tmp_path, resume=True)
    assert_same_run(tmp_path, whole)
    assert_nothing_is_left(tmp_path)


def test_hidden_states_run_anew_do_not_depend_on_what_was_read_before(tmp_path: Path) -> None:
    """A resumed run reads other sequences first than one that was not interrupted."""
    for name in ("killed", "whole"):
        killed_run.write_corpus(tmp_path / name)
    kill_in(tmp_path / "killed", "step on hidden states run anew")
    killed_run.train(tmp_path / "killed", resume=True, keeps_hidden=False)
    killed_run.train(tmp_path / "whole", keeps_hidden=False)
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("phase", "num_files"),
    [
        ("answering", 6),
        slow("answer shard", 6),
        slow("answer to be moved", 6),
        slow("answers begun", 6),
        ("reading", 3),
    ],
)
def test_killed_collection_ends_with_the_corpus_of_an_uninterrupted_one(
    tmp_path: Path, phase: str, num_files: int
) -> None:
    killed, quiet = tmp_path / "killed", tmp_path / "quiet"
    killed.mkdir()
    quiet.mkdir()
    kill_in(killed, phase)
    for folder in (killed, quiet):
        (killed_run.read if phase == "reading" else killed_run.answer)(folder)
    shards = sorted(path.relative_to(quiet) for path in quiet.rglob("*.np[yz]"))
    assert len(shards) == num_files
    for shard in shards:
        ours, theirs = (np.load(folder / shard) for folder in (killed, quiet))
        names = ours.files if shard.suffix == ".npz" else [...]
        for name in names:
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert_nothing_is_left(killed)


@pytest.mark.parametrize("score", [0.0, 5 / 3, 1.7])
def test_score_of_the_best_weights_comes_back_to_the_last_bit(tmp_path: Path, score: float) -> None:
    """Rounded down, it would let a resumed run, and it alone, take a later tie for better."""
    weights = {"w": mx.array([1.0, -2.0])}
    save_checkpoint(
        tmp_path, Checkpoint(7, weights, weights, weights, Best(3, score, {"w": mx.array([5.0])}))
    )
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.best.step, found.best.tokens_per_round) == (7, 3, score)
    assert found.best.weights["w"].item() == 5.0
    assert found.means["w"].tolist() == [1.0, -2.0]


def test_run_that_is_there_is_not_begun_again_unasked(whole: Path) -> None:
    with pytest.raises(CheckpointError, match="--resume"):
        killed_run.train(whole)


def test_run_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    killed_run.write_corpus(tmp_path)
    killed_run.train(tmp_path)
    plan = killed_run.plan(tmp_path, resume=True)
    other = replace(plan, config=replace(plan.config, learning_rate=2e-2))
    with pytest.raises(ConfigError, match=r"learning_rate 0\.01, not 0\.02"):
        train_drafter(toy_model(toy_target()), other, lambda _: None, lambda _: None)
    target = toy_target()
    target.set_dtype(mx.float16)
    with pytest.raises(ConfigError, match=r"dtype 'mlx\.core\.float32', not 'mlx\.core\.float16'"):
        train_drafter(toy_model(target), plan, lambda _: None, lambda _: None)
    (tmp_path / "corpus/shard-toy-00003.npz").unlink()
    with pytest.raises(ConfigError, match=r"corpus \(4 shards\), not .*corpus \(3 shards\)"):
        killed_run.train(tmp_path, resume=True)


def test_run_is_not_resumed_from_a_drafter_that_has_become_another(tmp_path: Path) -> None:
    def train(out: str, source: str | None, *, resume: bool = False) -> None:
        shape, start = (DrafterShape(), tmp_path / source) if source else (plan.shape, None)
        wanted = replace(
            plan, out=tmp_path / out, shape=shape, init_from=start, resume=resume,
            config=replace(plan.config, steps=1),
        )  # fmt: skip
        train_drafter(toy_model(toy_target(), eos_ids=[2]), wanted, lambda _: None, lambda _: None)

    killed_run.write_corpus(tmp_path)
    plan = killed_run.plan(tmp_path)
    train("source", None)
    train("further", "source")
    shutil.rmtree(tmp_path / "source")
    (tmp_path / "further").rename(tmp_path / "source")
    with pytest.raises(ConfigError, match="has init_digest '"):
        train("further", "source", resume=True)
    weights = tmp_path / "source/model.safetensors"
    digest, whole = digest_of(weights), digest_of(tmp_path / "source")
    assert digest != whole
    weights.rename(tmp_path / "named otherwise")
    assert digest_of(tmp_path / "named otherwise") == digest
    assert digest_of(tmp_path / "absent") not in {digest, whole}


@pytest.mark.slow
def test_run_goes_on_with_the_shards_that_it_began_with(tmp_path: Path, whole: Path) -> None:
    """The corpus may have grown meanwhile."""
    killed_run.write_corpus(tmp_path)
    kill_in(tmp_path, "step")
    first = tmp_path / "corpus/shard-toy-00000.npz"
    shutil.copy(first, tmp_path / "corpus/shard-toy-00004.npz")
    killed_run.train(tmp_path, resume=True)
    assert_same_run(tmp_path, whole)
