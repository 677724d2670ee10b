"""What a model needs, known from headers alone, against what there is."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.loading import memory
from redrafter_mlx.loading import model as loading
from redrafter_mlx.loading.memory import MachineMemory, MemoryNeed, check_memory, memory_need
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import RecurrentDrafter
from redrafter_mlx.models.target_config import TargetConfig
from redrafter_mlx.weights import save_tensors, write_json

GIB = 2**30
SETTINGS = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}
QUANTIZED = {"group_size": 64, "bits": 4}


def nbytes(module: nn.Module) -> int:
    parameters: dict[str, mx.array] = dict(tree_flatten(module.parameters()))
    return sum(value.nbytes for value in parameters.values())


def write_model(folder: Path, changes: dict[str, Any], *, is_quantized: bool = False) -> Path:
    """Write a model of zeros in float16."""
    folder.mkdir(exist_ok=True)
    settings = SETTINGS | changes
    decoder = Decoder(TargetConfig.from_dict(settings), is_tied=False)
    decoder.set_dtype(mx.float16)
    if is_quantized:
        nn.quantize(decoder, group_size=64, bits=4)
        settings = settings | {"quantization": QUANTIZED}
    write_json(folder / "config.json", settings)
    save_tensors(folder / "model.safetensors", dict(tree_flatten(decoder.parameters())))
    return folder


def write_drafter(folder: Path) -> Path:
    """Write a drafter of zeros in float32."""
    folder.mkdir()
    config = DrafterConfig(hidden_size=64, vocab_size=64, exit_dim=128, num_draft_layers=1)
    write_json(folder / "config.json", config.to_dict())
    parameters = RecurrentDrafter(config).parameters()
    save_tensors(folder / "model.safetensors", dict(tree_flatten(parameters)))
    return folder


@pytest.mark.parametrize("dtype", ["stored", "float16", "bfloat16", "float32", "auto"])
@pytest.mark.parametrize("is_quantized", [False, True])
def test_the_need_is_what_loading_fills(tmp_path: Path, dtype: str, is_quantized: bool) -> None:
    """Law: weights, drafter and cache, as predicted, in every dtype."""
    folder = write_model(tmp_path / "model", {}, is_quantized=is_quantized)
    drafter = write_drafter(tmp_path / "drafter")
    need = memory_need(folder, drafter, dtype)
    target = loading.load_target(folder, dtype)
    assert need.weight_bytes == nbytes(target)
    network = loading.load_drafter(drafter, target, dtype)._network
    assert need.drafter_bytes == nbytes(network)
    kv_cache = target.make_kv_cache()
    target(mx.zeros(512, mx.int32), kv_cache)
    assert need.num_cached_tokens == kv_cache.capacity == 512
    assert need.kv_cache_bytes == sum(array.nbytes for array in kv_cache.arrays)


def test_a_long_context_counts_in_part(tmp_path: Path) -> None:
    short = memory_need(write_model(tmp_path, {}), None, "stored")
    long = memory_need(write_model(tmp_path, {"max_position_embeddings": 10**6}), None, "stored")
    assert long.num_cached_tokens == memory.KV_CACHE_TOKENS == 8 * short.num_cached_tokens
    assert long.kv_cache_bytes == 8 * short.kv_cache_bytes
    assert long.drafter_bytes == 0


def test_four_bits_are_as_many_bytes_as_mlx_needs(tmp_path: Path) -> None:
    """Law: the estimate is what mlx makes of the model; a quantised one has none."""
    need = memory_need(write_model(tmp_path / "a", {}), None, "stored")
    quantized = write_model(tmp_path / "b", {}, is_quantized=True)
    assert need.four_bit_bytes == nbytes(loading.load_target(quantized, "stored"))
    assert memory_need(quantized, None, "stored").four_bit_bytes is None
    # Multiplied out again, quantising would not make it smaller.
    assert memory_need(tmp_path / "a", None, "float16").four_bit_bytes is None


def test_a_drafter_that_cannot_be_read_counts_nothing(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", {})
    drafter = write_drafter(tmp_path / "drafter")
    (drafter / "model.safetensors").write_bytes(b"damaged")
    assert memory_need(model, drafter, "stored").drafter_bytes == 0
    assert memory_need(model, tmp_path / "missing", "stored").drafter_bytes == 0


NEED = MemoryNeed(14 * GIB, GIB // 2, GIB // 4, 4096, 4 * GIB)
FIGURES = "needs about 14.8 GiB of memory (weights 14.0, KV cache of 4096 tokens 0.5, drafter 0.2)"


def test_a_model_larger_than_the_machine_is_refused_with_the_command_that_helps() -> None:
    with pytest.raises(CheckpointError) as refused:
        check_memory("org/m", NEED, MachineMemory(8 * GIB, None))
    assert str(refused.value) == (
        f"org/m {FIGURES} and this machine has 8.0; run redrafter-mlx chat --model org/m "
        "--quantize 4, or choose a smaller model."
    )


def test_the_command_can_be_copied_whatever_the_path_is() -> None:
    with pytest.raises(CheckpointError, match=r"chat --model '/my models/a' --quantize 4, or"):
        check_memory("/my models/a", NEED, MachineMemory(8 * GIB, None))


@pytest.mark.parametrize(("four_bit_bytes", "reason"), [(None, "."), (12 * GIB, ": at 4 bits")])
def test_the_command_is_not_named_where_it_does_not_help(
    four_bit_bytes: int | None, reason: str
) -> None:
    need = replace(NEED, four_bit_bytes=four_bit_bytes)
    with pytest.raises(CheckpointError) as refused:
        check_memory("m", need, MachineMemory(8 * GIB, 6 * GIB))
    assert f"choose a smaller model{reason}" in str(refused.value)
    assert "--quantize" not in str(refused.value)


def test_a_model_over_what_is_recommended_is_told_and_not_refused() -> None:
    (notice,) = check_memory("m", NEED, MachineMemory(16 * GIB, 12 * GIB))
    assert notice == (
        f"m {FIGURES}, more than the 12.0 that the GPU is recommended to use, so it may be "
        "slow: run redrafter-mlx chat --model m --quantize 4, or choose a smaller model."
    )


@pytest.mark.parametrize(
    "machine", [MachineMemory(NEED.total_bytes, None), MachineMemory(32 * GIB, NEED.total_bytes)]
)
def test_what_just_fits_is_not_worth_a_word(machine: MachineMemory) -> None:
    assert check_memory("m", NEED, machine) == ()


def test_the_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    is_gpu = mx.default_device().type == mx.gpu
    machine = MachineMemory.of_this_machine()
    assert GIB // 4 < machine.total_bytes < 2**50
    assert is_gpu or machine.recommended_bytes is None
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 5})
    assert MachineMemory.of_this_machine() == replace(machine, recommended_bytes=5)


def write_huge(folder: Path, name: str = "model.norm.weight") -> Path:
    """Write a model whose file claims 2**43 bytes, nearly all of them a hole."""
    shape = [2**20, 2**21]
    num_bytes = 4 * shape[0] * shape[1]
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, num_bytes]}
    header = json.dumps({name: entry}).encode()
    folder.mkdir()
    write_json(folder / "config.json", SETTINGS)
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    try:
        os.truncate(path, path.stat().st_size + num_bytes)
    except OSError:
        pytest.skip("the file system has no files as large")
    return folder


@pytest.mark.parametrize("dtype", ["auto", "stored", "float16"])
def test_a_model_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, dtype: str) -> None:
    """Reading it would fill the memory and take hours."""
    folder = write_huge(tmp_path / "model")
    gib = 4096.0 if dtype == "float16" else 8192.0
    with pytest.raises(CheckpointError, match=f"weights {gib}, KV cache .* this machine has"):
        loading.load(folder, dtype=dtype)


def test_the_models_own_drafter_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a named one; without one there is nothing to count."""
    folder = write_model(tmp_path / "model", {})
    write_drafter(folder / "drafter")
    needs: list[MemoryNeed] = []

    def note(name: str, need: MemoryNeed, machine: MachineMemory) -> tuple[str, ...]:
        needs.append(need)
        return ("large",)

    monkeypatch.setattr(loading, "check_memory", note)
    monkeypatch.setattr(loading, "load_tokenizer", lambda folder: Tokenizer())
    for drafter in ("auto", folder / "drafter", str(folder / "drafter"), None):
        assert loading.load(folder, drafter=drafter).notices[0] == "large"
    assert [bool(need.drafter_bytes) for need in needs] == [True, True, True, False]


class Tokenizer:
    eos_token_id = 7
    chat_template = "{{ messages }}"


def test_a_refusal_for_size_does_not_tell_to_remove_the_models_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model", {})
    monkeypatch.setattr(loading, "resolve_model", lambda name, **_: folder)
    monkeypatch.setattr(MachineMemory, "of_this_machine", lambda: MachineMemory(5, None))
    with pytest.raises(CheckpointError, match="smollm2-135m needs about") as refused:
        loading.load("smollm2-135m")
    assert "Remove" not in str(refused.value)
