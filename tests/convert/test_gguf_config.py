"""Metadata of every kind in the wrong place end in one sentence."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redrafter_mlx.convert.gguf import GgufFile, read_gguf
from redrafter_mlx.convert.gguf_config import generation_config, llama_config
from redrafter_mlx.convert.gguf_tokenizer import write_tokenizer
from redrafter_mlx.errors import CheckpointError
from tests.convert.tiny_gguf import string, write_tiny
from tests.noting import Noting

# Each value type of a GGUF file and the bytes of a 7 in it; 8 is a string, 9 an array.
SCALARS = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"),
    "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"),
    "f64": (12, "d"),
}  # fmt: skip
WHOLE = {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"}
REAL = {"f32", "f64"}
TEXT = {"string"}

TEXTS = (
    "general.architecture",
    "llama.rope.scaling.type",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.chat_template",
)
COUNTS = (
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.block_count",
    "llama.context_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.rope.dimension_count",
    *(f"tokenizer.ggml.{word}_token_id" for word in ("bos", "eos", "unknown", "padding")),
    *(f"tokenizer.ggml.{word}_token_id" for word in ("eot", "eom")),
)
REALS = (
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.freq_base",
    "llama.rope.scaling.factor",
)
NUMBERS = (
    "llama.expert_count",
    "llama.attention.sliding_window",
    "llama.attention.scale",
    "llama.embedding_scale",
    "llama.residual_scale",
    "llama.logit_scale",
)
RIGHT_KINDS: dict[str, set[str]] = {
    **dict.fromkeys(TEXTS, TEXT),
    **dict.fromkeys(COUNTS, WHOLE),
    **dict.fromkeys(REALS, REAL),
    **dict.fromkeys(NUMBERS, WHOLE | REAL),
    "tokenizer.ggml.add_bos_token": {"bool"},
    "tokenizer.ggml.tokens": {"strings"},
    "tokenizer.ggml.merges": {"strings"},
    "tokenizer.ggml.token_type": {f"{name}s" for name in WHOLE},
}


def entries() -> dict[str, bytes]:
    """Return type and bytes of a value of every kind, alone and, for ``KINDs``, in an array."""
    values = {
        "string": struct.pack("<I", 8) + string("7"),
        "string0": struct.pack("<I", 8) + string(""),
        "strings": struct.pack("<IIQ", 9, 8, 2) + string("7") + string("a b"),
        "strings0": struct.pack("<IIQ", 9, 8, 0),
    }
    for name, (code, letter) in SCALARS.items():
        values[name] = struct.pack(f"<I{letter}", code, 7)
        values[f"{name}0"] = struct.pack(f"<I{letter}", code, 0)
        many = [number % 100 / 3 if letter in "fd" else number % 100 for number in range(300)]
        values[f"{name}s"] = struct.pack(f"<IIQ300{letter}", 9, code, 300, *many)
        values[f"{name}s0"] = struct.pack("<IIQ", 9, code, 0)
    return values


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the reader makes of a value of each kind; ``0`` is zero or empty."""
    path = tmp_path_factory.mktemp("kinds") / "x.gguf"
    written = entries()
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(written))
    path.write_bytes(head + b"".join(string(name) + data for name, data in written.items()))
    return read_gguf(path).metadata


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    scaling = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    return read_gguf(write_tiny(tmp_path_factory.mktemp("tiny") / "x.gguf", **scaling))


def describe(gguf: GgufFile, folder: Path) -> None:
    """Read all metadata that a conversion reads."""
    config = llama_config(gguf)
    generation_config(gguf)
    write_tokenizer(gguf, folder, config["max_position_embeddings"])


@pytest.mark.parametrize("key", RIGHT_KINDS)
def test_a_value_of_another_kind_is_refused_with_its_key(
    tiny: GgufFile, kinds: dict[str, Any], key: str, tmp_path: Path
) -> None:
    num_refused = 0
    for kind, value in kinds.items():
        if kind.removesuffix("0") in RIGHT_KINDS[key]:
            continue
        with pytest.raises(CheckpointError) as refused:
            describe(replace(tiny, metadata=tiny.metadata | {key: value}), tmp_path)
        message = str(refused.value)
        assert key in message and "\n" not in message and len(message) < 300, kind
        num_refused += 1
    assert num_refused > 20


@pytest.mark.parametrize("key", RIGHT_KINDS)
def test_a_value_of_the_right_kind_never_ends_in_another_error(
    tiny: GgufFile, kinds: dict[str, Any], key: str, tmp_path: Path
) -> None:
    for kind in sorted(RIGHT_KINDS[key]):
        for value in (kinds[kind], kinds[f"{kind}0"]):
            try:
                describe(replace(tiny, metadata=tiny.metadata | {key: value}), tmp_path)
            except CheckpointError as error:
                assert "\n" not in str(error), kind


def test_the_table_has_every_key_that_is_read(tiny: GgufFile, tmp_path: Path) -> None:
    metadata = Noting(tiny.metadata)
    describe(replace(tiny, metadata=metadata), tmp_path)
    assert metadata.asked == RIGHT_KINDS.keys()


def test_an_alignment_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for kind, data in entries().items():
        if kind in WHOLE:
            continue
        head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
        path.write_bytes(head + string("general.alignment") + data + b"\0" * 99)
        with pytest.raises(CheckpointError, match=r"general\.alignment is") as refused:
            read_gguf(path)
        assert "\n" not in str(refused.value)
