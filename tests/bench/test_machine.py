"""What a bench says of where it runs and of what it runs."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest

from redrafter_mlx.bench import machine
from redrafter_mlx.bench.machine import (
    describe_drafter,
    describe_target,
    git_commit,
    this_machine,
)
from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.models.drafter import Drafter, RecurrentDrafter
from redrafter_mlx.sizes import total_memory_bytes
from tests.bench.tiny import tiny_model
from tests.toy import randomize, toy_drafter, toy_model, toy_target


def git(folder, *words):
    name = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", folder, *name, *words], check=True, capture_output=True)


def test_the_machine_is_this_one():
    found = this_machine()
    assert found.chip
    assert found.device == ("gpu" if mx.default_device().type == mx.gpu else "cpu")
    assert found.memory_bytes == total_memory_bytes() > 2**28
    assert found.num_cpus >= 1
    assert {"mlx", "mlx-lm", "python", "redrafter-mlx", "numpy"} <= found.packages.keys()
    assert all(found.packages.values())
    assert "\n" not in found.system


def test_a_checkout_has_its_commit_and_tells_what_differs_from_it(tmp_path):
    assert git_commit(tmp_path) is None
    git(tmp_path, "init")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "one")
    commit = git_commit(tmp_path)
    assert commit
    assert set(commit) <= set("0123456789abcdef")
    git(tmp_path, "tag", "v1")
    assert git_commit(tmp_path) == commit
    (tmp_path / "results").touch()  # what git does not track is no change of the program
    assert git_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    assert git_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_commit(tmp_path) is None


@pytest.mark.parametrize(
    ("maps", "threads", "expected"),
    [
        ("7f /usr/lib/libopenblas.so.0\n", "1", "OpenBLAS with 1 thread"),
        ("7f /usr/lib/libopenblas.so.0\n", None, "OpenBLAS with all threads"),
        ("7f /usr/lib/libblas.so.3\n", "1", None),
        (None, "1", None),
    ],
)
def test_the_blas_that_took_the_place_of_mlxs_own_is_told(
    tmp_path, monkeypatch, maps, threads, expected
):
    if maps is not None:
        (tmp_path / "maps").write_text(maps)
    monkeypatch.setattr(machine, "_MAPPED_FILES", tmp_path / "maps")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if threads:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
    assert this_machine().packages.get("blas") == expected


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_bytes_of_a_pass_are_those_of_every_matrix_that_it_multiplies(is_tied):
    """An embedding is a look-up, but where it is the head, too."""
    target = toy_target(is_tied=is_tied)
    record = describe_target(toy_model(target))
    hidden, inner, vocab = 32, 48, 50
    layer = hidden * (32 + 16 + 16 + 32) + 3 * hidden * inner + 2 * hidden
    assert record.bytes_read == 4 * (2 * layer + hidden + hidden * vocab)
    assert (record.name, record.dtype, record.bits) == ("toy", "float32", None)


def test_quantised_weights_are_told():
    target = toy_target(hidden_size=64, intermediate_size=96, head_dim=16)
    dense = describe_target(toy_model(target)).bytes_read
    nn.quantize(target, group_size=32, bits=4)
    record = describe_target(toy_model(target))
    assert record.bits == 4
    assert record.bytes_read < dense / 4


def test_a_drafter_is_told_by_its_weights():
    target = toy_target()
    model = toy_model(target, toy_drafter(target))
    record = describe_drafter(model)
    assert record.fingerprint == model.drafter.digest
    assert (record.name, record.dtype, record.bits) == ("made in memory", "float32", None)
    hidden, exit_dim, vocab = 32, 64, 50
    blocks = 2 * (exit_dim * exit_dim + exit_dim)
    assert record.bytes_read == 4 * (2 * hidden * hidden + hidden + blocks + exit_dim * vocab)
    other = replace(model, drafter=toy_drafter(target, seed=2))
    assert describe_drafter(other).fingerprint != record.fingerprint
    assert describe_drafter(tiny_model(has_drafter=False)) is None


def test_a_tied_head_is_read_too(tmp_path):
    target = toy_target()
    config = DrafterConfig(
        hidden_size=32, vocab_size=50, exit_dim=32, num_draft_layers=1, rnn=False, head="tied"
    )
    network = RecurrentDrafter(config)
    randomize(network, seed=1)
    model = toy_model(target, Drafter(network, target))
    record = describe_drafter(model, tmp_path / "drafters" / "mine")
    assert record.name == "drafters/mine"
    assert record.bytes_read == 4 * (64 * 32 + 32 + 32 * 32 + 32 + 32 * 50)
