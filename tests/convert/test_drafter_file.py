"""Reading a drafter: sizes from its tensors, and every tensor checked."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.convert.drafter_file import read_drafter
from redrafter_mlx.convert.names import apple_name, rename_tensors, tensor_shapes
from tests.convert.tiny_drafter import (
    NARROW,
    SIZES,
    E,
    H,
    N,
    V,
    apple_config,
    random_tensors,
    refusal,
    write,
)


@pytest.mark.parametrize("rnn", [True, False])
@pytest.mark.parametrize("exit_dim", [H, E, 48])
@pytest.mark.parametrize("num_draft_layers", [0, 1, 3])
def test_sizes_come_from_the_tensors(
    tmp_path: Path, rnn: bool, exit_dim: int, num_draft_layers: int
) -> None:
    config = replace(SIZES, rnn=rnn, exit_dim=exit_dim, num_draft_layers=num_draft_layers)
    tensors = random_tensors(config)
    drafter = read_drafter(write(tmp_path / "source", tensors))
    assert drafter.config == config
    assert drafter.tensors.keys() == tensors.keys()
    assert drafter.dropped == ()


def test_a_file_reads_as_its_folder_does(tmp_path: Path) -> None:
    folder = write(tmp_path / "source", random_tensors(), apple_config(NARROW))
    assert read_drafter(folder / "model.safetensors").config == read_drafter(folder).config


def test_apple_layout_has_the_published_names() -> None:
    """The table of Apple's class, spelled out."""
    assert tensor_shapes(replace(NARROW, num_draft_layers=1)) == {
        "input_proj.weight": (H, 2 * H),
        "input_proj.bias": (H,),
        "lm_head.0.linear.weight": (H, H),
        "lm_head.0.linear.bias": (H,),
        "lm_head.1.weight": (V, H),
        "rnn_u.weight": (H, H),
        "rnn_u.bias": (H,),
        "rnn_w.weight": (H, H),
    }
    assert not any(name.startswith("input_proj") for name in tensor_shapes(SIZES))


@pytest.mark.parametrize("name", tensor_shapes(NARROW))
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = random_tensors()
    shape = tensors.pop(name).shape
    message = refusal(read_drafter, write(tmp_path / "source", tensors))
    assert repr(name) in message
    if name != "lm_head.2.weight":
        assert str(shape) in message


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", tensor_shapes(NARROW))
def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path, name: str, axis: int) -> None:
    tensors = random_tensors()
    if axis == 1 and tensors[name].ndim == 1:
        tensors[name] = tensors[name][:, None]
    elif (name, axis) == ("lm_head.2.weight", 0):
        tensors[name] = tensors[name][:, 0]  # its rows are the vocabulary, whatever they are
    else:
        tensors[name] = mx.concatenate([tensors[name], tensors[name]], axis=axis)
    message = refusal(read_drafter, write(tmp_path / "source", tensors))
    assert f"{name!r}" in message
    assert str(tensors[name].shape) in message
    assert str(tensor_shapes(NARROW)[name]) in message or "(vocab_size, exit_dim)" in message


def test_a_left_over_tensor_is_named(tmp_path: Path) -> None:
    tensors = random_tensors() | {"model.norm.weight": mx.ones((7,))}
    message = refusal(read_drafter, write(tmp_path / "source", tensors))
    assert "'model.norm.weight'" in message and "(7,)" in message


def test_an_input_projection_that_apple_would_not_make_is_left_over(tmp_path: Path) -> None:
    tensors = random_tensors(SIZES) | {"input_proj.weight": mx.ones((E, E))}
    message = refusal(read_drafter, write(tmp_path / "source", tensors))
    assert "'input_proj.weight'" in message


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_entry_that_is_not_finite_is_refused(tmp_path: Path, bad: float) -> None:
    tensors = random_tensors()
    tensors["rnn_u.bias"][3] = bad
    message = refusal(read_drafter, write(tmp_path / "source", tensors))
    assert "'rnn_u.bias'" in message


def test_a_dtype_that_is_no_float_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors() | {"rnn_u.bias": mx.zeros((H,), mx.int32)}
    message = refusal(read_drafter, write(tmp_path / "source", tensors))
    assert "'rnn_u.bias'" in message and "int32" in message


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "exit_dim", "rnn"])
def test_a_config_that_disagrees_is_refused_with_both_values(tmp_path: Path, name: str) -> None:
    wrong = False if name == "rnn" else 9999
    folder = write(tmp_path / "source", random_tensors(), apple_config(NARROW) | {name: wrong})
    message = refusal(read_drafter, folder)
    assert f"{name} {wrong}" in message and str(getattr(NARROW, name)) in message


def test_the_layers_are_counted_and_not_believed(tmp_path: Path) -> None:
    values = apple_config(NARROW) | {"num_draft_layers": 7}
    folder = write(tmp_path / "source", random_tensors(), values)
    assert read_drafter(folder).config.num_draft_layers == N


def test_the_unused_norm_is_dropped_and_reported(tmp_path: Path) -> None:
    tensors = random_tensors() | {"emb_norm.weight": mx.ones((H,))}
    drafter = read_drafter(write(tmp_path / "source", tensors))
    assert drafter.dropped == ("emb_norm.weight",)
    assert "emb_norm.weight" not in drafter.tensors


@pytest.mark.parametrize(
    ("name", "draft_length"),
    [("x_redrafter_vicuna_n_5_lr_0.001_layers_2", 5), ("drafter", None), ("x_n_5", None)],
)
def test_the_draft_length_is_in_the_folders_name(
    tmp_path: Path, name: str, draft_length: int | None
) -> None:
    folder = write(tmp_path / name, random_tensors())
    assert read_drafter(folder).config.draft_length == draft_length
    assert read_drafter(folder / "model.safetensors").config.draft_length == draft_length


def test_an_absent_source_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path / "nothing") in refusal(read_drafter, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lm_heads.0.linear.bias", "lm_head.0.linear.bias"),
        ("lm_heads.2.weight", "lm_head.2.weight"),
        ("input_projs.weight", "input_proj.weight"),
        ("0.1.linear.weight", "lm_head.1.linear.weight"),
        ("0.2.weight", "lm_head.2.weight"),
        ("drafter.rnn_u.bias", "rnn_u.bias"),
        ("drafter.lm_head.0.linear.weight", "lm_head.0.linear.weight"),
        ("rnn_w.weight", "rnn_w.weight"),
        ("model.layers.0.mlp.weight", "model.layers.0.mlp.weight"),
    ],
)
def test_other_spellings_become_apples(name: str, expected: str) -> None:
    assert apple_name(name) == expected


def test_two_tensors_of_one_name_are_refused() -> None:
    message = refusal(rename_tensors, ["rnn_u.bias", "drafter.rnn_u.bias"])
    assert "'rnn_u.bias'" in message and "'drafter.rnn_u.bias'" in message


def test_the_trained_drafter_reads(shared: Path) -> None:
    """The sizes of a drafter that Apple's class saved."""
    drafter = read_drafter(shared / "data/drafters/smollm2-135m-torch")
    assert drafter.config == DrafterConfig(
        hidden_size=576, vocab_size=49152, exit_dim=576, num_draft_layers=2
    )
