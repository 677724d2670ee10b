"""Hostile and broken models and drafters: who writes each, and what its refusal must say."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from redrafter_mlx.json_files import MAX_JSON_BYTES
from redrafter_mlx.weights import INDEX_FILE, save_tensors
from tests.convert.tiny_drafter import NARROW, apple_config, random_tensors
from tests.convert.tiny_drafter import write as write_drafter
from tests.convert.tiny_gguf import Tensor, gguf_bytes, tiny_metadata, tiny_tensors
from tests.convert.tiny_target import HEAD, UP, tensors_of, write_target
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


def torch_model(folder: Path, spoiled: Mapping[str, mx.array]) -> Path:
    source = write_target(folder / "model", {})
    (source / SAFETENSORS).unlink()
    save_torch(source / BIN, tensors_of() | spoiled)
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


NOT_A_NUMBER = mx.array([float("nan")] * NARROW.hidden_size, mx.float16)
APPLE = apple_config(NARROW)
NAN_HALF, INF_HALF = b"\x00\x7e", b"\x00\x7c"

CASES: dict[str, Case] = {
    **{
        f"pickle: {name}": Case(in_model(BIN, pickled(make)), words)
        for name, (make, words) in PICKLES.items()
    },
    "pickle without a zip": Case(in_model(BIN, raw_pickle), "is not a PyTorch zip file"),
    "pickle alone": Case(alone("a.pt", pickle.dumps({"a": touch(CANARY)})), "not a PyTorch", False),
    "pickle named safetensors": Case(in_model(SAFETENSORS, raw_pickle), "truncated or damaged"),
    "zip bomb": Case(in_model(BIN, bomb), "is compressed or encrypted"),
    "zip of overlaps": Case(in_model(BIN, overlapping), "overlaps another"),
    "zip with ../": Case(in_model(BIN, outside("../../evil")), "lies outside of it"),
    "zip with a claim": Case(in_model(BIN, claiming), str(4 * HUGE)),
    "zip cut to nothing": Case(cut(BIN, 0.0), "is empty"),
    "zip cut to half": Case(cut(BIN, 0.5), "truncated or damaged"),
    "zip cut in its directory": Case(cut(BIN, 0.99), "truncated or damaged"),
    "zip cut by a byte": Case(cut(BIN, 1.0), "truncated or damaged"),
    "bin of zeros": Case(in_model(BIN, bytes(4096)), "is not a PyTorch zip file"),
    "bin with NaN": Case(
        lambda to: torch_model(to, spoiled(UP, float("nan"))), f"'{UP}' holds NaN or infinity"
    ),
    "bin with infinity": Case(
        lambda to: torch_model(to, spoiled(UP, float("-inf"))), f"'{UP}' holds NaN or infinity"
    ),
    "bin of scalars": Case(scalar_heads, "has shape ()"),
    "bin index with ../": Case(
        in_model(TORCH_INDEX, b'{"weight_map": {"a": "../x.bin"}}'), "names the file '../x.bin'"
    ),
    "bin index with a root": Case(
        in_model(TORCH_INDEX, b'{"weight_map": {"a": "/etc/passwd"}}'), "names the file '/etc/pass"
    ),
    "bin index of .": Case(in_model(TORCH_INDEX, b'{"weight_map": {"a": ".."}}'), "names the file"),
    "bin index with a zero byte": Case(
        in_model(TORCH_INDEX, b'{"weight_map": {"a": "a\\u0000b"}}'), "names the file 'a\\x00b'"
    ),
    "safetensors cut to nothing": Case(cut(SAFETENSORS, 0.0), "truncated or damaged"),
    "safetensors cut in the header": Case(cut(SAFETENSORS, 0.01), "truncated or damaged"),
    "safetensors cut to half": Case(cut(SAFETENSORS, 0.5), "truncated or damaged"),
    "safetensors cut by a byte": Case(cut(SAFETENSORS, 1.0), "truncated or damaged"),
    "safetensors header of 2^60": Case(
        in_model(SAFETENSORS, struct.pack("<Q", HUGE) + b"{}"), f"a header of {HUGE} bytes"
    ),
    "safetensors offset of 2^60": Case(
        in_model(SAFETENSORS, safetensors({"x": entry(offsets=(0, HUGE))})), "at bytes [0, 1152"
    ),
    "safetensors shape of 2^60": Case(
        in_model(SAFETENSORS, safetensors({"x": entry(shape=(HUGE,))})), "of shape [1152"
    ),
    "safetensors deep": Case(
        in_model(SAFETENSORS, safetensors(nested(100_000))), "is not valid JSON"
    ),
    "safetensors in float8": Case(
        in_model(SAFETENSORS, safetensors({"x": entry(dtype="F8_E5M2")})), "as 'F8_E5M2'"
    ),
    "safetensors of one place": Case(
        in_model(SAFETENSORS, safetensors({"x": entry(), "y": entry()})), "truncated or damaged"
    ),
    "safetensors of one name": Case(
        in_model(SAFETENSORS, safetensors(
            json.dumps({"x": entry((8,), (0, 32))}).encode()[:-1] + b","
            + json.dumps({"x": entry((8,), (32, 64))}).encode()[1:])), "truncated or damaged"
    ),
    "safetensors of one name in two": Case(twice, f"'{HEAD}' is twice in"),
    "safetensors name of two lines": Case(odd_name("a\nb\x1b[2J"), "'a\\nb\\x1b[2J'"),
    "safetensors name of a megabyte": Case(odd_name("a" * 2**20), "'aaaaaaaa"),
    "safetensors name with ../": Case(odd_name("../../a.weight"), "'../../a.weight'"),
    "safetensors with NaN": Case(
        lambda to: write_target(to / "model", tensors_of() | spoiled(UP, float("nan"))),
        "NaN or infinity",
    ),
    "safetensors with infinity": Case(
        lambda to: write_target(to / "model", tensors_of() | spoiled(UP, float("inf"))),
        "NaN or infinity",
    ),
    "index with ../": Case(sharded({"a": "../model.safetensors"}), "names the file '../model"),
    "index with a root": Case(sharded({"a": "/etc/passwd"}), "names the file '/etc/passwd'"),
    "index of a megabyte's name": Case(sharded({"a": "../" + "b" * 2**20}), "names the file '../b"),
    "index of lists": Case(sharded({"a": [["b"]]}), "names the file [['b']]"),
    "index without files": Case(sharded({}), "has no weight_map"),
    "index deep": Case(beside(INDEX_FILE, nested(600, "weight_map")), INDEX_FILE),
    "index of 100 MB": Case(sparse(INDEX_FILE, 10**8), f"more than a JSON file's {MAX_JSON_BYTES}"),
    "config of 100 MB": Case(sparse("config.json", 10**8), "more than a JSON file's"),
    "config deep": Case(beside("config.json", nested(100_000)), "is not valid JSON"),
    **{
        f"config of {depth} lists": Case(
            beside("config.json", config_with(nested(depth))), "nested too deep"
        )
        for depth in (101, 600)
    },
    "config with a deep type": Case(
        beside("config.json", config_with(nested(90, "model_type"))), "model_type [[[[[["
    ),
    "config with a long type": Case(with_config(model_type="x" * 10**6), "model_type 'xxx"),
    "config of zeros": Case(beside("config.json", bytes(600)), "is not valid JSON"),
    "config of a list": Case(beside("config.json", b"[]"), "is not a JSON object"),
    "config of nothing": Case(beside("config.json", b""), "is not valid JSON"),
    "config in UTF-16": Case(beside("config.json", "{}".encode("utf-16")), "is not valid JSON"),
    "config with many digits": Case(
        beside("config.json", config_with(b'{"vocab_size": ' + b"9" * 9999 + b"}")), "valid JSON"
    ),
    "config of 2^40 layers": Case(with_config(num_hidden_layers=2**40), "from 1 to 1024"),
    "config of 99 layers": Case(with_config(num_hidden_layers=99), "layers.10."),
    "config of -1 layers": Case(with_config(num_hidden_layers=-1), "num_hidden_layers is -1"),
    "config of two layers in a text": Case(with_config(num_hidden_layers="2"), "layers is '2'"),
    "config of a huge width": Case(with_config(hidden_size=HUGE), "hidden_size is 1152"),
    "config of a large width": Case(with_config(hidden_size=2**16), "65536)"),
    "config of no heads": Case(with_config(num_attention_heads=0), "num_attention_heads is 0"),
    "config of NaN": Case(with_config(rms_norm_eps=float("nan")), "rms_norm_eps is nan"),
    "config of infinity": Case(with_config(rope_theta=float("inf")), "rope_theta is inf"),
    "config with code": Case(with_config(auto_map={"AutoModel": "evil.Evil"}), "own model code"),
    "config of a quantisation": Case(with_config(quantization="4"), "it must be an object"),
    **{
        f"{name} {what}": Case(write(name), name)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
        for what, write in {
            "of 100 MB": lambda name: sparse(name, 10**8),
            "deep": lambda name: beside(name, nested(100_000)),
            "cut": lambda name: beside(name, b'{"version": "1.0", "added_tok'),
            "of zeros": lambda name: beside(name, bytes(100)),
            "of a list": lambda name: beside(name, b"[1]"),
        }.items()
    },
    "tokenizer.model of 100 MB": Case(sparse("tokenizer.model", 10**8), "tokenizer.model"),
    "generation_config cut": Case(beside("generation_config.json", b"{"), "generation_config.json"),
    "gguf cut to the magic": Case(halved(0.0), "m.gguf", False),
    "gguf cut in the head": Case(halved(0.01), "truncated or damaged"),
    "gguf cut to half": Case(halved(0.5), "truncated or damaged"),
    "gguf cut by a byte": Case(halved(1.0), "truncated or damaged"),
    "gguf of 2^60 tensors": Case(patched(8, "<Q", HUGE), f"the number of tensors is {HUGE}"),
    "gguf of 2^60 entries": Case(patched(16, "<Q", HUGE), f"metadata entries is {HUGE}"),
    "gguf key of 2^60 bytes": Case(patched(24, "<Q", HUGE), f"is {HUGE}"),
    "gguf text of 2^60 bytes": Case(
        after(b"general.architecture", "<Q", HUGE, 4), f"is {HUGE}"
    ),
    "gguf array of 2^60": Case(after(b"ggml.tokens", "<Q", HUGE, 8), f"is {HUGE}"),
    "gguf size of 2^60": Case(after(b"token_embd.weight", "<Q", HUGE, 12), "truncated or damaged"),
    "gguf offset of 2^60": Case(after(b"output_norm.weight", "<Q", HUGE - 32, 16), "output_norm"),
    "gguf of 2^31 - 1 layers": Case(gguf(llama__block_count=2**31 - 1), "claims 2147483647 layers"),
    "gguf big-endian": Case(patched(4, ">I", 3), "version 0x3000000"),
    "gguf type of no number": Case(after(b"output_norm.weight", "<I", 12, 12), "as Q4_K"),
    "gguf with a NaN scale": Case(gguf_tensor("token_embd.weight", NAN_HALF), "NaN or infinity"),
    "gguf with an infinite scale": Case(
        gguf_tensor("blk.0.ffn_up.weight", INF_HALF), "NaN or infinity"
    ),
    "gguf with a NaN": Case(
        gguf_tensor("output_norm.weight", struct.pack("<f", float("nan"))), "NaN or infinity"
    ),
    "gguf with a tensor ../": Case(
        gguf([*tiny_tensors(), Tensor("../../evil", "F32", (1,), bytes(4))]), "'../../evil'"
    ),
    "gguf with one name twice": Case(
        gguf([*tiny_tensors(), *tiny_tensors()[:1]]), "is there twice"
    ),
    "gguf of an odd BOS": Case(gguf(tokenizer__ggml__bos_token_id=2**31), "bos_token_id is 2147"),
}  # fmt: skip

DRAFTERS: dict[str, Case] = {
    "drafter with NaN": Case(drafter(**{"rnn_u.bias": NOT_A_NUMBER}), "an infinity or a NaN"),
    "drafter with a tensor more": Case(drafter(extra=mx.zeros(2)), "'extra' of shape (2,)"),
    "drafter of 100 MB of config": Case(long_config, "more than a JSON file's"),
    "drafter with a deep config": Case(drafter(nested(600, "hidden_size")), "nested too deep"),
    "drafter with a deep size": Case(drafter(nested(90, "hidden_size")), "says hidden_size [[["),
    "drafter with a long size": Case(drafter(APPLE | {"exit_dim": "9" * 10**6}), "says exit_dim"),
    "drafter with a long version": Case(drafter({"format_version": "9" * 10**6}), "'9999"),
    "drafter with a deep version": Case(drafter(nested(90, "format_version")), "[[[[[["),
    "drafter with a long key": Case(
        drafter({"format_version": 1, "b" * 10**6: 1}), "unknown key 'bbb"
    ),
    "drafter with a long target": Case(
        drafter({"format_version": 1, "target": "t" * 10**6}), "TargetIdentity is 'ttt"
    ),
    "drafter with a long head": Case(
        drafter({"format_version": 1, "head": ["t"] * 10**4}), "DrafterConfig has head ['t'"
    ),
    "drafter of 2^40": Case(drafter({"format_version": 1, "hidden_size": 2**40, "vocab_size": 5,
                                     "exit_dim": 5, "num_draft_layers": 1}), "1099511627776"),
}  # fmt: skip

# Files of a sound model whose JSON is sound, too; convert copies them.
TOKENIZERS: dict[str, tuple[str, bytes]] = {
    "tokenizer.model cut": ("tokenizer.model", b"\x0a\x0e\x0a\x05<unk>\x15"),
    "vocabulary of a list": ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": [1]}}'),
    "merges of nothing": (
        "tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}'
    ),
    "id of 2^60": ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": %d}}}' % HUGE),
    "code": ("tokenizer_config.json", b'{"tokenizer_class": "Evil", "auto_map": '
                                      b'{"AutoTokenizer": ["evil.Evil", null]}}'),
    "class of no name": ("tokenizer_config.json", b'{"tokenizer_class": {"a": []}}'),
}  # fmt: skip
EVIL_CODE = f"open({CANARY!r}, 'w')\nclass Evil:\n    pass\n"
