"""Writers of hostile and broken models and drafters; tests/hostile_cases.py lists them."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from redrafter_mlx.weights import INDEX_FILE, save_tensors
from tests.convert.tiny_drafter import random_tensors
from tests.convert.tiny_drafter import write as write_drafter
from tests.convert.tiny_gguf import Tensor, gguf_bytes, tiny_metadata, tiny_tensors
from tests.convert.tiny_target import HEAD, tensors_of, write_target
from tests.convert.tiny_torch import archive, mapping, program, save_torch, tensor

HUGE = 2**60
CANARY = "canary"
BIN, SAFETENSORS = "pytorch_model.bin", "model.safetensors"
TORCH_INDEX = "pytorch_model.bin.index.json"
SIX = {"0": bytes(24)}
SOUND = mapping({"w": tensor((2, 3), (3, 1))})

Write = Callable[[Path], Path]


@dataclass(frozen=True, slots=True)
class Case:
    """A source that both commands refuse.

    Attributes:
        write: Writes it into an empty folder and returns its path.
        words: They stand in the refusal.
        is_model: Whether ``generate`` takes such a source at all.
    """

    write: Write
    words: str
    is_model: bool = True


def in_model(name: str, data: Callable[[Path], bytes] | bytes, config: bool = True) -> Write:
    """Return what writes a model's folder whose only weights are this file."""

    def write(folder: Path) -> Path:
        source = write_target(folder / "model", tensors_of())
        (source / SAFETENSORS).unlink()
        (source / name).write_bytes(data if isinstance(data, bytes) else data(folder))
        if not config:
            (source / "config.json").unlink()
        return source

    return write


def alone(name: str, data: bytes) -> Write:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return write


def beside(name: str, data: bytes) -> Write:
    """Return what writes a sound model's folder and this file in it."""

    def write(folder: Path) -> Path:
        source = write_target(folder / "model", tensors_of())
        (source / name).write_bytes(data)
        return source

    return write


def with_config(**changes: Any) -> Write:
    return lambda folder: write_target(folder / "model", tensors_of(), **changes)


def sparse(name: str, num_bytes: int, head: bytes = b"{") -> Write:
    """Return what writes a file of so many bytes, few of which are on the disk."""

    def write(folder: Path) -> Path:
        source = beside(name, head)(folder)
        os.truncate(source / name, num_bytes)
        return source

    return write


# Pickles -----------------------------------------------------------------------------------


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Deferred(Calls):
    """An object whose state, set by BUILD, is made by a call."""

    def __reduce__(self) -> Any:
        return dict, (), Calls(*self.call[:1], *self.call[1])


def touch(canary: str) -> Calls:
    return Calls(os.system, f"touch {canary}")


def opened(canary: str) -> Calls:
    return Calls(eval, f"open({canary!r}, 'w')")


def line(canary: str) -> bytes:
    return f"touch {canary}".encode()


OS_SYSTEM = "posix.system" if os.name == "posix" else "nt.system"
PICKLES: dict[str, tuple[Callable[[str], bytes], str]] = {
    "os.system": (lambda to: pickle.dumps(touch(to), 2), OS_SYSTEM),
    "os.system, protocol 0": (lambda to: pickle.dumps(touch(to), 0), OS_SYSTEM),
    "os.system, protocol 5": (lambda to: pickle.dumps(touch(to), 5), OS_SYSTEM),
    "builtins.eval": (lambda to: pickle.dumps(opened(to), 4), "builtins.eval"),
    "eval of Python 2": (lambda to: pickle.dumps(opened(to), 2), "__builtin__.eval"),
    "nested": (lambda to: pickle.dumps({"a": [{"b": ({"c": touch(to)},)}]}, 2), OS_SYSTEM),
    "in a key": (lambda to: pickle.dumps({opened(to): 1}, 4), "builtins.eval"),
    "in the state": (lambda to: pickle.dumps(Deferred(os.system, line(to).decode()), 2), "dict"),
    "INST": (lambda to: program(b"(S'" + line(to) + b"'\nios\nsystem\n"), "opcode b'S'"),
    "INST of nothing": (lambda _: program(b"(ios\nsystem\n"), "opcode b'i'"),
    "OBJ": (lambda to: program(b"(cos\nsystem\nX\4\0\0\0echoo"), "os.system"),
    "NEWOBJ": (lambda _: program(b"cos\nsystem\n)\x81"), "os.system"),
    "BUILD": (lambda _: program(SOUND + b"cos\nsystem\nb"), "os.system"),
    "beside sound tensors": (
        lambda to: program(SOUND + b"cos\nsystem\n(X" + struct.pack("<I", len(line(to)))
                           + line(to) + b"tR0"), "os.system",
    ),
}  # fmt: skip


def pickled(make: Callable[[str], bytes]) -> Callable[[Path], bytes]:
    def data(folder: Path) -> bytes:
        made = archive(folder / "made", make(str(folder / CANARY)), SIX)
        whole = made.read_bytes()
        made.unlink()
        return whole

    return data


def raw_pickle(folder: Path) -> bytes:
    return pickle.dumps(touch(str(folder / CANARY)), 2)


# Zip files ---------------------------------------------------------------------------------


def zipped(folder: Path, **others: bytes) -> bytes:
    made = archive(folder / "made", program(SOUND), SIX, **others)
    whole = made.read_bytes()
    made.unlink()
    return whole


