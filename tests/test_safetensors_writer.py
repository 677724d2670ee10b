"""Safetensors written piece by piece are those that MLX writes at once."""

import errno
import json
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.safetensors_writer import ModelWriter, TensorEntry
from redrafter_mlx.weights import load_tensors, read_json

TENSORS = {
    "bytes": mx.arange(3, dtype=mx.uint8),
    "half": mx.arange(10).astype(mx.float16).reshape(5, 2),
    "brain": mx.array([0.1, -2.0, 3.0]).astype(mx.bfloat16),
    "words": mx.array([[1, 2**32 - 1]], dtype=mx.uint32),
    "floats": mx.array([1.5]),
}
ENTRIES = {name: TensorEntry(tensor.dtype, tensor.shape) for name, tensor in TENSORS.items()}


def data_of(tensor: mx.array) -> Any:
    return np.array(tensor.view(mx.uint8)).reshape(-1)


def write(folder: Path, max_shard_bytes: int | None = None) -> None:
    """Write every tensor two bytes or fewer at a time, all of them in turn."""
    with ModelWriter(folder, ENTRIES, max_shard_bytes) as writer:
        for begin in range(0, 20, 2):
            for name, tensor in TENSORS.items():
                writer.write(name, data_of(tensor)[begin : begin + 2])
    writer.finish(21)


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    return header


def test_pieces_in_any_order_make_the_file(tmp_path: Path) -> None:
    write(tmp_path)
    loaded = load_tensors(tmp_path)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype and mx.array_equal(loaded[name], tensor)


def test_the_header_is_the_one_of_mlx_and_every_tensor_is_aligned(tmp_path: Path) -> None:
    write(tmp_path)
    mx.save_safetensors(str(tmp_path / "theirs"), TENSORS, metadata={"format": "mlx"})
    assert int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little") % 8 == 0
    ours = header_of(tmp_path / "model.safetensors")
    theirs = header_of(tmp_path / "theirs.safetensors")
    assert ours.keys() == theirs.keys()
    assert ours.pop("__metadata__") == theirs.pop("__metadata__") == {"format": "mlx"}
    for name, entry in ours.items():
        assert entry["dtype"] == theirs[name]["dtype"]
        assert entry["shape"] == theirs[name]["shape"]
        assert entry["data_offsets"][0] % TENSORS[name].dtype.size == 0


def test_shards_hold_no_more_than_allowed_and_a_larger_tensor_is_alone(tmp_path: Path) -> None:
    write(tmp_path, max_shard_bytes=12)
    names = [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)]
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == names
    index = read_json(tmp_path / "model.safetensors.index.json")
    assert index["metadata"] == {"total_size": 41, "total_parameters": 21}
    assert list(index["weight_map"]) == sorted(TENSORS)
    wanted = {"bytes": 0, "half": 1, "brain": 2, "words": 3, "floats": 3}
    wanted_files = {name: names[number] for name, number in wanted.items()}
    assert index["weight_map"] == wanted_files
    assert mx.array_equal(load_tensors(tmp_path)["half"], TENSORS["half"])


def test_a_tensor_that_lacks_bytes_is_our_own_fault(tmp_path: Path) -> None:
    with ModelWriter(tmp_path, ENTRIES) as writer:
        writer.write("floats", data_of(TENSORS["floats"]))
    with pytest.raises(AssertionError, match="bytes"):
        writer.finish(0)
    with ModelWriter(tmp_path, ENTRIES) as writer, pytest.raises(AssertionError, match="floats"):
        writer.write("floats", np.zeros(5, np.uint8))


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="cannot be written") as refused:
        ModelWriter(tmp_path / "nowhere", ENTRIES).__enter__()
    assert "No such file or directory" in str(refused.value)
    writer = ModelWriter(tmp_path, ENTRIES).__enter__()

    class Full:
        def seek(self, place: int) -> None:
            pass

        def write(self, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    writer._places["floats"].file = Full()  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match=r"No space left on device\); choose another place"):
        writer.write("floats", data_of(TENSORS["floats"]))
    writer.__exit__(None, None, None)
