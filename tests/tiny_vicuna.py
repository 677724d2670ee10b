"""A tiny model laid out as lmsys/vicuna-7b-v1.3 is: PyTorch shards, SentencePiece, no template."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.target_config import TargetConfig
from redrafter_mlx.weights import write_json
from tests.convert.tiny_torch import save_torch
from tests.toy import randomize

SENTENCES = [
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. USER: Hello there, how are "
    "you? ASSISTANT: I am well.",
    "What is 17 times 24? naïve café",
]
VOCAB_SIZE = 384
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": VOCAB_SIZE,
}


@cache
def sentencepiece_model() -> bytes:
    """Train a tokenizer of the kind that Llama has: byte pairs, bytes for the rest."""
    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=written,
        vocab_size=VOCAB_SIZE,
        model_type="bpe",
        byte_fallback=True,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        minloglevel=2,
    )
    return written.getvalue()


def write_tiny_vicuna(folder: Path) -> Path:
    """Write the folder; the rotary buffers are there, as old checkpoints have them."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", CONFIG)
    write_json(
        folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    )
    (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    write_json(folder / "tokenizer_config.json", _tokenizer_config())
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_json(
        folder / "special_tokens_map.json",
        {kind: _special(text) for kind, text in names.items()} | {"pad_token": "<unk>"},
    )
    _write_shards(folder)
    return folder


def tiny_target() -> Decoder:
    """Return the model whose weights the folder holds."""
    decoder = Decoder(TargetConfig.from_dict(CONFIG), is_tied=False)
    randomize(decoder, seed=3, scale=2.0)
    decoder.set_dtype(mx.float16)
    return decoder


def _write_shards(folder: Path) -> None:
    tensors: dict[str, mx.array] = dict(tree_flatten(tiny_target().parameters()))
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        tensors[name] = mx.zeros((8,))
    index: dict[str, str] = {}
    for number, half in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        save_torch(folder / file, {name: tensors[name] for name in half})
        index |= dict.fromkeys(half, file)
    write_json(folder / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": index})


def _tokenizer_config() -> dict[str, Any]:
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": {"__type": "AddedToken", **_special("<s>")},
        "clean_up_tokenization_spaces": False,
        "eos_token": {"__type": "AddedToken", **_special("</s>")},
        "model_max_length": 2048,
        "pad_token": None,
        "padding_side": "right",
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": {"__type": "AddedToken", **_special("<unk>")},
    }


def _special(text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": text, **flags}
