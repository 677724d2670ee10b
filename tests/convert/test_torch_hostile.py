"""PyTorch files with a hostile or broken pickle: one line each, nothing run, nothing written."""

import os
import pickle
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrafter_mlx.convert.torch_checkpoint import open_torch
from tests.convert.tiny_drafter import folder_of, refusal
from tests.convert.tiny_torch import (
    FLOAT_STORAGE,
    REBUILD,
    archive,
    mapping,
    number,
    numbers,
    program,
    storage,
    tensor,
    text,
)

SIX = {"0": bytes(24)}
SOUND = tensor((2, 3), (3, 1))
CANARY = "canary"


def refused(tmp_path: Path, pickle_bytes: bytes) -> str:
    """Return why a file is refused, and check that it left no trace."""
    path = archive(tmp_path / "a.pt", pickle_bytes, SIX)
    message = refusal(open_torch, path)
    assert str(path) in message
    assert folder_of(tmp_path) == ["a.pt"]
    return message


def test_the_corpus_begins_with_a_sound_file(tmp_path: Path) -> None:
    with open_torch(archive(tmp_path / "a.pt", program(mapping({"w": SOUND})), SIX)) as file:
        assert file.tensors["w"].load().tolist() == [[0] * 3] * 2


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


ATTACKS = {
    "os.system": lambda path: Calls(os.system, f"touch {path}"),
    "os.mkdir": lambda path: Calls(os.mkdir, path),
    "eval": lambda path: Calls(eval, f"open({path!r}, 'w')"),
    "exec": lambda path: Calls(exec, f"open({path!r}, 'w')"),
    "open": lambda path: Calls(open, path, "w"),
    "getattr": lambda path: Calls(getattr, Calls(__import__, "os"), "system"),
    "subprocess": lambda path: Calls(subprocess.Popen, ["touch", path]),
    "nested": lambda path: {"a": [({"b": Calls(os.mkdir, path)},)]},
    "in a key": lambda path: {Calls(os.mkdir, path): 1},
    "import": lambda path: Calls(__import__, "antigravity"),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_call_is_refused_and_not_made(tmp_path: Path, attack: str, protocol: int) -> None:
    canary = tmp_path.parent / f"{CANARY}-{tmp_path.name}"
    payload = pickle.dumps(ATTACKS[attack](str(canary)), protocol=protocol)
    assert "nothing of it was run" in refused(tmp_path, payload)
    time.sleep(0.05 if attack == "subprocess" else 0)
    assert not canary.exists()


def named(module: str, name: str, call: bytes = b"(tR") -> bytes:
    return f"c{module}\n{name}\n".encode() + call


@pytest.mark.parametrize("name", [
    "posix.system", "builtins.getattr", "__builtin__.eval", "builtins.eval", "operator.attrgetter",
    "functools.partial", "torch._utils._rebuild_tensor", "torch._utils._rebuild_sparse_tensor",
    "torch.storage._load_from_bytes", "torch.storage.UntypedStorage", "torch.UntypedStorage",
    "torch.load", "torch.ComplexFloatStorage", "torch.jit._pickle.restore_type_tag",
    "numpy.core.multiarray._reconstruct", "collections.defaultdict", "argparse.Namespace",
    "collections.OrderedDict.__init__", "torch._utils._rebuild_tensor_v2.__globals__",
    "redrafter_mlx.convert.torch_views._make_tensor", "os.\nsystem",
])  # fmt: skip
@pytest.mark.parametrize("wrap", [
    lambda code: code, lambda code: mapping({"w": code}),
    lambda code: REBUILD + b"(" + code + b"tR", lambda code: code + b"b",
])  # fmt: skip
def test_a_name_outside_the_list_is_refused(
    tmp_path: Path, name: str, wrap: Callable[[bytes], bytes]
) -> None:
    module, _, inner = name.rpartition(".")
    called = wrap(text(module) + text(inner) + b"\x93(tR")
    assert repr(name) in refused(tmp_path, program(called))
    if "\n" not in name:
        assert repr(name) in refused(tmp_path, program(wrap(named(module, inner))))


ORDERED = b"ccollections\nOrderedDict\n"
MALFORMED = {
    "old instance": b"(" + text("ls") + b"ios\nsystem\n",
    "instance": b"(" + ORDERED + b"o",
    "new object": ORDERED + b")\x81",
    "extension": b"\x82\x01",
    "duplicate": b"}2",
    "bytes": b"C\x01a",
    "set": b"\x8f",
    "attributes of a function": REBUILD + b"}b",
    "attributes of a dtype": FLOAT_STORAGE + b"}b",
    "attributes of a tensor": SOUND + b"}b",
    "call of a text": text("os.system") + b"(tR",
    "call of a storage": FLOAT_STORAGE + b"(tR",
    "call of a tensor": SOUND + b"(tR",
    "call with a list": ORDERED + b"]R",
    "dict of values": ORDERED + b"(K\x01tR",
    "size of a text": b"ctorch\nSize\n(" + text("a") + b"tR",
    "parameter of a text": b"ctorch._utils\n_rebuild_parameter\n(" + text("a") + b"\x89NtR",
    "append to a dict": b"}K\x01a",
    "item of a list": b"]K\x01K\x01s",
    "odd items": b"}(K\x01u",
    "key that is a tuple": b"})K\x01s",
    "value beneath a mark": b"K\x01(\x85",
    "empty stack": b"\x85",
    "no mark": b"t",
    "empty memo": b"h\x07",
    "long number": b"\x8a\xff" + b"\xff" * 255,
    "long text": b"X\xff\xff\xff\xff",
    "text that is no UTF-8": b"X\x02\x00\x00\x00\xff\xfe",
    "half a name": b"cos",
    "frame beyond the end": b"\x95" + b"\xff" * 8,
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_pickle_is_refused(tmp_path: Path, name: str) -> None:
    assert "data.pkl" in refused(tmp_path, program(MALFORMED[name]))


@pytest.mark.parametrize("length", [0, 1, 2, 20, 60])
def test_a_pickle_that_stops_early_is_refused(tmp_path: Path, length: int) -> None:
    refused(tmp_path, program(mapping({"w": SOUND}))[:length])


HUGE = 2**60
STORAGE_0 = text("0"), FLOAT_STORAGE, number(6)
REFERENCES = {
    "text": text("0") + b"Q",
    "empty": b")Q",
    "module": b"(" + text("module") + FLOAT_STORAGE + text("0") + text("cpu") + number(6) + b"tQ",
    "short": b"(" + text("storage") + FLOAT_STORAGE + text("0") + b"tQ",
    "no dtype": storage(text("0"), text("float"), number(6)),
    "key no text": storage(number(0), FLOAT_STORAGE, number(6)),
    "count no number": storage(text("0"), FLOAT_STORAGE, text("6")),
    "count true": storage(text("0"), FLOAT_STORAGE, b"\x88"),
    "negative count": storage(text("0"), FLOAT_STORAGE, number(-6)),
    "nested": storage(storage(*STORAGE_0), FLOAT_STORAGE, number(6)),
}
BAD_TENSORS = {
    "beyond the storage": tensor((2, 4), (4, 1)),
    "offset beyond it": tensor((2, 3), (3, 1), offset=1),
    "strides beyond it": tensor((2, 3), (HUGE, 1)),
    "negative offset": tensor((2, 3), (3, 1), offset=-1),
    "negative stride": tensor((2, 3), (-3, 1), offset=3),
    "negative size": tensor((-2, 3), (3, 1)),
    "huge size": tensor((HUGE,), (0,)),
    "huge product": tensor((2**30, 2**30, 2**30), (0, 0, 0)),
    "huge storage": tensor((2, 3), (3, 1), num_items=HUGE),
    "small storage": tensor((5,), (1,), num_items=5),
    "fewer strides": tensor((2, 3), (1,)),
    "nine dimensions": tensor((1,) * 9, (1,) * 9),
    "absent storage": tensor((2, 3), (3, 1), key="1"),
    "storage outside": tensor((2, 3), (3, 1), key="../data.pkl"),
    "storage beside": tensor((2,), (1,), key="../version", num_items=2),
    "true as a size": REBUILD + b"(" + storage(*STORAGE_0) + b"K\x00\x88\x85K\x01\x85\x89}tR",
    "list as sizes": REBUILD + b"(" + storage(*STORAGE_0) + b"K\x00]](K\x01e\x89}tR",
    "too few values": REBUILD + b"(" + storage(*STORAGE_0) + b"K\x00tR",
    "no storage": REBUILD + b"(NK\x00" + numbers((2,)) + numbers((1,)) + b"\x89}tR",
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_of_wrong_shape_is_refused(tmp_path: Path, name: str) -> None:
    value = REBUILD + b"(" + REFERENCES[name] + number(0) + numbers((1,)) * 2 + b"\x89}tR"
    assert "reference to no storage" in refused(tmp_path, program(mapping({"w": value})))


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_a_tensor_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path, program(mapping({"w": BAD_TENSORS[name]})))


def laughs(depth: int) -> bytes:
    """Return dicts that each hold the next one ten times: 10 ** depth tensors to name."""
    code = mapping({"w": SOUND})
    for level in range(depth):
        inner = {str(index): b"h" + bytes([level]) for index in range(1, 10)}
        code = mapping({"0": code + b"q" + bytes([level])} | inner)
    return code


BOMBS = {
    "itself": b"}q\x00" + text("a") + b"h\x00s",
    "itself many times": b"}q\x00(" + b"".join(text(str(i)) + b"h\x00" for i in range(99)) + b"u",
    "laughs": laughs(6),
    "deep": mapping({"a": b"}"}).replace(b"}u", b"") * 5000 + SOUND + b"u" * 5000,
    "long name": mapping({"n" * 5000: mapping({"w": SOUND})}),
    "repeated entries": mapping({"w": tensor((2**15, 2**15), (0, 0))}),
    "repeated storages": mapping({str(i): tensor((2**20,), (0,)) for i in range(20)}),
    "same name": mapping({"a.w": SOUND, "a": mapping({"w": SOUND})}),
    "memo": b"}r\xff\xff\xff\xff",
    "deep tuple": b")" + b"\x85" * 200_000,
    "deep tuple as a key": b"})" + b"\x85" * 200_000 + b"Ns",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_little(tmp_path: Path, name: str) -> None:
    begin = time.perf_counter()
    refused(tmp_path, program(BOMBS[name]))
    assert time.perf_counter() - begin < 5.0


@pytest.mark.parametrize(
    "value", [SOUND, b"](" + SOUND + b"e", b"}", b"N", mapping({"a": b"K\x01"})]
)
def test_a_file_without_named_tensors_is_refused(tmp_path: Path, value: bytes) -> None:
    assert "state_dict()" in refused(tmp_path, program(value))


def test_a_long_pickle_is_refused(tmp_path: Path) -> None:
    assert f"{(8 << 20) + 1} bytes" in refused(tmp_path, bytes((8 << 20) + 1))
