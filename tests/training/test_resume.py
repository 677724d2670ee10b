"""A run that is killed goes on as if it had never stopped, to the last bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.training.checkpoint import RunLog
from redrafter_mlx.weights import load_tensors
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


def slow(phase: str) -> object:
    return pytest.param(phase, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "phase", [slow("features"), "step", slow("measuring"), "checkpoint", slow("writing")]
)
def test_killed_run_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, whole: Path, phase: str
) -> None:
    killed_run.write_corpus(tmp_path)
    kill_in(tmp_path, phase)
    assert not (tmp_path / "drafter").exists()
    killed_run.train(tmp_path, resume=True)
    for file in ("drafter/model.safetensors", "drafter.training/checkpoint.safetensors"):
        ours, theirs = load_tensors(tmp_path / file), load_tensors(whole / file)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert mx.array_equal(ours[name], tensor), name
    logs = [RunLog.lines(folder / "drafter.training") for folder in (tmp_path, whole)]
    assert [line["step"] for line in logs[0]] == list(range(1, killed_run.STEPS + 1))
    assert [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]
    assert [line.get("held_out") for line in logs[0]] == [line.get("held_out") for line in logs[1]]


@pytest.mark.parametrize("phase", ["answering", slow("answer shard")])
def test_killed_distillation_ends_with_the_corpus_of_an_uninterrupted_one(
    tmp_path: Path, phase: str
) -> None:
    killed, quiet = tmp_path / "killed", tmp_path / "quiet"
    kill_in(killed, phase)
    killed_run.answer(killed)
    killed_run.answer(quiet)
    shards = sorted(path.relative_to(quiet) for path in quiet.rglob("*.np[yz]"))
    assert len(shards) == 6
    for shard in shards:
        ours, theirs = (np.load(folder / shard) for folder in (killed, quiet))
        names = ours.files if shard.suffix == ".npz" else [...]
        for name in names:
            np.testing.assert_array_equal(ours[name], theirs[name])


def test_run_that_is_there_is_not_begun_again_unasked(whole: Path) -> None:
    with pytest.raises(CheckpointError, match="--resume"):
        killed_run.train(whole)


def test_run_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    from dataclasses import replace

    from redrafter_mlx.training.train import train_drafter
    from tests.toy import toy_model, toy_target

    killed_run.write_corpus(tmp_path)
    killed_run.train(tmp_path)
    plan = killed_run.plan(tmp_path, resume=True)
    other = replace(plan, config=replace(plan.config, learning_rate=2e-2))
    with pytest.raises(ConfigError, match=r"learning_rate 0\.01, not 0\.02"):
        train_drafter(toy_model(toy_target()), other, lambda _: None, lambda _: None)
