"""GGUF tensors keep their values bit for bit in MLX's layout."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.convert.base import rotary_rows
from redrafter_mlx.convert.gguf import GgufTensor, read_gguf
from redrafter_mlx.convert.gguf_tensors import (
    choose_float_dtype,
    packed_job,
    source_tensor,
    stored_bits,
    stored_dtype,
)
from redrafter_mlx.convert.tensor_job import float_job
from redrafter_mlx.errors import CheckpointError
from tests.convert.run_jobs import run_job
from tests.convert.tiny_gguf import Tensor, float_bytes, gguf_bytes, random_tensor

Array = np.ndarray[Any, np.dtype[Any]]
QUANTISED = ("Q4_0", "Q4_1", "Q8_0")


def stored(path: Path, *tensors: Tensor) -> list[GgufTensor]:
    (path / "x.gguf").write_bytes(gguf_bytes([], tensors))
    return list(read_gguf(path / "x.gguf").tensors.values())


@dataclass(frozen=True)
class ConvertedTensor:
    arrays: dict[str, mx.array]
    bits: int | None


def convert_tensor(source: GgufTensor, rows: Any, float_dtype: mx.Dtype) -> ConvertedTensor:
    bits = stored_bits(source)
    dtype = stored_dtype(source, bits, float_dtype)
    if bits is None:
        job = float_job(source_tensor(source, rows), "weight", dtype)
    else:
        job = packed_job(source, "weight", rows, bits, dtype)
    arrays = {name.removeprefix("weight."): array for name, array in run_job(job).items()}
    return ConvertedTensor(arrays, bits)


def values_of(converted: ConvertedTensor) -> Array:
    """Return the float32 values, the arithmetic done in float32."""
    weight = converted.arrays["weight"]
    if converted.bits is None:
        return np.array(weight.astype(mx.float32))
    scales, biases = (converted.arrays[part].astype(mx.float32) for part in ("scales", "biases"))
    return np.array(mx.dequantize(weight, scales, biases, 32, converted.bits))


def weight_of(kind: str, block: bytes, i: int) -> np.float32:
    """Return weight i of a block by llama.cpp's formula, spelled out."""
    (d,) = struct.unpack_from("<e", block)
    if kind == "Q8_0":
        return np.float32(d) * np.float32(struct.unpack_from("b", block, 2 + i)[0])
    start = 2 if kind == "Q4_0" else 4
    byte = block[start + i % 16]
    q = byte & 15 if i < 16 else byte >> 4
    if kind == "Q4_0":
        return np.float32(d) * np.float32(q - 8)
    (m,) = struct.unpack_from("<e", block, 2)
    return np.float32(d) * np.float32(q) + np.float32(m)


def expected(tensor: Tensor) -> Array:
    num_bytes = len(tensor.data) // (int(np.prod(tensor.shape)) // 32)
    blocks = [tensor.data[i : i + num_bytes] for i in range(0, len(tensor.data), num_bytes)]
    flat = [weight_of(tensor.kind, block, i) for block in blocks for i in range(32)]
    return np.array(flat, np.float32).reshape(tensor.shape)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("scale", [0.02, 1e-7, 300.0])
def test_quantised_values_are_exact(tmp_path: Path, kind: str, scale: float) -> None:
    """mx.dequantize of the result == llama.cpp's formula, every bit; 1e-7 is subnormal."""
    tensor = random_tensor("w", kind, (6, 96), np.random.default_rng(1), scale)
    (source,) = stored(tmp_path, tensor)
    converted = convert_tensor(source, None, mx.float16)
    assert np.array_equal(values_of(converted), expected(tensor))


