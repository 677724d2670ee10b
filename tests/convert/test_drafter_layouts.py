"""One drafter in every layout that programs save it in."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.convert.drafter import ImportOptions, import_drafter
from redrafter_mlx.convert.drafter_file import read_drafter
from redrafter_mlx.convert.names import tensor_shapes
from redrafter_mlx.weights import load_tensors
from tests.convert.drafter_layouts import (
    BASE,
    LAYOUTS,
    drafter_of_a_model,
    tensorrt_config,
    write_ranks,
)
from tests.convert.tiny_drafter import (
    NARROW,
    SIZES,
    H,
    V,
    random_tensors,
    refusal,
    write,
)
from tests.convert.tiny_torch import save_torch

FILES = Path(__file__).parent / "torch_files"


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_apples_tensors(tmp_path: Path, layout: str, dtype: mx.Dtype) -> None:
    tensors = random_tensors(dtype=dtype)
    drafter = read_drafter(LAYOUTS[layout](tmp_path / "source", tensors))
    assert drafter.config == NARROW
    assert drafter.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert drafter.tensors[name].dtype == dtype
        assert mx.array_equal(drafter.tensors[name], tensor)


@pytest.mark.parametrize("layout", ["file .bin", "folder with shards", "whole model"])
@pytest.mark.parametrize("exit_dim", [H, 2 * H])
def test_a_drafter_without_recurrence_reads(tmp_path: Path, layout: str, exit_dim: int) -> None:
    config = replace(SIZES, rnn=False, exit_dim=exit_dim)
    source = LAYOUTS[layout](tmp_path / "source", random_tensors(config))
    assert read_drafter(source).config == config


def test_ranks_of_a_drafter_without_recurrence_read(tmp_path: Path) -> None:
    config = replace(NARROW, rnn=False)
    values = tensorrt_config(2, redrafter_is_rnn=False)
    source = write_ranks(tmp_path / "source", random_tensors(config), 2, values)
    assert read_drafter(source).config == config
    (source / "config.json").write_text(json.dumps(tensorrt_config(2)))
    assert "rnn True" in refusal(read_drafter, source)


def torch_values() -> dict[str, np.ndarray[Any, Any]]:
    """Compute what torch_files/make.py put into its drafters."""
    config = replace(NARROW, hidden_size=8, exit_dim=8, vocab_size=20)
    shapes = tensor_shapes(config)
    order = sorted(shapes, key=lambda name: ("lm_head", "input", "rnn_u", "rnn_w").index(
        next(p for p in ("lm_head", "input", "rnn_u", "rnn_w") if name.startswith(p))
    ))  # fmt: skip
    return {
        name: (37 * np.arange(np.prod(shapes[name])) + 11 * index).reshape(shapes[name])
        % 101 / np.float32(64) - np.float32(0.75)
        for index, name in enumerate(order)
    }  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [
    ("apple", mx.float32), ("plural", mx.float16), ("sequence", mx.bfloat16),
    ("modelopt", mx.float32),
])  # fmt: skip
def test_what_pytorch_wrote_reads_bit_for_bit(name: str, dtype: mx.Dtype) -> None:
    drafter = read_drafter(FILES / f"drafter_{name}.pt")
    expected = torch_values()
    assert drafter.tensors.keys() == expected.keys()
    for key, values in expected.items():
        found = drafter.tensors[key]
        assert found.dtype == dtype
        assert mx.array_equal(found, mx.array(values.astype(np.float32)).astype(dtype))
    assert len(drafter.left_aside) == (2 if name == "modelopt" else 0)


def test_an_imported_pytorch_file_is_a_drafters_folder(tmp_path: Path) -> None:
    tensors = random_tensors(dtype=mx.float32)
    source = save_torch(tmp_path / "x_n_5_y.pt", tensors)
    config = import_drafter(source, tmp_path / "out", ImportOptions())
    assert config == replace(NARROW, draft_length=5)
    stored = load_tensors(tmp_path / "out")
    assert all(mx.array_equal(stored[k], tensors[k].astype(mx.float16)) for k in tensors)


def test_blocks_are_counted_where_modelopt_writes_another_number(tmp_path: Path) -> None:
    nested = {"num_draft_layers": 1, "hidden_size": H, "exit_dim": H, "rnn": True}
    config: dict[str, Any] = {"hidden_size": H, "vocab_size": V, "redrafter": nested}
    source = write(tmp_path / "a", drafter_of_a_model(random_tensors()), config)
    assert read_drafter(source).config == NARROW
    config["redrafter"] = nested | {"exit_dim": 99}
    (source / "config.json").write_text(json.dumps(config))
    assert "exit_dim 99" in refusal(read_drafter, source)


def test_what_is_left_aside_is_told(tmp_path: Path) -> None:
    tensors = drafter_of_a_model(random_tensors() | {"emb_norm.weight": mx.ones((H,))})
    drafter = read_drafter(write(tmp_path / "source", tensors))
    assert sorted(drafter.left_aside) == sorted(BASE)
    assert drafter.dropped == ("drafter.emb_norm.weight",)
    assert len(drafter.notes) == 2
    assert "drafter.emb_norm.weight" in drafter.notes[0] and "3 tensors" in drafter.notes[1]


def test_a_drafters_tensor_without_the_mark_is_not_left_aside(tmp_path: Path) -> None:
    """A name that a drafter knows is an error where it cannot be the model's."""
    tensors = drafter_of_a_model(random_tensors()) | {"rnn_u.bias": mx.ones((H,))}
    assert "'rnn_u.bias'" in refusal(read_drafter, write(tmp_path / "a", tensors))
    tensors = drafter_of_a_model(random_tensors()) | {"drafter.extra.weight": mx.ones((H,))}
    assert "'drafter.extra.weight'" in refusal(read_drafter, write(tmp_path / "b", tensors))


@pytest.mark.parametrize("is_known", [True, False])
def test_a_padded_head_is_cut_back(tmp_path: Path, is_known: bool) -> None:
    """To the vocabulary that config.json names: the padding is empty, or announced there."""
    tensors = random_tensors()
    head = tensors["lm_head.2.weight"]
    padding = (mx.ones if is_known else mx.zeros)((6, H), head.dtype)
    padded = tensors | {"lm_head.2.weight": mx.concatenate([head, padding])}
    announced = {"vocab_size_padded": V + 6} if is_known else {}
    values = tensorrt_config(4, **announced)
    drafter = read_drafter(write_ranks(tmp_path / "source", padded, 4, values))
    assert drafter.config == NARROW
    assert mx.array_equal(drafter.tensors["lm_head.2.weight"], head)
    assert drafter.notes[-1] == f"cut the head back from {V + 6} rows to the {V} used"


def test_rows_that_are_no_padding_are_refused_with_both_sizes(tmp_path: Path) -> None:
    values = tensorrt_config(1, vocab_size=V - 4)
    source = write_ranks(tmp_path / "source", random_tensors(), 1, values)
    message = refusal(read_drafter, source)
    assert f"vocab_size {V - 4}" in message and str(V) in message
