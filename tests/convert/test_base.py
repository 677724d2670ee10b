"""A GGUF file of a Llama becomes a folder that mlx-lm loads, whole or not at all."""

from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx import safetensors_writer
from redrafter_mlx.config import Quantization
from redrafter_mlx.convert import base, gguf_tokenizer, model_folder
from redrafter_mlx.convert.base import convert_gguf, rotary_rows
from redrafter_mlx.convert.target_options import TargetOptions
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import load_tensors, read_json
from tests.convert.tiny_gguf import (
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    H,
    Tensor,
    float_bytes,
    gguf_bytes,
    in_float32,
    random_tensor,
    tiny_metadata,
    tiny_tensors,
    write_tiny,
)

FILES = ["config.json", "generation_config.json", "model.safetensors"]
FILES += ["model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"]
AFFINE_4 = {"group_size": 32, "bits": 4, "mode": "affine"}


def convert(folder: Path, tensors: list[Tensor], **changes: Any) -> Path:
    (folder / "x.gguf").write_bytes(gguf_bytes(tiny_metadata(**changes), tensors))
    convert_gguf(folder / "x.gguf", folder / "out")
    return folder / "out"


def refuse(folder: Path, tensors: list[Tensor], **changes: Any) -> str:
    with pytest.raises(CheckpointError) as refused:
        convert(folder, tensors, **changes)
    assert [path.name for path in folder.iterdir()] == ["x.gguf"], "nothing is left behind"
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_folder_is_the_one_that_mlx_lm_writes(tmp_path: Path) -> None:
    out = convert(tmp_path, tiny_tensors())
    assert sorted(path.name for path in out.iterdir()) == FILES
    config = read_json(out / "config.json")
    assert config["model_type"] == "llama"
    assert config["num_key_value_heads"] == KV_HEADS and config["head_dim"] == HEAD_DIM
    assert config["tie_word_embeddings"] is True and config["rope_scaling"] is None
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 10000.0)
    assert (config["max_position_embeddings"], config["vocab_size"]) == (128, 262)
    eight = {**AFFINE_4, "bits": 8}
    assert config["quantization"] == {**AFFINE_4, "model.embed_tokens": eight}
    assert config["quantization_config"] == config["quantization"]
    assert read_json(out / "generation_config.json") == {"bos_token_id": 0, "eos_token_id": [1]}
    tensors = load_tensors(out)
    assert tensors["model.embed_tokens.scales"].dtype == mx.float16
    assert tensors["model.norm.weight"].dtype == mx.float16


@pytest.mark.parametrize(
    ("matrix", "embedding", "tied"),
    [
        ("Q4_1", "Q8_0", True),
        ("Q4_0", "F16", False),
        ("Q8_0", "Q4_1", True),
        ("BF16", "F32", False),
    ],
)
def test_mlx_lm_loads_it_and_computes_the_files_logits(
    tmp_path: Path, matrix: str, embedding: str, tied: bool
) -> None:
    """mlx-lm's logits == a Llama written out in numpy from the file's own tensors."""
    from mlx_lm import load

    tensors = tiny_tensors(matrix, embedding, tied)
    model = load(str(convert(tmp_path, tensors)))[0]
    tokens = [3, 77, 141, 200]
    ours = np.array(in_float32(model)(mx.array([tokens]))[0])
    gguf = pytest.importorskip("gguf")
    weights = {tensor.name: dequantized(gguf, tensor) for tensor in tensors}
    assert np.abs(ours - reference_logits(weights, tokens)).max() < 1e-4


def dequantized(gguf: Any, tensor: Tensor) -> Any:
    kind = gguf.GGMLQuantizationType[tensor.kind]
    data = np.frombuffer(tensor.data, np.uint8).reshape(*tensor.shape[:-1], -1)
    return gguf.quants.dequantize(data, kind).astype(np.float64)