def bomb(folder: Path) -> bytes:
    with zipfile.ZipFile(folder / "made", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", program(SOUND))
        with file.open("archive/data/0", "w") as entry:
            for _ in range(16):
                entry.write(bytes(1 << 20))
    whole = (folder / "made").read_bytes()
    (folder / "made").unlink()
    return whole


def overlapping(folder: Path) -> bytes:
    """Return a file of many entries that are all the same bytes."""
    made = archive(folder / "made", program(SOUND), {str(i): bytes(24) for i in range(50)})
    data = bytearray(made.read_bytes())
    made.unlink()
    first = data.rindex(b"archive/data/0") - 46
    for index in range(50):
        place = data.rindex(f"archive/data/{index}".encode()) - 46
        data[place + 42 : place + 46] = data[first + 42 : first + 46]
    return bytes(data)


def outside(name: str) -> Callable[[Path], bytes]:
    return lambda folder: zipped(folder, **{name: b"evil"})


def claiming(folder: Path) -> bytes:
    made = archive(
        folder / "made", program(mapping({"w": tensor((6,), (1,), num_items=HUGE)})), SIX
    )
    whole = made.read_bytes()
    made.unlink()
    return whole


def torch_model(folder: Path, changes: dict[str, mx.array]) -> Path:
    source = write_target(folder / "model", {})
    (source / SAFETENSORS).unlink()
    save_torch(source / BIN, tensors_of() | changes)
    return source


def cut(name: str, share: float) -> Write:
    """Return what writes a sound model's folder and takes away the end of its weights."""

    def write(folder: Path) -> Path:
        if name == BIN:
            source = torch_model(folder, {})
        else:
            source = write_target(folder / "model", tensors_of())
        size = (source / name).stat().st_size
        os.truncate(source / name, min(int(size * share), size - 1))
        return source

    return write


# Tensors -----------------------------------------------------------------------------------


def spoiled(name: str, value: float) -> dict[str, mx.array]:
    array = np.array(tensors_of()[name])
    array[-1, 3] = value
    return {name: mx.array(array)}


def safetensors(header: Any, data: bytes = bytes(64)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: Any = (16,), offsets: Any = (0, 64), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def sharded(index: Any, file: str = INDEX_FILE) -> Write:
    return beside(file, json.dumps({"weight_map": index}).encode())


def twice(folder: Path) -> Path:
    source = write_target(folder / "model", tensors_of())
    save_tensors(source / "model-2.safetensors", {HEAD: tensors_of()[HEAD]})
    return source


def odd_name(name: str) -> Write:
    return lambda folder: write_target(folder / "model", tensors_of() | {name: mx.zeros(2)})


def scalar_heads(folder: Path) -> Path:
    names = {HEAD: mx.array(1.0), "model.embed_tokens.weight": mx.array(1.0)}
    source = torch_model(folder, names)
    settings = json.loads((source / "config.json").read_text()) | {"tie_word_embeddings": True}
    (source / "config.json").write_text(json.dumps(settings))
    return source


# GGUF --------------------------------------------------------------------------------------


def gguf(tensors: list[Tensor] | None = None, **changes: Any) -> Write:
    return alone("m.gguf", gguf_bytes(tiny_metadata(**changes), tensors or tiny_tensors()))


def patched(place: int, code: str, value: int) -> Write:
    data = bytearray(gguf_bytes(tiny_metadata(), tiny_tensors()))
    struct.pack_into(code, data, place if place >= 0 else len(data) + place, value)
    return alone("m.gguf", bytes(data))


def after(mark: bytes, code: str, value: int, skip: int = 0) -> Write:
    """Return what writes a file with a number set behind the place where ``mark`` ends."""
    data = gguf_bytes(tiny_metadata(), tiny_tensors())
    return patched(data.index(mark) + len(mark) + skip, code, value)


def halved(share: float) -> Write:
    data = gguf_bytes(tiny_metadata(), tiny_tensors())
    return alone("m.gguf", data[: min(int(len(data) * share), len(data) - 1)])


def gguf_tensor(name: str, data: bytes) -> Write:
    """Return what writes a file one of whose tensors begins with these bytes."""
    tensors = [
        Tensor(t.name, t.kind, t.shape, data + t.data[len(data) :]) if t.name == name else t
        for t in tiny_tensors()
    ]
    return gguf(tensors)


# Drafters ----------------------------------------------------------------------------------


def drafter(config: Any = None, **changes: mx.array) -> Write:
    def write(folder: Path) -> Path:
        tensors = random_tensors() | changes
        source = write_drafter(folder / "drafter", tensors)
        if config is not None:
            text = config if isinstance(config, bytes) else json.dumps(config).encode()
            (source / "config.json").write_bytes(text)
        return source

    return write


def long_config(folder: Path) -> Path:
    source = drafter(b"{")(folder)
    os.truncate(source / "config.json", 10**8)
    return source


def nested(depth: int, key: str = "a") -> bytes:
    """Return the text of an object with lists in lists."""
    return f'{{"{key}":'.encode() + b"[" * depth + b"]" * depth + b"}"


def config_with(text: bytes) -> bytes:
    """Return the text of a sound config.json with one more entry."""
    settings = json.loads(
        json.dumps({**_config(), "architectures": ["LlamaForCausalLM"]}, ensure_ascii=True)
    )
    return json.dumps(settings).encode()[:-1] + b"," + text[1:]


def _config() -> dict[str, Any]:
    from tests.convert.family_models import CONFIGS
    from tests.convert.tiny_target import NAME

    return CONFIGS[NAME]
