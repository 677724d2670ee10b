"""Importing a drafter: the head tied and cut, the rest cast and quantised."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.drafter import ImportOptions, TargetSide, TokenIds, import_drafter
from redrafter_mlx.convert.drafter_file import read_drafter
from redrafter_mlx.errors import CheckpointError, ConfigError, ShapeError
from redrafter_mlx.weights import load_tensors
from tests.convert.tiny_drafter import (
    HALVES,
    IDENTITY,
    NARROW,
    SIZES,
    H,
    V,
    apple_config,
    folder_of,
    random_tensors,
    refusal,
    target_side,
    tied_tensors,
    write,
)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    """Importing changes no tensor where no option asks for it."""
    tensors = random_tensors(SIZES)
    source = write(tmp_path / "source", tensors, apple_config(SIZES))
    written = import_drafter(source, tmp_path / "out", ImportOptions(draft_length=4))
    assert written == replace(SIZES, draft_length=4)
    assert folder_of(tmp_path / "out") == ["config.json", "model.safetensors"]
    again = read_drafter(tmp_path / "out")
    assert again.config == written
    assert tensors.keys() == again.tensors.keys()
    assert all(mx.array_equal(tensors[name], again.tensors[name]) for name in tensors)


def test_the_option_overrides_the_folders_draft_length(tmp_path: Path) -> None:
    source = write(tmp_path / "x_n_5_y", random_tensors())
    assert import_drafter(source, tmp_path / "a", ImportOptions()).draft_length == 5
    assert import_drafter(source, tmp_path / "b", ImportOptions(draft_length=3)).draft_length == 3


@pytest.mark.parametrize("stored", [*HALVES, mx.float32])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_only_float32_is_cast(tmp_path: Path, stored: mx.Dtype, dtype: str) -> None:
    source = write(tmp_path / "source", random_tensors(dtype=stored))
    import_drafter(source, tmp_path / "out", ImportOptions(dtype=dtype))
    expected = getattr(mx, dtype) if stored == mx.float32 else stored
    assert {t.dtype for t in load_tensors(tmp_path / "out").values()} == {expected}


def test_a_value_too_large_for_float16_is_refused_by_name(tmp_path: Path) -> None:
    tensors = random_tensors(dtype=mx.float32)
    tensors["rnn_w.weight"][0, 0] = -70000.0
    source = write(tmp_path / "source", tensors)
    message = refusal(import_drafter, source, tmp_path / "out", ImportOptions())
    assert "'rnn_w.weight'" in message and "70000" in message
    import_drafter(source, tmp_path / "out", ImportOptions(dtype="bfloat16"))


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="int8"):
        ImportOptions(dtype="int8")


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size"])
def test_a_target_of_another_size_is_refused_with_both_numbers(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "source", random_tensors())
    changed: dict[str, Any] = {name: 999}
    target = TargetSide(replace(IDENTITY, **changed), target_side().head)
    with pytest.raises(ShapeError, match=rf"{name} is {getattr(NARROW, name)}.*999"):
        import_drafter(source, tmp_path / "out", ImportOptions(target=target))


def test_a_targets_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "source", random_tensors())
    target = TargetSide(IDENTITY, mx.zeros((V + 1, H)))
    with pytest.raises(ShapeError, match=rf"\({V + 1}, {H}\).*\({V}, {H}\)"):
        import_drafter(source, tmp_path / "out", ImportOptions(target=target))


@pytest.mark.parametrize("dtype", [*HALVES, mx.float32])
def test_a_multiple_of_the_targets_head_is_tied(tmp_path: Path, dtype: mx.Dtype) -> None:
    target = target_side()
    source = write(tmp_path / "source", tied_tensors(target, dtype))
    config = import_drafter(source, tmp_path / "out", ImportOptions(target=target))
    assert config.head == "tied" and config.head_scale == pytest.approx(1.94, rel=1e-4)
    assert config.target == IDENTITY
    assert "lm_head.2.weight" not in load_tensors(tmp_path / "out")
    assert read_drafter(tmp_path / "out").config == config


def test_another_head_stays_its_own(tmp_path: Path) -> None:
    source = write(tmp_path / "source", random_tensors())
    config = import_drafter(source, tmp_path / "out", ImportOptions(target=target_side()))
    assert config.head == "own" and config.head_scale == 1.0
    assert config.target == IDENTITY


def test_a_wider_head_is_never_tied(tmp_path: Path) -> None:
    source = write(tmp_path / "source", random_tensors(SIZES))
    config = import_drafter(source, tmp_path / "out", ImportOptions(target=target_side()))
    assert config.head == "own"


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_draft_vocabulary_maps_rows_to_tokens(tmp_path: Path, is_tied: bool) -> None:
    """Row i of the cut head is the row of token draft_vocab[i] in the whole one."""
    target = target_side()
    tensors = tied_tensors(target) if is_tied else random_tensors()
    source = write(tmp_path / "source", tensors)
    options = ImportOptions(target=target, draft_vocab=(40, 2, 7))
    config = import_drafter(source, tmp_path / "out", options)
    assert config.draft_vocab_size == 3 and config.num_head_rows == 3
    stored = load_tensors(tmp_path / "out")
    assert stored["draft_vocab"].dtype == mx.int32
    assert stored["draft_vocab"].tolist() == [2, 7, 40]
    assert (config.head == "tied") == is_tied == ("lm_head.2.weight" not in stored)
    if not is_tied:
        whole = tensors["lm_head.2.weight"]
        assert mx.array_equal(stored["lm_head.2.weight"], whole[stored["draft_vocab"]])
    assert read_drafter(tmp_path / "out").config == config


@pytest.mark.parametrize("draft_vocab", [mx.array([3, 1]), np.array([3, 1], np.int32), (3, 1)])
def test_a_draft_vocabulary_may_be_any_array(tmp_path: Path, draft_vocab: TokenIds) -> None:
    source = write(tmp_path / "source", random_tensors())
    import_drafter(source, tmp_path / "out", ImportOptions(draft_vocab=draft_vocab))
    assert load_tensors(tmp_path / "out")["draft_vocab"].tolist() == [1, 3]


@pytest.mark.parametrize(("draft_vocab", "words"), [
    ((), "0 ids"), ((1, 2, 1), "3 ids, 2"), ((-1, 2), "-1"), ((1, V), f"{V}; .*{V - 1}"),
])  # fmt: skip
def test_a_draft_vocabulary_that_cannot_be_is_refused(
    tmp_path: Path, draft_vocab: TokenIds, words: str
) -> None:
    source = write(tmp_path / "source", random_tensors())
    with pytest.raises(ConfigError, match=words):
        import_drafter(source, tmp_path / "out", ImportOptions(draft_vocab=draft_vocab))


@pytest.mark.parametrize("bits", [4, 8])
def test_linear_layers_are_quantised_as_mlx_names_them(tmp_path: Path, bits: int) -> None:
    tensors = random_tensors()
    source = write(tmp_path / "source", tensors)
    quantization = Quantization(bits, 32)
    config = import_drafter(source, tmp_path / "out", ImportOptions(quantization=quantization))
    assert config.quantization == quantization
    stored = read_drafter(tmp_path / "out").tensors
    matrices = [name for name in tensors if tensors[name].ndim == 2]
    assert {f"{name.removesuffix('weight')}scales" for name in matrices} < stored.keys()
    assert len(stored) == len(tensors) + 2 * len(matrices)
    for name in matrices:
        parts = mx.quantize(tensors[name], 32, bits)
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            assert mx.array_equal(stored[name.replace("weight", part)], array)


def test_a_layer_that_the_group_size_does_not_divide_stays_in_floating_point(
    tmp_path: Path,
) -> None:
    config = replace(SIZES, exit_dim=48)
    source = write(tmp_path / "source", random_tensors(config))
    options = ImportOptions(quantization=Quantization(4, 32))
    import_drafter(source, tmp_path / "out", options)
    stored = read_drafter(tmp_path / "out").tensors
    scales = {name.removesuffix(".scales") for name in stored if name.endswith(".scales")}
    assert scales == {"input_proj", "rnn_u", "rnn_w"}
    assert stored["lm_head.0.linear.weight"].dtype == mx.float16


def test_a_group_size_that_divides_no_layer_is_refused(tmp_path: Path) -> None:
    config = replace(NARROW, num_draft_layers=0, hidden_size=24, exit_dim=24)
    source = write(tmp_path / "source", random_tensors(config))
    options = ImportOptions(quantization=Quantization(4, 64))
    assert "64" in refusal(import_drafter, source, tmp_path / "out", options)


@pytest.mark.parametrize("options", [
    ImportOptions(draft_length=1000),
    ImportOptions(draft_vocab=(V,)),
    ImportOptions(target=TargetSide(replace(IDENTITY, vocab_size=51), mx.zeros((51, H)))),
])  # fmt: skip
def test_an_error_leaves_nothing_behind(tmp_path: Path, options: ImportOptions) -> None:
    source = write(tmp_path / "source", random_tensors())
    refusal(import_drafter, source, tmp_path / "out", options)
    assert folder_of(tmp_path) == ["source"]


def test_a_bad_source_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"rnn_w.weight": mx.ones((H, H))})
    refusal(import_drafter, source, tmp_path / "out", ImportOptions())
    assert folder_of(tmp_path) == ["source"]


def test_a_folder_with_something_in_it_is_refused_and_kept(tmp_path: Path) -> None:
    source = write(tmp_path / "source", random_tensors())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="out"):
        import_drafter(source, tmp_path / "out", ImportOptions())
    assert folder_of(tmp_path / "out") == ["mine.txt"]
