"""The GGUF reader: what it reads, and that hostile files end in one sentence."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from redrafter_mlx.convert.base import convert_gguf
from redrafter_mlx.convert.gguf import read_gguf
from redrafter_mlx.errors import CheckpointError
from tests.convert.tiny_gguf import (
    Tensor,
    gguf_bytes,
    place,
    string,
    tiny_metadata,
    tiny_tensors,
    value,
)

FLOATS = Tensor("a", "F32", (2, 3), np.arange(6, dtype="<f4").tobytes())
BYTES = Tensor("b", "Q8_0", (1, 32), struct.pack("<e32b", 0.5, *range(-16, 16)))
METADATA = [
    ("text", "naïve"),
    ("number", 7),
    ("real", 0.1),
    ("flag", True),
    ("words", ["x", "y z"]),
    ("numbers", [1, -2]),
]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    """Return the sentence with which a file is refused, by both ways to read it."""
    with pytest.raises(CheckpointError) as refused:
        read_gguf(path)
    before = sorted(path.parent.iterdir())
    with pytest.raises(CheckpointError):
        convert_gguf(path, path.parent / "out")
    assert sorted(path.parent.iterdir()) == before
    message = str(refused.value)
    assert "\n" not in message and path.name in message
    return message


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64])
def test_reads_back_what_was_written(tmp_path: Path, version: int, alignment: int) -> None:
    metadata = [*METADATA, ("general.alignment", alignment)]
    data = gguf_bytes(metadata, [FLOATS, BYTES], version, alignment)
    gguf = read_gguf(write(tmp_path / "x.gguf", data))
    assert gguf.text("text") == "naïve"
    assert gguf.count("number") == 7
    assert gguf.positive("real") == 0.1, "the shortest digits that mean the float32"
    assert gguf.flag("flag", False) is True
    assert gguf.strings("words") == ["x", "y z"]
    assert gguf.metadata["numbers"].tolist() == [1, -2]
    a, b = gguf.tensors["a"], gguf.tensors["b"]
    assert (a.kind, a.shape, a.blocks.tolist()) == ("F32", (2, 3), [[0, 1, 2], [3, 4, 5]])
    assert (b.kind, b.shape, b.blocks.shape) == ("Q8_0", (1, 32), (1, 1))
    assert b.blocks["d"] == 0.5 and b.blocks["q"][0, 0].tolist() == list(range(-16, 16))


@pytest.mark.parametrize("key", ["number", "real", "flag", "words", "numbers", "absent"])
def test_metadata_of_another_type_is_refused_with_its_key(tmp_path: Path, key: str) -> None:
    gguf = read_gguf(write(tmp_path / "x.gguf", gguf_bytes(METADATA, [])))
    with pytest.raises(CheckpointError, match=f"{key} is .*, not a string"):
        gguf.text(key)


@pytest.mark.parametrize("item", [0.0, -1.0, float("nan"), float("inf")])
def test_a_number_out_of_range_is_refused(tmp_path: Path, item: float) -> None:
    gguf = read_gguf(write(tmp_path / "x.gguf", gguf_bytes([("x", item), ("n", 0)], [])))
    with pytest.raises(CheckpointError, match=r"x is .*, not a finite number above 0"):
        gguf.positive("x")
    with pytest.raises(CheckpointError, match="n is 0, not a whole number from 1"):
        gguf.count("n")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Cut at every 37th byte of the head, and wherever a tensor is no longer whole."""
    whole = gguf_bytes(tiny_metadata(), tiny_tensors())
    head = whole.index(b"blk.1.ffn_down")
    cuts = [*range(0, head + 200, 37), head + 1000, len(whole) // 2, len(whole) - 1]
    for cut in cuts:
        refusal(write(tmp_path / "x.gguf", whole[:cut]))
    assert read_gguf(write(tmp_path / "x.gguf", whole)).tensors


HEAD = b"GGUF" + struct.pack("<I", 3)
HUGE = 1 << 60


def one_entry(entry: bytes) -> bytes:
    return HEAD + struct.pack("<QQ", 0, 1) + entry + b"\0" * 64


def one_tensor(entry: bytes) -> bytes:
    return HEAD + struct.pack("<QQ", 1, 0) + entry + b"\0" * 256


def tensor_entry(sizes: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    head = string("w") + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return head + struct.pack("<IQ", kind, offset)


HOSTILE = {
    "empty": (b"", "is empty"),
    "magic": (b"GGML" + HEAD[4:] + b"\0" * 99, "not a GGUF file"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 0x1;"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 0x3000000;"),
    "tensor count": (HEAD + struct.pack("<QQ", HUGE, 0), "number of tensors is 1152921504606846"),
    "entry count": (HEAD + struct.pack("<QQ", 0, HUGE), "number of metadata entries is 11529215"),
    "key length": (one_entry(struct.pack("<Q", HUGE)), "length of a metadata key"),
    "key text": (
        one_entry(string(b"\xff\xfe") + value(1)),
        "a metadata key at byte 32 is not UTF-8",
    ),
    "value type": (one_entry(string("k") + struct.pack("<I", 13)), "'k' has the unknown type 13"),
    "value length": (one_entry(string("k") + struct.pack("<IQ", 8, HUGE)), "the value of 'k'"),
    "value text": (one_entry(string("k") + value(b"\xc3\x28")), "the value of 'k' at byte"),
    "array length": (one_entry(string("k") + struct.pack("<IIQ", 9, 4, HUGE)), "length of the val"),
    "array of text": (one_entry(string("k") + struct.pack("<IIQ", 9, 8, HUGE)), "length of the va"),
    "array of arrays": (one_entry(string("k") + struct.pack("<IIQ", 9, 9, 1)), "array of the type"),
    "twice a key": (gguf_bytes([("k", 1), ("k", 2)], []), "'k' is there twice"),
    "twice a tensor": (gguf_bytes([], [FLOATS, FLOATS]), "'a' is there twice"),
    "no alignment": (gguf_bytes([("general.alignment", 0)], []), "general.alignment is 0"),
    "text alignment": (gguf_bytes([("general.alignment", "x")], []), "general.alignment is 'x'"),
    "no sizes": (one_tensor(tensor_entry(())), "'w' has 0 sizes"),
    "five sizes": (one_tensor(tensor_entry((1, 1, 1, 1, 1))), "'w' has 5 sizes"),
    "2^32 sizes": (one_tensor(string("w") + struct.pack("<I", 2**32 - 1)), "4294967295 sizes"),
    "zero size": (one_tensor(tensor_entry((0, 4))), "'w' is F32 with the sizes"),
    "overflow": (one_tensor(tensor_entry((1 << 33, 1 << 33))), "295147905179352825856 bytes"),
    "overflow to 0": (one_tensor(tensor_entry((1 << 32, 1 << 32))), "73786976294838206464 bytes"),
    "part of a block": (one_tensor(tensor_entry((33, 1), kind=8)), "Q8_0 with the sizes"),
    "offset": (one_tensor(tensor_entry((4,), offset=HUGE)), "lies at byte 11529215046068"),
    "offset 2^64": (one_tensor(tensor_entry((4,), offset=2**64 - 8)), "lies at byte 184467440737"),
    "Q4_K": (one_tensor(tensor_entry((256,), kind=12)), "'w' as Q4_K; get a file"),
    "new type": (one_tensor(tensor_entry((256,), kind=99)), "'w' as type 99; get a file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    data, message = HOSTILE[name]
    assert message in refusal(write(tmp_path / "x.gguf", data))


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    """Else a few bytes a tensor would make a small file fill the memory."""
    other = Tensor("c", "F32", (2, 3), b"")
    entries = place(FLOATS, 0) + place(other, 8)
    data = HEAD + struct.pack("<QQ", 2, 0) + entries + b"\0" * 256
    assert "'c' overlaps another" in refusal(write(tmp_path / "x.gguf", data))


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_what_is_not_a_file_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "x.gguf")
    assert "cannot be read" in refusal(tmp_path / "x.gguf")


def test_flipped_bytes_never_end_in_another_error(tmp_path: Path) -> None:
    """Whatever four bytes of the head are overwritten: it converts or says what is wrong."""
    whole = bytearray(gguf_bytes(tiny_metadata(), tiny_tensors()))
    head = whole.index(b"blk.1.ffn_down") + 64
    rng = np.random.default_rng(11)
    num_refused = 0
    for trial in range(200):
        data = whole.copy()
        begin = int(rng.integers(0, head))
        data[begin : begin + 4] = rng.integers(0, 256, 4, np.uint8).tobytes()
        try:
            convert_gguf(write(tmp_path / "x.gguf", bytes(data)), tmp_path / f"out-{trial}")
        except CheckpointError as error:
            assert "\n" not in str(error)
            num_refused += 1
    assert 50 < num_refused < 200
    assert len(list(tmp_path.iterdir())) == 1 + 200 - num_refused, "a refusal leaves nothing"
