"""A target becomes a folder as mlx_lm.convert writes it, or a sentence says why not."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from redrafter_mlx import safetensors_writer
from redrafter_mlx.config import Quantization
from redrafter_mlx.convert import tensor_job
from redrafter_mlx.convert.target import TargetOptions, convert_target
from redrafter_mlx.loading.target import load_target
from redrafter_mlx.weights import load_tensors, read_json, save_tensors, write_json
from tests.convert.family_models import TOKENS
from tests.convert.tiny_gguf import gguf_bytes, tiny_metadata, tiny_tensors
from tests.convert.tiny_target import (
    EMBEDDING,
    HEAD,
    NORM,
    UP,
    Tensors,
    refuse,
    same,
    tensors_of,
    write_target,
)
from tests.convert.tiny_torch import save_torch


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_without_options_every_bit_is_kept(tmp_path: Path, kind: str, dtype: mx.Dtype) -> None:
    tensors = tensors_of(dtype=dtype)
    source = write_target(tmp_path / "source", tensors)
    if kind == "bin":
        (source / "model.safetensors").unlink()
        save_torch(source / "pytorch_model.bin", tensors)
    converted = convert_target(source, tmp_path / "out")
    written = load_tensors(tmp_path / "out")
    assert written.keys() == tensors.keys()
    assert all(same(written[name], tensors[name]) for name in tensors)
    assert converted.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert converted.num_tensors == len(tensors)


@pytest.mark.parametrize("wanted", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("stored", [mx.float16, mx.bfloat16, mx.float32])
def test_a_cast_is_that_of_mlx_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: mx.Dtype, wanted: str
) -> None:
    monkeypatch.setattr(tensor_job, "RUN_BYTES", 4000)
    tensors = tensors_of(dtype=stored)
    source = write_target(tmp_path / "source", tensors)
    convert_target(source, tmp_path / "out", TargetOptions(dtype=wanted))
    for name, tensor in load_tensors(tmp_path / "out").items():
        assert same(tensor, tensors[name].astype(getattr(mx, wanted))), name


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_tensors_are_those_of_mx_quantize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int, group_size: int
) -> None:
    """Law: bit for bit, wherever the last size divides; this package and mlx-lm load both."""
    from mlx_lm.utils import load_model

    monkeypatch.setattr(tensor_job, "RUN_BYTES", 8000)
    sizes = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 16}
    tensors = wide_tensors()
    source = write_target(tmp_path / "source", tensors, **sizes)
    out = tmp_path / "out"
    converted = convert_target(
        source, out, TargetOptions(quantization=Quantization(bits, group_size))
    )
    written, packed = load_tensors(out), set()
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.shape[1] % group_size:
            assert same(written[name], tensor)
            continue
        module = name.removesuffix(".weight")
        parts = mx.quantize(tensor, group_size, bits)
        names = [f"{module}.{part}" for part in ("weight", "scales", "biases")]
        assert all(same(written[part], whole) for part, whole in zip(names, parts, strict=True))
        packed |= set(names)
    assert packed and written.keys() == tensors.keys() | packed
    entry = {"group_size": group_size, "bits": bits, "mode": "affine"}
    config = read_json(out / "config.json")
    assert config["quantization"] == config["quantization_config"] == entry
    width = f"4 matrices whose width is no multiple of {group_size}"
    assert any(width in note for note in converted.notes) == bool(192 % group_size)
    theirs = np.array(load_model(out)[0](mx.array([TOKENS]))[0].astype(mx.float32))
    decoder = load_target(out, "stored")
    ours = decoder.logits(decoder(mx.array(TOKENS), decoder.make_kv_cache()))
    assert np.abs(np.array(ours.astype(mx.float32)) - theirs).max() < 0.05


def wide_tensors() -> Tensors:
    """Return a model whose widths are 64 (of the heads), 128 and 192."""
    random = np.random.default_rng(5)
    wider = {64: 128, 96: 192}
    shapes = {name: tensor.shape for name, tensor in tensors_of().items()}
    result = {}
    for name, shape in shapes.items():
        is_vocabulary = name in (HEAD, EMBEDDING)
        rows = shape[0] if is_vocabulary else wider.get(shape[0], shape[0])
        columns = tuple(wider[size] for size in shape[1:])
        if "o_proj" in name:
            columns = (64,)
        if "q_proj" in name:
            rows = 64
        drawn = random.standard_normal((rows, *columns)) / 11
        result[name] = mx.array(drawn + 1 if "norm" in name else drawn).astype(mx.float16)
    return result


def test_quantisation_casts_first(tmp_path: Path) -> None:
    """As mlx_lm.convert does: the groups are those of the cast weights."""
    tensors = tensors_of(dtype=mx.float32)
    source = write_target(tmp_path / "source", tensors, torch_dtype="bfloat16")
    convert_target(source, tmp_path / "out", TargetOptions(quantization=Quantization(4, 32)))
    parts = mx.quantize(tensors[UP].astype(mx.bfloat16), 32, 4)
    written = load_tensors(tmp_path / "out")
    assert same(written[UP], parts[0])
    assert same(written[UP.replace("weight", "scales")], parts[1])
    assert written[NORM].dtype == mx.bfloat16


def test_a_group_size_that_divides_nothing_is_refused(tmp_path: Path) -> None:
    source = write_target(tmp_path / "source", tensors_of())
    message = refuse(source, TargetOptions(quantization=Quantization(4, 128)))
    assert "group_size 128; choose a smaller one" in message


@pytest.mark.parametrize("tie", [None, True, False])
@pytest.mark.parametrize("has_head", [True, False])
def test_tied_and_untied_heads_with_and_without_the_key(
    tmp_path: Path, tie: bool | None, has_head: bool
) -> None:
    """Law: mlx-lm and this package read the same head out of the result as out of the source."""
    from mlx_lm.utils import load_model

    tensors = tensors_of(dtype=mx.float32)
    if not has_head:
        del tensors[HEAD]
    source = write_target(tmp_path / "source", tensors, tie_word_embeddings=tie)
    if tie is False and not has_head:
        assert "have no lm_head.weight" in refuse(source)
        return
    out = tmp_path / "out"
    converted = convert_target(source, out)
    is_tied = tie or not has_head
    assert (HEAD in load_tensors(out)) != is_tied
    assert read_json(out / "config.json")["tie_word_embeddings"] is is_tied
    assert any("though the two differ" in note for note in converted.notes) == bool(
        tie and has_head
    )
    before, after = load_target(source, "float32"), load_target(out, "float32")
    tokens = mx.array(TOKENS)
    expected = before.logits(before(tokens, before.make_kv_cache()))
    assert same(after.logits(after(tokens, after.make_kv_cache())), expected)
    theirs = load_model(out)[0](tokens[None])[0]
    assert mx.allclose(theirs, expected, rtol=0.0, atol=1e-4)


def test_a_tied_head_that_is_stored_twice_is_written_once(tmp_path: Path) -> None:
    tensors = tensors_of() | {HEAD: tensors_of()[EMBEDDING]}
    source = write_target(tmp_path / "source", tensors, tie_word_embeddings=True)
    converted = convert_target(source, tmp_path / "out")
    assert converted.notes[0].endswith("ties to the embedding")
    assert HEAD not in load_tensors(tmp_path / "out")


@pytest.mark.parametrize("buffer", ["inv_freq", "cos_cached", "sin_cached"])
def test_a_rotary_buffer_is_left_aside_by_loading_and_by_converting(
    tmp_path: Path, buffer: str
) -> None:
    tensors = tensors_of() | {f"model.layers.0.self_attn.rotary_emb.{buffer}": mx.zeros((8,))}
    source = write_target(tmp_path / "source", tensors)
    converted = convert_target(source, tmp_path / "out")
    assert converted.notes[0] == "left aside: 1 rotary buffers, which are computed anew"
    for folder in (source, tmp_path / "out"):
        assert same(load_target(folder, "stored").lm_head.weight, tensors[HEAD])


def test_what_lies_beside_the_weights_goes_along(tmp_path: Path) -> None:
    source = write_target(tmp_path / "source", tensors_of())
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "generation_config.json")
    for name in (*files, "special_tokens_map.json", "modeling_x.py", "README.md"):
        (source / name).write_text(json.dumps({"of": name}))
    convert_target(source, tmp_path / "out", TargetOptions(chat_template="{{ mine }}"))
    written = {path.name for path in (tmp_path / "out").iterdir()}
    weights = {"config.json", "model.safetensors", "model.safetensors.index.json"}
    assert written == {*files, "special_tokens_map.json", *weights, "chat_template.jinja"}
    for name in files:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ mine }}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chat_template.jinja", "{{ theirs }}"),
        ("chat_template.json", '{"chat_template": "{{ theirs }}"}'),
        ("tokenizer_config.json", '{"chat_template": "{{ theirs }}"}'),
    ],
)
def test_a_template_of_the_source_stays(tmp_path: Path, name: str, text: str) -> None:
    source = write_target(tmp_path / "source", tensors_of())
    (source / name).write_text(text)
    convert_target(source, tmp_path / "out", TargetOptions(chat_template="{{ mine }}"))
    assert (tmp_path / "out" / name).read_text() == text
    assert all("mine" not in path.read_text() for path in (tmp_path / "out").glob("chat*"))


def test_large_models_are_sharded_and_the_index_names_every_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_writer, "MAX_SHARD_BYTES", 30_000)
    tensors = tensors_of()
    source = write_target(tmp_path / "source", tensors)
    convert_target(source, tmp_path / "out")
    index = read_json(tmp_path / "out" / "model.safetensors.index.json")
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 3
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert sorted(set(index["weight_map"].values())) == shards
    sizes = {name: load_tensors(tmp_path / "out" / name) for name in shards}
    for name, shard in sizes.items():
        assert sum(tensor.nbytes for tensor in shard.values()) <= 30_000, name
    written = load_tensors(tmp_path / "out")
    assert all(same(written[name], tensors[name]) for name in tensors)
    num_parameters = sum(tensor.size for tensor in tensors.values())
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    assert index["metadata"] == {"total_size": num_bytes, "total_parameters": num_parameters}


@pytest.mark.parametrize("options", [TargetOptions(), TargetOptions(None, Quantization(8, 32))])
def test_progress_ends_at_the_bytes_that_were_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: TargetOptions
) -> None:
    monkeypatch.setattr(tensor_job, "RUN_BYTES", 4096)
    source = write_target(tmp_path / "source", tensors_of())
    calls: list[tuple[int, int]] = []
    converted = convert_target(
        source, tmp_path / "out", options, lambda done, total: calls.append((done, total))
    )
    done, totals = zip(*calls, strict=True)
    assert set(totals) == {converted.num_bytes}
    assert done[0] == 0 and done[-1] == converted.num_bytes
    assert list(done) == sorted(done) and len(set(done)) > len(tensors_of())


def test_a_quantised_folder_is_copied_and_not_quantised_again(tmp_path: Path) -> None:
    source = write_target(tmp_path / "source", tensors_of(), torch_dtype="bfloat16")
    quantize = TargetOptions(quantization=Quantization(4, 32))
    convert_target(source, tmp_path / "first", quantize)
    convert_target(tmp_path / "first", tmp_path / "second")
    first, second = (load_tensors(tmp_path / name) for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(same(first[name], second[name]) for name in first)
    configs = [read_json(tmp_path / name / "config.json") for name in ("first", "second")]
    assert configs[0] == configs[1]
    indexes = [
        read_json(tmp_path / name / "model.safetensors.index.json") for name in ("first", "second")
    ]
    assert indexes[0] == indexes[1]
    message = refuse(tmp_path / "first", quantize)
    assert "are quantised already; leave out --quantize" in message
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(tiny_metadata(), tiny_tensors()))
    assert "are quantised already; leave out --quantize" in refuse(tmp_path / "x.gguf", quantize)


@pytest.mark.parametrize(("mode", "group_size"), [("mxfp4", 32), ("affine", 64)])
def test_a_quantisation_by_module_and_of_other_modes_is_copied(
    tmp_path: Path, mode: str, group_size: int
) -> None:
    decoder = load_target(write_target(tmp_path / "source", tensors_of()), "float32")
    settings = {"group_size": group_size, "bits": 4, "mode": mode}
    own = {"group_size": 32, "bits": 8, "mode": "affine"}
    nn.quantize(
        decoder,
        class_predicate=lambda path, part: {
            "model.embed_tokens": own,
            "model.layers.0.mlp.up_proj": settings,
        }.get(path, False),
    )
    tensors = dict(tree_flatten(decoder.parameters()))
    quantization = settings | {"model.embed_tokens": own}
    packed = write_target(tmp_path / "packed", tensors, quantization=quantization)
    convert_target(packed, tmp_path / "out")
    written = load_tensors(tmp_path / "out")
    assert written.keys() == tensors.keys()
    assert all(same(written[name], tensors[name]) for name in tensors)
    assert read_json(tmp_path / "out" / "config.json")["quantization"] == quantization


def test_a_gguf_of_floats_is_cast_and_quantised_like_any_source(tmp_path: Path) -> None:
    tensors = tiny_tensors("F16", "F32")
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(tiny_metadata(), tensors))
    convert_target(tmp_path / "x.gguf", tmp_path / "plain", TargetOptions(dtype="float32"))
    options = TargetOptions(dtype="float32", quantization=Quantization(8, 32))
    convert_target(tmp_path / "x.gguf", tmp_path / "packed", options)
    plain, packed = (load_tensors(tmp_path / name) for name in ("plain", "packed"))
    assert {tensor.dtype for tensor in plain.values()} == {mx.float32}
    for name in (UP, EMBEDDING):
        parts = mx.quantize(plain[name], 32, 8)
        module = name.removesuffix("weight")
        assert same(packed[name], parts[0]) and same(packed[module + "scales"], parts[1])
    assert load_target(tmp_path / "packed", "float32").config.vocab_size == 262


def test_a_folder_of_one_gguf_is_that_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x.gguf").write_bytes(gguf_bytes(tiny_metadata(), tiny_tensors()))
    convert_target(folder, tmp_path / "out")
    assert load_target(tmp_path / "out", "float32").config.hidden_size == 64
    (folder / "y.gguf").write_bytes((folder / "x.gguf").read_bytes())
    assert "holds 2 GGUF files, x.gguf among them; name one" in refuse(folder)


def test_only_the_files_of_the_index_are_read(tmp_path: Path) -> None:
    tensors = tensors_of()
    source = write_target(tmp_path / "source", tensors)
    write_json(
        source / "model.safetensors.index.json",
        {"weight_map": dict.fromkeys(tensors, "model.safetensors")},
    )
    save_tensors(source / "model-old.safetensors", {NORM: mx.zeros((64,))})
    convert_target(source, tmp_path / "out")
    assert same(load_tensors(tmp_path / "out")[NORM], tensors[NORM])


def test_a_folder_with_both_kinds_is_read_from_its_safetensors(tmp_path: Path) -> None:
    tensors = tensors_of()
    source = write_target(tmp_path / "source", tensors)
    save_torch(source / "pytorch_model.bin", {name: mx.zeros((1,)) for name in tensors})
    convert_target(source, tmp_path / "out")
    assert same(load_tensors(tmp_path / "out")[UP], tensors[UP])
