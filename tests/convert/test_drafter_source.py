"""Choosing a drafter's files, and refusing those that do not go together."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from redrafter_mlx.convert.drafter_file import read_drafter
from redrafter_mlx.weights import load_tensors
from tests.convert.drafter_layouts import BASE, sharded, write_ranks
from tests.convert.tiny_drafter import NARROW, apple_config, random_tensors, refusal, write
from tests.convert.tiny_torch import save_torch


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_missing_rank_is_refused(tmp_path: Path, lost: int) -> None:
    source = write_ranks(tmp_path / "source", random_tensors(), 3)
    (source / f"rank{lost}.safetensors").unlink()
    assert f"lacks rank{lost}.safetensors" in refusal(read_drafter, source)


def test_ranks_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    source = write_ranks(tmp_path / "source", random_tensors(), 2)
    tensors = load_tensors(source / "rank1.safetensors")
    mx.eval(tensors)  # before their file is written anew
    for name, change in [("drafter.rnn_u.weight", mx.ones((16, 5))), ("new", mx.ones((1,)))]:
        mx.save_safetensors(str(source / "rank1.safetensors"), tensors | {name: change})
        assert repr(name) in refusal(read_drafter, source)


def test_a_whole_model_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {name: tensor for name, tensor in BASE.items() if name.startswith("model.")}
    source = save_torch(tmp_path / "a.bin", model | random_tensors())
    monkeypatch.setattr("redrafter_mlx.convert.torch_checkpoint.TorchTensor.load", None)
    assert "'model.embed_tokens.weight'" in refusal(read_drafter, source)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("absent file", "lacks pytorch_model-00001-of-00002.bin, which"),
        ("absent tensor", "'rnn_x.weight' is in pytorch_model.bin.index.json but not"),
        ("twice", "in another file beside it"),
        ("outside", "names the file '../other.bin'"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, change: str, words: str) -> None:
    source = sharded(tmp_path / "source", random_tensors())
    index_file = source / "pytorch_model.bin.index.json"
    index = json.loads(index_file.read_text())["weight_map"]
    first, second = sorted(set(index.values()))
    if change == "absent file":
        (source / first).unlink()
    elif change == "absent tensor":
        index["rnn_x.weight"] = first
    elif change == "twice":
        (source / second).write_bytes((source / first).read_bytes())
    else:
        index["rnn_u.bias"] = "../other.bin"
    index_file.write_text(json.dumps({"weight_map": index}))
    assert words in refusal(read_drafter, source)


def test_only_the_files_of_the_index_are_read(tmp_path: Path) -> None:
    source = sharded(tmp_path / "source", random_tensors())
    save_torch(source / "pytorch_model-00001-of-00009.bin", {"old.weight": mx.ones((1,))})
    assert read_drafter(source).config == NARROW


def test_shards_without_an_index_are_read(tmp_path: Path) -> None:
    source = sharded(tmp_path / "source", random_tensors())
    (source / "pytorch_model.bin.index.json").unlink()
    assert read_drafter(source).config == NARROW


def test_safetensors_go_before_pytorch_files(tmp_path: Path) -> None:
    source = write(tmp_path / "source", random_tensors(), apple_config(NARROW))
    (source / "pytorch_model.bin").write_bytes(b"old")
    (source / "rank0.safetensors").write_bytes(b"old")
    assert read_drafter(source).config == NARROW


def test_a_file_is_told_by_what_is_in_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "source", random_tensors())
    source = (folder / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert read_drafter(source).config == NARROW
    source = save_torch(tmp_path / "model.safetensors", random_tensors())
    assert read_drafter(source).config == NARROW
    source.write_bytes(b"short")
    assert "is truncated or damaged" in refusal(read_drafter, source)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    assert "pytorch_model*.bin" in refusal(read_drafter, tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    tensors = random_tensors()
    tensors["rnn_w.weight"][3, 4] = bad
    assert "'rnn_w.weight'" in refusal(read_drafter, save_torch(tmp_path / "a.pt", tensors))
