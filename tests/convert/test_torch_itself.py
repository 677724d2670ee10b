"""Against PyTorch itself, where it is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.convert.drafter import ImportOptions, import_drafter
from redrafter_mlx.convert.target import convert_target
from redrafter_mlx.convert.torch_checkpoint import open_torch
from redrafter_mlx.weights import write_json
from tests.convert.family_models import CONFIGS, weights_of
from tests.convert.tiny_drafter import refusal
from tests.convert.tiny_torch import items_of, save_torch

torch: Any = pytest.importorskip("torch", exc_type=ImportError)

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")


def random_view(seed: int) -> Any:
    """Return a tensor of a random dtype, sliced, permuted and expanded at random."""
    random = np.random.default_rng(seed)
    shape = random.integers(1, 7, size=random.integers(1, 5)).tolist()
    values = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed))
    view = values.to(getattr(torch, DTYPES[seed % len(DTYPES)]))
    for axis, size in enumerate(shape):
        begin, end = sorted(random.integers(0, size + 1, 2).tolist())
        view = view.narrow(axis, begin, end - begin)
        view = view[(slice(None),) * axis + (slice(None, None, int(random.integers(1, 3))),)]
    view = view.permute(*random.permutation(view.ndim).tolist())
    return view.expand(2, *view.shape) if seed % 3 == 0 else view


def bits(tensor: Any) -> bytes:
    tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
    plain = tensor.contiguous().view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return bytes(plain.contiguous().numpy().tobytes())


@pytest.mark.parametrize("seed", range(60))
def test_a_random_view_comes_back_bit_for_bit(tmp_path: Path, seed: int) -> None:
    view = random_view(seed)
    torch.save({"view": view, "clone": view.clone()}, tmp_path / "a.pt")
    with open_torch(tmp_path / "a.pt") as file:
        for found in file.tensors.values():
            loaded = found.load()
            assert loaded.shape == tuple(view.shape)
            assert items_of(loaded).tobytes() == bits(view)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_reads(tmp_path: Path, protocol: int) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt", pickle_protocol=protocol)
    with open_torch(tmp_path / "a.pt") as file:
        assert file.tensors["a"].load().tolist() == [1, 1, 1]


def test_a_checkpoint_without_checksums_reads(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    with open_torch(tmp_path / "a.pt") as file:
        assert file.tensors["a"].load().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: torch.zeros(2, dtype=torch.complex64), "torch.ComplexFloatStorage"),
        (lambda: torch.zeros(2).to_sparse(), "torch._utils._rebuild_sparse_tensor"),
        (lambda: torch.zeros(2, dtype=torch.uint16), "torch._utils._rebuild_tensor_v3"),
        (lambda: torch.zeros(2, device="meta"), "torch._utils._rebuild_meta_tensor_no_storage"),
    ],
)
def test_other_kinds_of_tensor_are_refused_by_name(
    tmp_path: Path, make: Callable[[], Any], name: str
) -> None:
    torch.save({"a": make()}, tmp_path / "a.pt")
    assert repr(name) in refusal(open_torch, tmp_path / "a.pt")


def test_pytorch_reads_what_the_tests_write(tmp_path: Path) -> None:
    """So that the corpus of broken files begins with files that are sound."""
    arrays = {"a": mx.arange(6, dtype=mx.float32).reshape(2, 3), "b": mx.ones((2,), mx.bfloat16)}
    loaded = torch.load(save_torch(tmp_path / "a.pt", arrays), weights_only=True)
    assert {name: value.tolist() for name, value in loaded.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_pytorch_reads_what_became_of_its_file(tmp_path: Path, dtype: Any) -> None:
    """A drafter goes through this package and comes back to PyTorch bit for bit."""
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {
        "lm_head.0.weight": torch.randn(50, 32, dtype=dtype),
        "rnn_u.weight": torch.randn(16, 16, dtype=dtype).t(),
        "rnn_u.bias": torch.randn(16, dtype=dtype),
        "rnn_w.weight": torch.randn(16, 16, dtype=dtype),
    }
    torch.save(tensors, tmp_path / "drafter.bin")
    options = ImportOptions(dtype=str(dtype).removeprefix("torch."))
    import_drafter(tmp_path / "drafter.bin", tmp_path / "out", options)
    loaded = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_converted_bfloat16_model_goes_back_into_torch(tmp_path: Path, kind: str) -> None:
    """Law: bit for bit; transformers reads the file's metadata and takes every tensor."""
    load_file = pytest.importorskip("safetensors.torch").load_file
    transformers = pytest.importorskip("transformers")
    source = tmp_path / "source"
    source.mkdir()
    write_json(source / "config.json", CONFIGS["llama3"])
    tensors = {
        name: torch.from_numpy(value).bfloat16() for name, value in weights_of("llama3").items()
    }
    if kind == "bin":
        torch.save(tensors, source / "pytorch_model.bin")
    else:
        save_file = pytest.importorskip("safetensors.torch").save_file
        save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    convert_target(source, tmp_path / "out")
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.bfloat16, output_loading_info=True
    )
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = model.state_dict()
    assert all(torch.equal(state[name], tensors[name]) for name in tensors)
