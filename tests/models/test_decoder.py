"""Laws of the target: mlx-lm's logits, and a tree that means its paths."""

import importlib
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.decoder import Decoder, RowLayout, swiglu
from redrafter_mlx.models.target_config import TargetConfig
from tests.toy import randomize, toy_target

BASE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 60,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-no-gqa": {"model_type": "llama", "num_key_value_heads": 4},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama-3.1": {"model_type": "llama", "rope_scaling": LLAMA3, "rope_theta": 500000.0},
    "llama-traditional": {"model_type": "llama", "rope_traditional": True},
    "mistral": {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
}


def decoder_of(settings: dict[str, Any]) -> Decoder:
    config = TargetConfig.from_dict(settings)
    decoder = Decoder(config, is_tied=bool(config.tie_word_embeddings))
    randomize(decoder, seed=3)
    return decoder


def peer_of(settings: dict[str, Any], decoder: Decoder) -> Any:
    """Return mlx-lm's own model with our random weights."""
    family = "llama" if settings["model_type"] == "mistral" else settings["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{family}")
    peer = module.Model(module.ModelArgs.from_dict(settings))
    peer.load_weights(tree_flatten(decoder.parameters()), strict=True)
    return peer


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_agree_with_mlx_lm_in_prefill_and_decode(name):
    """Law: the decoder computes what mlx-lm's model of that family computes."""
    settings = BASE | FAMILIES[name]
    decoder = decoder_of(settings)
    peer = peer_of(settings, decoder)
    peer_cache = importlib.import_module("mlx_lm.models.cache").make_prompt_cache(peer)
    kv_cache = decoder.make_kv_cache()
    tokens = mx.random.randint(0, 60, (90,), key=mx.random.key(1))
    for start, end in ((0, 70), (70, 80), *((place, place + 1) for place in range(80, 90))):
        ours = decoder.logits(decoder(tokens[start:end], kv_cache))
        kv_cache.commit(range(end - start))
        theirs = peer(tokens[None, start:end], cache=peer_cache)[0]
        assert mx.abs(ours - theirs).max().item() < 1e-4


def random_tree(rng: np.random.Generator, num_rows: int, vocab_size: int) -> DraftTree:
    parents = np.array([0, *(rng.integers(0, row) for row in range(1, num_rows))], np.int32)
    tokens = rng.integers(0, vocab_size, num_rows).astype(np.int32)
    return DraftTree.from_rows(tokens, parents, np.zeros(num_rows, np.float32))


@pytest.mark.parametrize("name", ["llama", "llama-3.1", "llama-traditional", "qwen2", "qwen3"])
def test_a_tree_agrees_with_each_of_its_paths_run_token_by_token(name):
    """Law: a row of a verified tree gives the logits of its path run as a sequence."""
    decoder = decoder_of(BASE | FAMILIES[name])
    rng = np.random.default_rng(5)
    for num_rows in (2, 7, 20, 64):
        prompt = mx.array(rng.integers(0, 60, 30))
        tree = random_tree(rng, num_rows, 60)
        kv_cache = decoder.make_kv_cache()
        decoder(prompt, kv_cache)
        kv_cache.commit(range(30))
        logits = decoder.logits(decoder(mx.array(tree.tokens), kv_cache, tree))
        mx.eval(logits)
        for row in rng.choice(num_rows, min(4, num_rows), replace=False):
            for token in tree.tokens[tree.ancestors[row]].tolist():
                alone = decoder.logits(decoder(mx.array([token]), kv_cache))
                kv_cache.commit([0])
            assert mx.abs(logits[int(row)] - alone[0]).max().item() < 1e-4
            kv_cache.rewind(30)


@pytest.mark.parametrize("dims", [8, 64])
@pytest.mark.parametrize("name", ["llama", "llama-linear", "llama-3.1", "llama-traditional"])
def test_rope_with_a_position_a_row_equals_a_loop_over_the_rows(name, dims):
    from redrafter_mlx.models.rope import Rope

    rope = Rope(dims, TargetConfig.from_dict(BASE | FAMILIES[name]).rope)
    x = mx.random.normal((9, 3, 1, dims))
    positions = mx.array([0, 5, 5, 6, 1, 100, 99, 7, 3])
    together = rope(x, positions)
    for row, position in enumerate(positions.tolist()):
        assert mx.array_equal(together[row : row + 1], rope(x[row : row + 1], position))


def test_prefill_in_chunks_equals_prefill_at_once():
    decoder = toy_target()
    tokens = mx.random.randint(0, 50, (300,), key=mx.random.key(2))
    whole = decoder(tokens, decoder.make_kv_cache())
    kv_cache = decoder.make_kv_cache()
    parts = []
    for start in (0, 100, 200):
        parts.append(decoder(tokens[start : start + 100], kv_cache))
        kv_cache.commit(range(100))
    assert mx.abs(whole - mx.concatenate(parts)).max().item() < 1e-4


@pytest.fixture
def compiled() -> Iterator[None]:
    """Compile as users' runs do."""
    mx.enable_compile()
    yield
    mx.disable_compile()


@pytest.mark.slow
def test_the_compiled_half_equals_the_same_uncompiled_for_every_number_of_rows(
    compiled: None,
) -> None:
    for rows in (1, 3, 7, 1, 16, 3):
        gate, up = mx.random.normal((2, 1, rows, 48), key=mx.random.key(rows))
        expected = gate / (1 + mx.exp(-gate)) * up
        assert swiglu(gate, up).shape == (1, rows, 48)
        assert mx.allclose(swiglu(gate, up), expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_no_row_of_a_tree_is_masked_from_everything(seed: int) -> None:
    """Law: softmax over nothing would be NaN, and a row sees itself at least."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, int(rng.integers(2, 65)), 50)
    for offset in (0, 40):
        mask = RowLayout.for_pass(tree.num_rows, offset, tree).mask
        if isinstance(mask, mx.array):
            assert mask.any(axis=-1).all().item()


def test_what_the_cache_holds_behind_its_offset_poisons_no_row() -> None:
    decoder = toy_target()
    rng = np.random.default_rng(1)
    tree, tokens = random_tree(rng, 20, 50), mx.arange(30)
    logits = []
    for junk in (0.0, mx.nan):
        kv_cache = decoder.make_kv_cache()
        decoder(tokens, kv_cache)
        kv_cache.commit(range(30))
        for buffer in kv_cache.arrays:
            buffer[:, :, 30:] = junk
        logits.append(decoder.logits(decoder(mx.array(tree.tokens), kv_cache, tree)))
    assert mx.isfinite(logits[1]).all().item()
    assert mx.array_equal(logits[0], logits[1])


def test_the_mask_of_a_tree_takes_a_byte_an_entry() -> None:
    tree = DraftTree.from_rows(
        np.arange(7, dtype=np.int32), np.array([0, 0, 0, 1, 1, 2, 2]), np.zeros(7, np.float32)
    )
    mask = RowLayout.for_pass(7, 32_768, tree).mask
    assert isinstance(mask, mx.array)
    assert mask.dtype == mx.bool_
    assert mask.nbytes == 7 * (32_768 + 7)
