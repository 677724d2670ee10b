"""One drafter written in every layout that programs save it in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from tests.convert.tiny_drafter import H, N, V, write
from tests.convert.tiny_torch import save_torch

Tensors = dict[str, mx.array]
BASE = {
    "lm_head.weight": mx.ones((V, H), mx.float16),
    "model.embed_tokens.weight": mx.ones((V, H), mx.float16),
    "model.layers.0.mlp.up_proj.weight": mx.ones((7, H), mx.float16),
}
TENSORRT_BASE = {
    "lm_head.weight": mx.ones((V, H), mx.float16),
    "transformer.layers.0.mlp.proj.weight": mx.ones((7, H), mx.float16),
    "transformer.ln_f.weight": mx.ones((H,), mx.float16),
    "base_model.lm_head.weight": mx.ones((V, H), mx.float16),
}


def tensorrt_name(name: str) -> str:
    if name == f"lm_head.{N}.weight":
        return "drafter.lm_head.weight"
    return f"drafter.{name}".replace("lm_head.", "layers.")


def tensorrt_config(num_ranks: int, **changes: Any) -> dict[str, Any]:
    return {
        "architecture": "ReDrafterForLLaMALM",
        "hidden_size": H,
        "vocab_size": V,
        "mapping": {"world_size": num_ranks, "tp_size": num_ranks},
        "redrafter_num_layers": N,
        "redrafter_hidden_size": H,
        "redrafter_exit_dim": H,
        "redrafter_is_rnn": True,
    } | changes


def write_ranks(
    folder: Path, tensors: Tensors, num_ranks: int, config: dict[str, Any] | None = None
) -> Path:
    """Split every tensor along axis 0 as torch.chunk does, the model's beside them."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config or tensorrt_config(num_ranks)))
    for rank in range(num_ranks):
        shares = dict(TENSORRT_BASE)
        for name, tensor in tensors.items():
            share = -(-len(tensor) // num_ranks)
            shares[tensorrt_name(name)] = tensor[rank * share : (rank + 1) * share]
        mx.save_safetensors(str(folder / f"rank{rank}.safetensors"), shares)
    return folder


def renamed(tensors: Tensors, **changes: str) -> Tensors:
    for old, new in changes.items():
        tensors = {name.replace(f"{old}.", f"{new}."): value for name, value in tensors.items()}
    return tensors


def sharded(folder: Path, tensors: Tensors) -> Path:
    folder.mkdir()
    shards: list[Tensors] = [{}, {}]
    for index, name in enumerate(tensors):
        shards[index % 2][name] = tensors[name]
    names = [f"pytorch_model-0000{index}-of-00002.bin" for index in (1, 2)]
    for file, shard in zip(names, shards, strict=True):
        save_torch(folder / file, shard)
    files = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def in_folder(folder: Path, file: str, tensors: Tensors) -> Path:
    folder.mkdir()
    save_torch(folder / file, tensors)
    return folder


def drafter_of_a_model(tensors: Tensors) -> Tensors:
    return BASE | {f"drafter.{name}": tensor for name, tensor in tensors.items()}


LAYOUTS: dict[str, Callable[[Path, Tensors], Path]] = {
    "file .pt": lambda path, t: save_torch(path.with_suffix(".pt"), t),
    "file .bin": lambda path, t: save_torch(path.with_suffix(".bin"), t),
    "folder with pytorch_model.bin": lambda path, t: in_folder(path, "pytorch_model.bin", t),
    "folder with model.pt": lambda path, t: in_folder(path, "model.pt", t),
    "folder with shards": sharded,
    "plural names": lambda path, t: save_torch(
        path.with_suffix(".pt"), renamed(t, lm_head="lm_heads", input_proj="input_projs")
    ),
    "names of a sequence": lambda path, t: save_torch(
        path.with_suffix(".pt"), renamed(t, lm_head="0")
    ),
    "one rank": lambda path, t: write_ranks(path, t, 1),
    "two ranks": lambda path, t: write_ranks(path, t, 2),
    "three ranks": lambda path, t: write_ranks(path, t, 3),
    "whole model": lambda path, t: write(path, drafter_of_a_model(t)),
    "whole model in shards": lambda path, t: sharded(path, drafter_of_a_model(t)),
    "beside a verifier": lambda path, t: write(
        path, t | {"verifier.norm.weight": mx.ones(3), "verifier_lm_head.weight": mx.ones(3)}
    ),
}
