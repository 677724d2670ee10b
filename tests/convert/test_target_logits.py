"""Converted models compute what Hugging Face transformers computes from the source."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.convert.target import TargetOptions, convert_target
from redrafter_mlx.loading.target import load_target
from redrafter_mlx.weights import load_tensors, read_json, save_tensors, write_json
from tests.convert.family_models import CONFIGS, TOKENS, rotary_buffers, weights_of
from tests.convert.tiny_torch import save_torch

GOLDEN = Path(__file__).parents[1] / "golden" / "target_logits.npz"


def write_source(folder: Path, name: str, kind: str) -> Path:
    folder.mkdir()
    write_json(folder / "config.json", CONFIGS[name])
    tensors = {key: mx.array(value) for key, value in weights_of(name).items()}
    if kind == "safetensors":
        save_tensors(folder / "model.safetensors", tensors)
        return folder
    halves = {key: tensor.astype(mx.float16) for key, tensor in tensors.items()}
    if name == "vicuna":
        halves |= {key: mx.array(value) for key, value in rotary_buffers(CONFIGS[name]).items()}
    names = sorted(halves)
    shards = {"pytorch_model-00001-of-00002.bin": names[::2]}
    shards["pytorch_model-00002-of-00002.bin"] = names[1::2]
    for file, keys in shards.items():
        save_torch(folder / file, {key: halves[key] for key in keys})
    weight_map = {key: file for file, keys in shards.items() for key in keys}
    write_json(folder / "pytorch_model.bin.index.json", {"weight_map": weight_map})
    return folder


def our_logits(folder: Path) -> Any:
    decoder = load_target(folder, "float32")
    return np.array(decoder.logits(decoder(mx.array(TOKENS), decoder.make_kv_cache())))


def mlx_lm_logits(folder: Path) -> Any:
    from mlx_lm.utils import load_model

    model = load_model(folder)[0]
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([TOKENS]))[0])


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_converted_model_gives_the_logits_of_transformers(
    tmp_path: Path, name: str, kind: str
) -> None:
    """Law: golden logits within 1e-4 here and in mlx-lm; the weights are exact in float16."""
    source = write_source(tmp_path / "source", name, kind)
    out = tmp_path / "out"
    converted = convert_target(source, out)
    golden = np.load(GOLDEN)[name]
    assert np.abs(our_logits(out) - golden).max() < 1e-4
    assert np.abs(mlx_lm_logits(out) - golden).max() < 1e-4
    wanted = CONFIGS[name].get("torch_dtype", CONFIGS[name].get("dtype"))
    stored = wanted or ("float16" if kind == "bin" else "float32")
    assert load_tensors(out)["model.norm.weight"].dtype == getattr(mx, stored)
    has_buffers = any("rotary buffers" in note for note in converted.notes)
    assert has_buffers == (name == "vicuna" and kind == "bin")


def test_the_golden_logits_tell_the_models_apart() -> None:
    """A golden value that any model would meet proves nothing."""
    golden = np.load(GOLDEN)
    assert sorted(golden) == sorted(CONFIGS)
    for name in golden:
        assert golden[name].std() > 0.5
        assert all(
            np.abs(golden[name] - golden[other]).max() > 0.5 for other in golden if other != name
        )


@pytest.mark.parametrize("name", ["llama3_tied", "qwen2_plain_rope", "vicuna"])
def test_what_the_source_left_to_defaults_is_written_out(tmp_path: Path, name: str) -> None:
    source = write_source(tmp_path / "source", name, "safetensors")
    convert_target(source, tmp_path / "out", TargetOptions(dtype="bfloat16"))
    config = read_json(tmp_path / "out" / "config.json")
    assert list(config) == sorted(config)
    assert config["head_dim"] == 16
    assert config["num_key_value_heads"] == CONFIGS[name].get("num_key_value_heads", 4)
    parameters = CONFIGS[name].get("rope_parameters", {})
    assert config["rope_theta"] == parameters.get("rope_theta", 10000.0)
    if name == "llama3_tied":
        assert config["rope_scaling"]["rope_type"] == "llama3"
        assert config["dtype"] == "bfloat16"