def reference_logits(weights: dict[str, Any], tokens: list[int]) -> Any:
    """Run a Llama as llama.cpp lays it out: the rotation pairs neighbours."""
    x = weights["token_embd.weight"][tokens]
    for layer in range(LAYERS):
        part = {key.removeprefix(f"blk.{layer}."): value for key, value in weights.items()}
        x = x + attention(part, rms_norm(x, part["attn_norm.weight"]))
        h = rms_norm(x, part["ffn_norm.weight"])
        gate = h @ part["ffn_gate.weight"].T
        up = h @ part["ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ part["ffn_down.weight"].T
    head = weights.get("output.weight", weights["token_embd.weight"])
    return rms_norm(x, weights["output_norm.weight"]) @ head.T


def rms_norm(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight


def attention(part: dict[str, Any], x: Any) -> Any:
    q, k, v = (
        (x @ part[f"attn_{name}.weight"].T).reshape(len(x), -1, HEAD_DIM).swapaxes(0, 1)
        for name in "qkv"
    )
    k, v = (np.repeat(heads, len(q) // KV_HEADS, axis=0) for heads in (rotated(k), v))
    scores = rotated(q) @ k.swapaxes(1, 2) / np.sqrt(HEAD_DIM)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = shares / shares.sum(-1, keepdims=True) @ v
    return mixed.swapaxes(0, 1).reshape(len(x), H) @ part["attn_output.weight"].T


def rotated(heads: Any) -> Any:
    angles = np.arange(heads.shape[1])[:, None] / 10000 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    pairs = heads[..., 0::2] + 1j * heads[..., 1::2]
    turned = pairs * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(heads.shape)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("boom"), CheckpointError("x")])
@pytest.mark.parametrize(
    ("module", "step"),
    [
        (model_folder, "_write_tensors"),
        (model_folder, "write_json"),
        (base, "write_tokenizer"),
        (base, "write_json"),
    ],
)
def test_an_interrupted_conversion_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    step: str,
    error: BaseException,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, step, fail)
    source = write_tiny(tmp_path / "x.gguf")
    with pytest.raises((KeyboardInterrupt, RuntimeError, CheckpointError)):
        convert_gguf(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [source]


def test_config_json_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it no folder is taken for a model, so a killed conversion leaves none."""
    written: list[str] = []
    real = model_folder.write_json

    def note(path: Path, values: dict[str, Any]) -> None:
        written.append(path.name)
        real(path, values)

    for module in (base, model_folder, safetensors_writer, gguf_tokenizer):
        monkeypatch.setattr(module, "write_json", note)
    convert(tmp_path, tiny_tensors())
    assert written[-1] == "config.json"


def test_biases_are_permuted_with_their_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    sizes = {"attn_q": H, "attn_k": KV_HEADS * HEAD_DIM, "attn_v": KV_HEADS * HEAD_DIM}
    sizes |= {"attn_output": H}
    biases = [
        random_tensor(f"blk.{layer}.{name}.bias", "F32", (size,), rng)
        for layer in range(LAYERS)
        for name, size in sizes.items()
    ]
    out = convert(tmp_path, tiny_tensors() + biases)
    assert read_json(out / "config.json")["attention_bias"] is True
    stored = np.frombuffer(biases[0].data, "<f4")
    converted = load_tensors(out)["model.layers.0.self_attn.q_proj.bias"]
    assert np.array_equal(np.array(converted), stored[rotary_rows(H, H // HEAD_DIM)])


def test_linear_rope_scaling_is_kept(tmp_path: Path) -> None:
    changes = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    out = convert(tmp_path, tiny_tensors(), **changes)
    scaling = read_json(out / "config.json")["rope_scaling"]
    assert scaling == {"rope_type": "linear", "factor": 4.0}


def llama3_divisors(factor: float) -> Tensor:
    """Make the tensor as llama.cpp's converter does, one frequency after the other."""
    divisors = []
    for i in range(0, HEAD_DIM, 2):
        wavelength = 2 * np.pi * 500000.0 ** (i / HEAD_DIM)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192 / 1:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    data = float_bytes("F32", np.array(divisors, np.float32))
    return Tensor("rope_freqs.weight", "F32", (HEAD_DIM // 2,), data)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_scaling_is_recovered(tmp_path: Path, factor: float) -> None:
    tensors = [*tiny_tensors(), llama3_divisors(factor)]
    out = convert(tmp_path, tensors, llama__rope__freq_base=500000.0)
    assert read_json(out / "config.json")["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


@pytest.mark.parametrize("divisor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_senseless_divisor_of_the_rope_is_refused(tmp_path: Path, divisor: float) -> None:
    data = float_bytes("F32", np.array([1.0] * 7 + [divisor], np.float32))
    tensor = Tensor("rope_freqs.weight", "F32", (HEAD_DIM // 2,), data)
    assert "in rope_freqs.weight; get another" in refuse(tmp_path, [*tiny_tensors(), tensor])


def test_another_scaling_of_the_rope_is_refused(tmp_path: Path) -> None:
    tensors = [*tiny_tensors(), llama3_divisors(8.0)]
    assert "in another way than Llama 3" in refuse(tmp_path, tensors)


def without(name: str) -> list[Tensor]:
    return [tensor for tensor in tiny_tensors() if tensor.name != name]


def test_missing_and_unknown_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    name = "blk.1.ffn_up.weight"
    assert f"lacks the tensor '{name}'" in refuse(tmp_path, without(name))
    extra = random_tensor("blk.0.ffn_gate_inp.weight", "F32", (2, H), rng)
    assert "'blk.0.ffn_gate_inp.weight', not part" in refuse(tmp_path, [*tiny_tensors(), extra])
    wide = random_tensor(name, "Q4_1", (97, H), rng)
    assert "(97, 64), the metadata say (96, 64)" in refuse(tmp_path, [*without(name), wide])
    vector = random_tensor("output_norm.weight", "Q8_0", (H,), rng)
    message = refuse(tmp_path, [*without("output_norm.weight"), vector])
    assert "the vector 'output_norm.weight' is Q8_0" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "qwen2"}, "architecture 'qwen2'; only llama"),
        ({"llama__expert_count": 8}, "llama.expert_count = 8, which is not supported"),
        ({"llama__attention__sliding_window": 64}, "sliding_window = 64, which is not"),
        ({"llama__block_count": 2**31 - 1}, "claims 2147483647 layers and has 20 tensors"),
        ({"llama__block_count": 2**31}, "not a whole number from 1 to 2147483647"),
        ({"llama__block_count": 3}, "lacks the tensor 'blk.2.attn_norm.weight'"),
        ({"llama__attention__head_count": 0}, "head_count is 0, not a whole number from 1"),
        ({"llama__attention__head_count_kv": [2, 2]}, "head_count_kv is array"),
        ({"llama__attention__head_count": 3}, "3 heads of 21 and 2 for keys"),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count = 8 and heads of 16"),
        ({"llama__attention__value_length": 8}, "attention.value_length = 8 and heads"),
        ({"llama__rope__scaling__type": "yarn"}, "rope scaling 'yarn'; only linear"),
        ({"llama__rope__scaling__type": "linear"}, "rope.scaling.factor is missing"),
        ({"llama__embedding_length": None}, "embedding_length is missing"),
        ({"llama__context_length": 1.5}, "context_length is 1.5, not a whole number"),
    ],
)
def test_what_the_target_cannot_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    assert message in refuse(tmp_path, tiny_tensors(), **changes)


@pytest.mark.parametrize(("group_size", "num_left"), [(64, 2), (32, 0)])
def test_matrices_that_stay_as_they_are_are_told(
    tmp_path: Path, group_size: int, num_left: int
) -> None:
    """As of a folder's: of width 96 is one in each of the two layers."""
    source = tmp_path / "x.gguf"
    source.write_bytes(gguf_bytes(tiny_metadata(), tiny_tensors("F16", "F16")))
    options = TargetOptions(quantization=Quantization(4, group_size))
    note = f"not quantised: {num_left} matrices whose width is no multiple of {group_size}"
    assert convert_gguf(source, tmp_path / "out", options).notes == ((note,) if num_left else ())
