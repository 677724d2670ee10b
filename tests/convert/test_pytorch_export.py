"""A drafter in Apple's PyTorch layout: what is written, and that it comes back bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.drafter import ImportOptions, import_drafter
from redrafter_mlx.convert.drafter_file import read_drafter
from redrafter_mlx.convert.pytorch_export import export_drafter
from redrafter_mlx.errors import CheckpointError, ConfigError, ReDrafterError, ShapeError
from redrafter_mlx.weights import load_tensors
from tests.convert.tiny_drafter import (
    NARROW,
    SIZES,
    apple_config,
    random_tensors,
    target_side,
    tied_tensors,
    write,
)


def imported(folder: Path, tensors: dict[str, mx.array], **options: object) -> Path:
    source = write(folder / "source", tensors)
    import_drafter(source, folder / "drafter", ImportOptions(**options))  # type: ignore[arg-type]
    return folder / "drafter"


@pytest.mark.parametrize("config", [NARROW, SIZES, replace(NARROW, rnn=False)])
def test_drafter_with_its_own_head_comes_back_bit_for_bit(tmp_path: Path, config) -> None:
    tensors = random_tensors(config)
    folder = imported(tmp_path, tensors)
    export_drafter(folder, tmp_path / "torch")
    written = load_tensors(tmp_path / "torch")
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert written[name].dtype == mx.float32
        assert mx.array_equal(written[name], tensor.astype(mx.float32)), name
    import_drafter(tmp_path / "torch", tmp_path / "again", ImportOptions())
    again = load_tensors(tmp_path / "again")
    for name, tensor in load_tensors(folder).items():
        assert again[name].dtype == tensor.dtype
        assert mx.array_equal(again[name], tensor), name
    assert json.loads((tmp_path / "torch/config.json").read_text()) == {
        **apple_config(config),
        "model_type": "recurrent_drafting_drafter",
        "torch_dtype": "float32",
    }


def test_file_says_that_it_is_pytorchs(tmp_path: Path) -> None:
    export_drafter(imported(tmp_path, random_tensors()), tmp_path / "torch")
    data = (tmp_path / "torch/model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert json.loads(data[8 : 8 + size])["__metadata__"] == {"format": "pt"}


@pytest.mark.parametrize("cut", [None, tuple(range(0, 50, 3))])
def test_tied_head_is_written_out_and_tied_again(tmp_path: Path, cut) -> None:
    target = target_side()
    folder = imported(tmp_path, tied_tensors(target), target=target, draft_vocab=cut)
    config = read_drafter(folder).config
    assert config.head == "tied"
    written = export_drafter(folder, tmp_path / "torch", target)
    assert (written.head, written.head_scale, written.draft_vocab_size) == ("own", 1.0, None)
    head = load_tensors(tmp_path / "torch")["lm_head.2.weight"]
    assert mx.array_equal(head, config.head_scale * target.head)
    options = ImportOptions(target=target, draft_vocab=cut, draft_length=config.draft_length)
    again = import_drafter(tmp_path / "torch", tmp_path / "again", options)
    assert np.float32(again.head_scale) == np.float32(config.head_scale)
    assert replace(again, head_scale=config.head_scale) == config
    ours, theirs = load_tensors(tmp_path / "again"), load_tensors(folder)
    assert ours.keys() == theirs.keys()
    assert all(mx.array_equal(ours[name], theirs[name]) for name in theirs)


def test_quantised_layers_are_multiplied_out(tmp_path: Path) -> None:
    packing = Quantization(8, 32)
    folder = imported(tmp_path, random_tensors(), quantization=packing)
    assert export_drafter(folder, tmp_path / "torch").quantization is None
    packed = load_tensors(folder)
    weight, scales, biases = (packed[f"rnn_w.{part}"] for part in ("weight", "scales", "biases"))
    expected = mx.dequantize(weight, scales, biases, group_size=32, bits=8).astype(mx.float32)
    assert np.array_equal(load_tensors(tmp_path / "torch")["rnn_w.weight"], expected)


@pytest.mark.parametrize(
    ("is_tied", "options", "target", "kind", "message"),
    [
        (True, {}, None, ConfigError, "tied to that of toy.*--target"),
        (True, {}, "other", CheckpointError, "tied to that of toy, not of other"),
        (True, {}, "small", ShapeError, r"has shape \(9, 32\)"),
        (False, {"draft_vocab": (1, 5, 7)}, None, ConfigError, "cut to 3 of 50 tokens"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused(
    tmp_path: Path, is_tied, options, target, kind: type[ReDrafterError], message: str
) -> None:
    side = target_side()
    sides = {
        None: None,
        "small": replace(side, head=side.head[:9]),
        "other": replace(side, identity=replace(side.identity, name="other", fingerprint="bad")),
    }
    if is_tied:
        folder = imported(tmp_path, tied_tensors(side), target=side)
    else:
        folder = imported(tmp_path, random_tensors(), **options)
    with pytest.raises(kind, match=message):
        export_drafter(folder, tmp_path / "torch", sides[target])
    assert not (tmp_path / "torch").exists()
