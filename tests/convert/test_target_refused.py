"""What cannot be a target is refused in a sentence, and nothing is left behind."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert import tensor_job
from redrafter_mlx.convert.target import TargetOptions, convert_target
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.weights import load_tensors, save_tensors, write_json
from tests.convert.tiny_target import (
    EMBEDDING,
    GATE,
    HEAD,
    NORM,
    UP,
    Tensors,
    refuse,
    same,
    tensors_of,
    write_target,
)
from tests.convert.tiny_torch import save_torch


@pytest.mark.parametrize("stored", [mx.float32, mx.bfloat16])
def test_a_cast_that_overflows_names_the_tensor_and_its_largest_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: mx.Dtype
) -> None:
    """The largest value may be in a later run than the first that is too large."""
    monkeypatch.setattr(tensor_job, "RUN_BYTES", 1000)
    tensors = tensors_of(dtype=stored)
    large = tensors[GATE].astype(mx.float32)
    large[0, 0], large[-1, -1] = 70144.0, -(2.0**17)
    tensors[GATE] = large.astype(stored)
    source = write_target(tmp_path / "source", tensors)
    message = refuse(source, TargetOptions(dtype="float16"))
    assert f"{GATE!r} holds 131072, too large for float16" in message
    assert message.endswith("convert with --dtype bfloat16.")
    convert_target(source, tmp_path / "out", TargetOptions(dtype="bfloat16"))
    assert same(load_tensors(tmp_path / "out")[GATE], large.astype(mx.bfloat16))


def test_the_largest_half_is_no_overflow(tmp_path: Path) -> None:
    tensors = tensors_of(dtype=mx.float32)
    tensors[NORM][0] = -65504.0
    source = write_target(tmp_path / "source", tensors)
    convert_target(source, tmp_path / "out", TargetOptions(dtype="float16"))
    assert load_tensors(tmp_path / "out")[NORM][0].item() == -65504.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_what_is_not_finite_is_refused_by_tensor(
    tmp_path: Path, bad: float, dtype: mx.Dtype
) -> None:
    tensors = tensors_of(dtype=dtype)
    tensors[UP][3, 5] = bad
    source = write_target(tmp_path / "source", tensors)
    for options in (TargetOptions(), TargetOptions("float16", Quantization(4, 32))):
        assert f"{UP!r} holds NaN or infinity" in refuse(source, options)


def test_there_must_be_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_target(tmp_path / "source", tensors_of())
    usage = shutil.disk_usage(tmp_path)
    num_bytes = convert_target(source, tmp_path / "out").num_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=num_bytes))
    convert_target(source, tmp_path / "other")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=num_bytes - 100_000))
    message = refuse(source)
    needed, free = round(num_bytes / 1e3), round((num_bytes - 1e5) / 1e3)
    assert f"needs {needed} kB and {free} kB are free" in message


def test_a_folder_that_exists_is_not_mixed_into(tmp_path: Path) -> None:
    source = write_target(tmp_path / "source", tensors_of())
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        convert_target(source, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def spoil(tensors: Tensors, name: str, value: mx.array | None) -> Tensors:
    changed = dict(tensors)
    changed.pop(name, None)
    return changed if value is None else changed | {name: value}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (UP, None, f"lacks the tensor {UP!r} of shape (96, 64)"),
        (UP, mx.zeros((96, 63)), f"{UP!r} has shape (96, 63), by config.json it is (96, 64)"),
        (UP, mx.zeros((96, 64), mx.int8), f"{UP!r} holds mlx.core.int8, not floating point"),
        ("model.layers.2.mlp.up_proj.weight", mx.zeros((96, 64)), "has no place in the model"),
        ("score.weight", mx.zeros((2, 64)), "'score.weight' of shape (2, 64) has no place"),
        ("model.layers.0.mlp.up_proj.scales", mx.zeros((96, 2)), "group_size None and bits None"),
    ],
)
def test_tensors_that_do_not_fit_config_json_are_refused_by_name(
    tmp_path: Path, name: str, value: mx.array | None, message: str
) -> None:
    source = write_target(tmp_path / "source", spoil(tensors_of(), name, value))
    assert message in refuse(source)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma"}, "model_type 'gemma' is not supported"),
        ({"num_local_experts": 8}, "a mixture of experts"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_hidden_layers": 3}, "lacks the tensor 'model.layers.2."),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
    ],
)
def test_a_config_that_is_not_supported_is_refused_first(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    assert message in refuse(write_target(tmp_path / "source", tensors_of(), **changes))


def no_config(source: Path) -> None:
    (source / "config.json").unlink()


def no_weights(source: Path) -> None:
    (source / "model.safetensors").unlink()


def truncated(source: Path) -> None:
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[:-1])


def twice(source: Path) -> None:
    save_tensors(source / "model-2.safetensors", {NORM: mx.zeros((64,))})


def twice_in_torch(source: Path) -> None:
    no_weights(source)
    save_torch(source / "pytorch_model-1.bin", {NORM: mx.zeros((64,))})
    save_torch(source / "pytorch_model-2.bin", {NORM: mx.zeros((64,))})


def index(
    name: str, file: str, index_file: str = "model.safetensors.index.json"
) -> Callable[[Path], None]:
    def write(source: Path) -> None:
        if index_file.startswith("pytorch"):
            no_weights(source)
            save_torch(source / "pytorch_model.bin", tensors_of())
        whole = "pytorch_model.bin" if index_file.startswith("pytorch") else "model.safetensors"
        names = dict.fromkeys(tensors_of(), whole) | {name: file}
        write_json(source / index_file, {"weight_map": names})

    return write


TORCH_INDEX = "pytorch_model.bin.index.json"


@pytest.mark.parametrize(
    ("spoil_files", "message"),
    [
        (no_config, "has no config.json; give the folder of a Hugging Face model"),
        (no_weights, "holds no model*.safetensors, pytorch_model*.bin or *.gguf"),
        (truncated, "truncated or damaged"),
        (twice, f"{NORM!r} is twice in"),
        (twice_in_torch, f"{NORM!r} is in"),
        (
            index("extra.weight", "model.safetensors"),
            "'extra.weight' is in model.saf",
        ),
        (
            index(NORM, "model-9.safetensors"),
            "lacks model-9.safetensors, which model.safetensors.index.json names; get",
        ),
        (index(NORM, "../model.safetensors"), "names the file '../model.safetensors'"),
        (index("extra.weight", "pytorch_model.bin", TORCH_INDEX), "'extra.weight' is in pytorch"),
        (
            index(NORM, "pytorch_model-9.bin", TORCH_INDEX),
            "lacks pytorch_model-9.bin, which pytorch_model.bin.index.json names",
        ),
        (index(NORM, "../pytorch_model.bin", TORCH_INDEX), "names the file '../pytorch_model.bin'"),
    ],
)
def test_files_that_do_not_go_together_are_refused(
    tmp_path: Path, spoil_files: Callable[[Path], None], message: str
) -> None:
    source = write_target(tmp_path / "source", tensors_of())
    spoil_files(source)
    assert message in refuse(source)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_head_and_an_embedding_without_rows_are_refused(tmp_path: Path, kind: str) -> None:
    tensors = tensors_of() | dict.fromkeys((HEAD, EMBEDDING), mx.array(1.0))
    source = write_target(tmp_path / "source", tensors, tie_word_embeddings=True)
    if kind == "bin":
        no_weights(source)
        save_torch(source / "pytorch_model.bin", tensors)
    assert f"{EMBEDDING!r} has shape (), by config.json it is (96, 64)" in refuse(source)


def test_a_file_that_is_no_gguf_and_a_path_that_is_none_are_refused(tmp_path: Path) -> None:
    source = write_target(tmp_path / "source", tensors_of())
    message = refuse(source / "model.safetensors")
    assert "is a file that is no GGUF; give a model's folder" in message
    assert "is not there" in refuse(tmp_path / "nowhere")


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    source = write_target(tmp_path / "source", tensors_of())

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_target(source, tmp_path / "out", TargetOptions(), interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype is 'int8'; choose one of float16"):
        TargetOptions(dtype="int8")