@pytest.mark.parametrize("kind", QUANTISED)
def test_values_equal_those_of_the_gguf_package(tmp_path: Path, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    tensor = random_tensor("w", kind, (6, 96), np.random.default_rng(2))
    (source,) = stored(tmp_path, tensor)
    rows = np.frombuffer(tensor.data, np.uint8).reshape(6, -1)
    theirs = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(values_of(convert_tensor(source, None, mx.float16)), theirs)


@pytest.mark.parametrize(
    ("kind", "bits", "words"), [("Q4_0", 4, 12), ("Q4_1", 4, 12), ("Q8_0", 8, 24)]
)
def test_the_layout_is_the_one_of_mx_quantize(
    tmp_path: Path, kind: str, bits: int, words: int
) -> None:
    (source,) = stored(tmp_path, random_tensor("w", kind, (6, 96), np.random.default_rng(3)))
    converted = convert_tensor(source, None, mx.float16)
    assert converted.bits == bits
    shapes = {name: (array.shape, array.dtype) for name, array in converted.arrays.items()}
    assert shapes == {
        "weight": ((6, words), mx.uint32),
        "scales": ((6, 3), mx.float16),
        "biases": ((6, 3), mx.float16),
    }


@pytest.mark.parametrize(("kind", "largest", "bits"), [("Q8_0", 511.75, 8), ("Q4_0", 8188.0, 4)])
def test_a_scale_too_large_for_a_float16_bias_gives_float32(
    tmp_path: Path, kind: str, largest: float, bits: int
) -> None:
    """The bias is -128 d or -8 d; the largest d that fits stays quantised."""
    tensor = random_tensor("w", kind, (1, 32), np.random.default_rng(4))
    next_scale = np.nextafter(np.float16(largest), np.float16(np.inf))
    for scale, wanted in ((largest, bits), (-largest, bits), (next_scale, None)):
        data = np.float16(scale).tobytes() + tensor.data[2:]
        changed = Tensor("w", kind, (1, 32), data)
        (source,) = stored(tmp_path, changed)
        converted = convert_tensor(source, None, mx.float16)
        assert converted.bits == wanted
        assert np.array_equal(values_of(converted), expected(changed))
    assert converted.arrays["weight"].dtype == mx.float32


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F16", mx.float16), ("BF16", mx.bfloat16), ("F32", mx.float32)]
)
def test_floats_keep_dtype_and_values(tmp_path: Path, kind: str, dtype: mx.Dtype) -> None:
    tensor = random_tensor("w", kind, (3, 5), np.random.default_rng(5))
    (source,) = stored(tmp_path, tensor)
    converted = convert_tensor(source, None, mx.float32)
    assert converted.arrays["weight"].dtype == dtype
    array = np.frombuffer(tensor.data, {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}[kind])
    wide = (array.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else array
    assert np.array_equal(values_of(converted).ravel(), wide.astype(np.float32))


@pytest.mark.parametrize(
    ("values", "matrix", "dtype"),
    [
        ([0.5, -1.25], "Q4_1", mx.float16),
        ([0.5, -1.25], "BF16", mx.bfloat16),
        ([2.0**17, 1.0], "Q4_1", mx.bfloat16),
        ([1.0 + 2.0**-10, 1.0], "BF16", mx.float16),
        ([1.0 + 2.0**-20, 1.0], "Q4_1", mx.float32),
        ([2.0**17, 1.0 + 2.0**-10], "Q4_1", mx.float32),
    ],
)
def test_vectors_get_the_narrowest_exact_dtype(
    tmp_path: Path, values: list[float], matrix: str, dtype: mx.Dtype
) -> None:
    """One dtype for all float32 tensors: the matrices' own if it holds them exactly."""
    rng = np.random.default_rng(6)
    vectors = [
        Tensor(str(i), "F32", (1,), float_bytes("F32", np.array([value], np.float32)))
        for i, value in enumerate(values)
    ]
    sources = stored(tmp_path, *vectors, random_tensor("w", matrix, (1, 32), rng))
    assert choose_float_dtype(sources) == dtype
    kept = [values_of(convert_tensor(source, None, dtype)).item() for source in sources[:2]]
    assert kept == values


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", *QUANTISED])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(tmp_path: Path, kind: str, bad: float) -> None:
    tensor = random_tensor("w", kind, (1, 32), np.random.default_rng(8))
    head = float_bytes(kind if kind in ("F32", "BF16") else "F16", np.array([bad], np.float32))
    (source,) = stored(tmp_path, Tensor("w", kind, (1, 32), head + tensor.data[len(head) :]))
    with pytest.raises(CheckpointError, match="'w' holds NaN or infinity"):
        convert_tensor(source, None, mx.float32)


def test_rotary_rows_worked_example() -> None:
    """Two heads of 4: the file has each head's rows as 0 2 1 3, counted in the model's order."""
    assert rotary_rows(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert rotary_rows(6, 1).tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize(("num_rows", "num_heads"), [(8, 1), (8, 2), (24, 2), (64, 4)])
def test_rotary_rows_undo_what_llama_cpp_does(num_rows: int, num_heads: int) -> None:
    """permute(model)[rotary_rows] == model, permute as in llama.cpp's converter."""
    model = np.random.default_rng(9).standard_normal((num_rows, 3))
    halves = model.reshape(num_heads, 2, num_rows // num_heads // 2, 3)
    file = halves.swapaxes(1, 2).reshape(model.shape)
    assert np.array_equal(file[rotary_rows(num_rows, num_heads)], model)


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q8_0"])
def test_rows_are_taken_in_the_given_order(tmp_path: Path, kind: str) -> None:
    (source,) = stored(tmp_path, random_tensor("w", kind, (6, 32), np.random.default_rng(10)))
    rows = np.array([5, 0, 3, 1, 2, 4])
    plain = values_of(convert_tensor(source, None, mx.float32))
    assert np.array_equal(values_of(convert_tensor(source, rows, mx.float32)), plain[rows])
