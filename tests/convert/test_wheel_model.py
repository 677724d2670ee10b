"""The embedded default, converted from the wheel's GGUF file."""

import json
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from redrafter_mlx.config import BeamShape, GenerationConfig
from redrafter_mlx.convert.base import rotary_rows
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.loading.target import load_target
from redrafter_mlx.weights import load_tensors
from tests.convert.tiny_gguf import in_float32, wheel_gguf
from tests.toy import toy_model


@pytest.mark.real_model
def test_every_kind_of_tensor_of_the_wheel_is_exact(smollm2_folder: Path) -> None:
    """Our float32 values == the gguf package's, rows of q and k in the file's order.

    Of the embedding every ninth row is compared: it is large, and quantised row by row.
    """
    gguf = pytest.importorskip("gguf")
    source = {tensor.name: tensor for tensor in gguf.GGUFReader(wheel_gguf()).tensors}
    tensors = load_tensors(smollm2_folder)
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
        "blk.29.attn_k": "model.layers.29.self_attn.k_proj",
        "blk.29.attn_v": "model.layers.29.self_attn.v_proj",
        "blk.17.ffn_down": "model.layers.17.mlp.down_proj",
    }
    for theirs, ours in names.items():
        tensor, step = source[f"{theirs}.weight"], 9 if theirs == "token_embd" else 1
        expected = gguf.quants.dequantize(tensor.data[::step], tensor.tensor_type)
        if theirs.endswith(("attn_q", "attn_k")):
            expected = expected[rotary_rows(len(expected), len(expected) // 64)]
        assert np.array_equal(float32_values(tensors, ours)[::step], expected), theirs


def float32_values(tensors: dict[str, mx.array], module: str) -> Any:
    weight = tensors[f"{module}.weight"]
    if f"{module}.scales" not in tensors:
        return np.array(weight.astype(mx.float32))
    scales, biases = (
        tensors[f"{module}.{part}"].astype(mx.float32) for part in ("scales", "biases")
    )
    bits = weight.shape[1] // scales.shape[1]
    return np.array(mx.dequantize(weight, scales, biases, 32, bits))


@pytest.mark.real_model
def test_mlx_lm_writes_the_golden_text(smollm2_folder: Path, shared: Path) -> None:
    """Eight greedy tokens in float32 == those of Hugging Face transformers."""
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache

    golden = json.loads((shared / "data/golden/smollm2_greedy.json").read_text())["cases"]
    case = min(golden, key=lambda case: len(case["prompt_ids"]))
    model = in_float32(load(str(smollm2_folder))[0])
    cache, step, tokens = make_prompt_cache(model), case["prompt_ids"], []
    for _ in range(8):
        logits = model(mx.array([step]), cache=cache)[0, -1]
        step = [cast(int, mx.argmax(logits).item())]
        tokens += step
    assert tokens == case["greedy_ids"][:8]


@pytest.mark.real_model
@pytest.mark.slow
def test_quantised_as_stored_mlx_lm_writes_our_text(smollm2_folder: Path) -> None:
    """Law: greedy ids on one folder are equal, its weights as packed as they lie there."""
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache

    prompt = [504, 3575]
    model = load(str(smollm2_folder))[0]
    cache, step, theirs = make_prompt_cache(model), prompt, []
    for _ in range(4):
        logits = model(mx.array([step]), cache=cache)[0, -1]
        step = [cast(int, mx.argmax(logits).item())]
        theirs += step
    decoder = load_target(smollm2_folder, "stored")
    assert isinstance(decoder.model.layers[0].mlp.up_proj, nn.QuantizedLinear)
    config = GenerationConfig(max_tokens=4, beam=BeamShape(1, 1), ignore_eos=True)
    ours = list(decode(toy_model(decoder), decoder.make_kv_cache(), prompt, config, DecodeStats()))
    assert ours == theirs
