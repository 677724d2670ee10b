"""Reading files that PyTorch 2.13 wrote, without it; torch_files/make.py wrote them."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from redrafter_mlx.convert.torch_checkpoint import open_torch
from tests.convert.tiny_drafter import refusal
from tests.convert.tiny_torch import archive, items_of, mapping, program, save_torch, tensor

FILES = Path(__file__).parent / "torch_files"

COUNTED = np.arange(-60, 60).reshape(2, 3, 20)
PATTERNS = np.arange(0, 65536, 97, dtype=np.uint16)
WHOLE = np.arange(120, dtype=np.float32).reshape(10, 12)
HALF = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
ONES = np.ones(2, np.float32)

DTYPES: dict[str, tuple[mx.Dtype, npt.NDArray[Any]]] = {
    "float16": (mx.float16, PATTERNS),
    "bfloat16": (mx.bfloat16, PATTERNS),
    "float64": (mx.float32, (COUNTED / 7).astype(np.float32)),
    "float32": (mx.float32, COUNTED.astype(np.float32) / 7),
    "int64": (mx.int64, COUNTED),
    "int32": (mx.int32, COUNTED.astype(np.int32)),
    "int16": (mx.int16, COUNTED.astype(np.int16)),
    "int8": (mx.int8, COUNTED.astype(np.int8)),
    "uint8": (mx.uint8, COUNTED.astype(np.uint8)),
    "bool": (mx.bool_, COUNTED % 3 == 0),
    "scalar": (mx.float32, np.array(2.5, np.float32)),
    "empty": (mx.float32, np.zeros((0, 4), np.float32)),
}
VIEWS: dict[str, npt.NDArray[np.float32]] = {
    "whole": WHOLE,
    "transposed": WHOLE.T,
    "rows": WHOLE[3:7],
    "block": WHOLE[2:5, 1:9:3],
    "column": WHOLE[:, 4],
    "repeated": np.full((6, 5), WHOLE[1, 2]),
    "row": WHOLE[9:],
    "half": HALF,
    "permuted": HALF.transpose(2, 0, 1)[1:4],
    "nothing": WHOLE[10:],
}


def load_all(path: Path) -> dict[str, mx.array]:
    with open_torch(path) as file:
        return {name: tensor.load() for name, tensor in file.tensors.items()}


@pytest.mark.parametrize("name", DTYPES)
def test_each_dtype_comes_back_bit_for_bit(name: str) -> None:
    dtype, expected = DTYPES[name]
    with open_torch(FILES / "dtypes.pt") as file:
        assert file.tensors.keys() == DTYPES.keys()
        found = file.tensors[name]
        assert (found.name, found.dtype, found.shape) == (name, dtype, expected.shape)
        loaded = found.load()
    assert (loaded.dtype, loaded.shape) == (dtype, expected.shape)
    assert items_of(loaded).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", VIEWS)
def test_each_view_of_a_shared_storage_comes_back(name: str) -> None:
    loaded = load_all(FILES / "views.pt")
    assert loaded.keys() == VIEWS.keys()
    assert np.array_equal(np.array(loaded[name].astype(mx.float32)), VIEWS[name])
    assert loaded[name].dtype == (mx.bfloat16 if name in ("half", "permuted") else mx.float32)


def test_a_trainers_file_gives_the_models_state_alone() -> None:
    """The optimizer's state and the numbers beside it are left aside."""
    loaded = load_all(FILES / "trained.pt")
    assert {name: array.tolist() for name, array in loaded.items()} == {
        "0.weight": WEIGHT.tolist(),
        "0.bias": [10, 11],
        "1.weight": [20, 21],
        "1.bias": [30, 31],
        "1.running_mean": pytest.approx([1.3, 2.3]),
        "1.running_var": pytest.approx([0.9, 0.9]),
        "1.num_batches_tracked": 1,
    }


@pytest.mark.parametrize(
    ("file", "prefix"), [("small.pt", ""), ("protocol4.pt", ""), ("nested.pt", "net.a.")]
)
def test_parameters_keep_their_names(file: str, prefix: str) -> None:
    """In any protocol; the names of nested dicts are joined by dots."""
    loaded = load_all(FILES / file)
    expected = {"embed": WEIGHT, "head": WEIGHT, "bias": ONES}
    for name, values in expected.items():
        assert np.array_equal(np.array(loaded.pop(prefix + name)), values)
    assert set(loaded) == ({"net.b"} if prefix else set())


def test_the_format_before_1_6_is_refused_with_the_remedy() -> None:
    message = refusal(open_torch, FILES / "before_1_6.pt")
    assert "before 1.6" in message and "torch.save(torch.load(" in message


def test_a_whole_module_is_refused_by_its_class() -> None:
    message = refusal(open_torch, FILES / "module.pt")
    assert "'torch.nn.modules.linear.Linear'" in message and "state_dict()" in message


def test_an_array_outlives_its_file() -> None:
    with open_torch(FILES / "small.pt") as file:
        loaded = file.tensors["embed"].load()
    assert np.array_equal(np.array(loaded), WEIGHT)
    with pytest.raises(ValueError, match="closed"):
        file.tensors["embed"].load()


def test_opening_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and shapes come without a look at the storages."""
    monkeypatch.setattr(np, "frombuffer", None)
    with open_torch(FILES / "dtypes.pt") as file:
        assert sum(found.num_bytes for found in file.tensors.values()) > 0
        with pytest.raises(TypeError):
            file.tensors["float32"].load()


def test_a_large_tensor_is_copied_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrafter_mlx.convert.torch_checkpoint._CHUNK_BYTES", 64)
    assert np.array_equal(np.array(load_all(FILES / "views.pt")["whole"]), WHOLE)
    assert items_of(load_all(FILES / "dtypes.pt")["bfloat16"]).tobytes() == PATTERNS.tobytes()


def test_a_float64_beyond_float32_is_refused_by_name(tmp_path: Path) -> None:
    double = b"ctorch\nDoubleStorage\n"
    for value, is_fine in [(1e300, False), (np.inf, True), (np.nan, True), (1e38, True)]:
        data = np.array([1.0, value]).tobytes()
        pickle = program(mapping({"w": tensor((2,), (1,), num_items=2, kind=double)}))
        path = archive(tmp_path / "a.pt", pickle, {"0": data})
        if is_fine:
            loaded = np.array(load_all(path)["w"])
            assert np.array_equal(loaded, np.array([1.0, value], np.float32), equal_nan=True)
        else:
            message = refusal(load_all, path)
            assert "'w'" in message and "1e+300" in message


def test_what_the_tests_write_reads_back(tmp_path: Path) -> None:
    """The helper of the other tests writes what PyTorch would."""
    arrays = {
        "a": mx.arange(24, dtype=mx.float32).reshape(2, 3, 4),
        "b": mx.arange(5).astype(mx.bfloat16),
        "c": mx.array(3.0),
    }
    loaded = load_all(save_torch(tmp_path / "a.bin", arrays))
    assert loaded.keys() == arrays.keys()
    assert all(mx.array_equal(loaded[name], arrays[name]) for name in arrays)
