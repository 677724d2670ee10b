"""Breaks small files of the three formats at random and reads them; no test, run by hand.

    python -m tests.fuzz_readers --seconds 600 [--format torch] [--seed 7] [--keep found]

A case is sound where the reader takes it or raises CheckpointError in one short line, writes
nothing, and keeps within a second or two and a gigabyte. Each case is made from a number
alone. Those that fail are kept, one of each kind, and the exit code is 1; a case that takes
the process down stays in the folder of the run, whose name is shown first.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import FrameType

import mlx.core as mx
import numpy as np

from redrafter_mlx.convert.base import convert_gguf
from redrafter_mlx.convert.target_source import open_tensors
from redrafter_mlx.convert.torch_checkpoint import open_torch
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.weights import load_tensors, save_tensors
from tests.convert.tiny_gguf import Tensor, gguf_bytes, random_tensor, tiny_metadata, tiny_tensors
from tests.convert.tiny_torch import archive, save_torch

TORCH_FILES = Path(__file__).parent / "convert" / "torch_files"
MOST_SECONDS = 2.0
MOST_BYTES = 1 << 30
MOST_CHARACTERS = 2000
EDGES = (0, 1, 2, 3, 7, 8, 9, 16, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1,
         2**32, 2**40, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip

Mutation = Callable[[bytearray, random.Random], None]


class TooSlow(BaseException):
    """A case used more than its time of the processor."""


@dataclass(frozen=True, slots=True)
class Format:
    """A reader, the files that are broken for it, and how.

    Attributes:
        name: The name of the file, as well.
        seeds: Sound files.
        break_inside: Breaks a part of a file and wraps it soundly again.
        read: Reads the file and everything in it.
    """

    name: str
    seeds: Sequence[bytes]
    break_inside: Callable[[bytes, random.Random, Path], bytes]
    read: Callable[[Path], None]


@dataclass(slots=True)
class Tally:
    """What came of the cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    slowest_seconds: float = 0.0


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def replace(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    data[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def set_number(data: bytearray, rng: random.Random) -> None:
    code = rng.choice(("<H", "<I", "<Q", "<Q"))
    size = struct.calcsize(code)
    if len(data) > size:
        value = rng.choice(EDGES) % (1 << 8 * size)
        struct.pack_into(code, data, rng.randrange(len(data) - size), value)


def shift_number(data: bytearray, rng: random.Random) -> None:
    if len(data) > 8:
        place = rng.randrange(len(data) - 8)
        value = int.from_bytes(data[place : place + 8], "little") + rng.choice((-8, -1, 1, 8))
        data[place : place + 8] = (value % 2**64).to_bytes(8, "little")


def truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def cut(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    del data[place : place + rng.choice((1, 2, 4, 8, 30, 64))]


def splice(data: bytearray, rng: random.Random) -> None:
    begin, place = rng.randrange(len(data)), rng.randrange(len(data))
    piece = data[begin : begin + rng.choice((1, 4, 8, 30, 46, 200))]
    if rng.random() < 0.5:
        data[place:place] = piece
    else:
        data[place : place + len(piece)] = piece


def set_text_number(data: bytearray, rng: random.Random) -> None:
    """Replace a number written in digits, as JSON has them."""
    digits = [place for place, byte in enumerate(data) if 0x30 <= byte <= 0x39]
    if digits:
        place = rng.choice(digits)
        texts = (*map(str, EDGES), "-1", "1e400", "1.5", "NaN", "null", '"x"', "[]", "9" * 5000)
        data[place : place + 1] = rng.choice(texts).encode()


def break_zip_fields(data: bytearray, rng: random.Random) -> None:
    """Set a field of a local header, a directory's entry or its end."""
    mark, length = rng.choice(((b"PK\3\4", 30), (b"PK\1\2", 46), (b"PK\5\6", 22)))
    places = [place for place in range(len(data)) if data.startswith(mark, place)]
    if places:
        place = rng.choice(places) + rng.randrange(4, length - 3)
        code = rng.choice(("<H", "<I"))
        if place + 4 <= len(data):
            value = rng.choice((*EDGES, len(data), len(data) - 1, rng.randrange(len(data))))
            struct.pack_into(code, data, place, value % (1 << 8 * struct.calcsize(code)))


MUTATIONS: tuple[Mutation, ...] = (
    flip, replace, set_number, shift_number, truncate, cut, splice, set_text_number,
    break_zip_fields,
)  # fmt: skip


def broken(data: bytes, rng: random.Random) -> bytes:
    """Return a copy with one to four things wrong."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if result:
            rng.choice(MUTATIONS)(result, rng)
    return bytes(result)


def break_pickle(data: bytes, rng: random.Random, path: Path) -> bytes:
    with zipfile.ZipFile(BytesIO(data)) as file:
        entries = {name.partition("/")[2]: file.read(name) for name in file.namelist()}
    pickle = broken(entries.pop("data.pkl"), rng)
    storages = {name[5:]: entries.pop(name) for name in list(entries) if name.startswith("data/")}
    return archive(path, pickle, storages, **entries).read_bytes()


def break_header(data: bytes, rng: random.Random, _: Path) -> bytes:
    end = 8 + int.from_bytes(data[:8], "little")
    header = broken(data[8:end], rng)
    return len(header).to_bytes(8, "little") + header + data[end:]


def break_head(data: bytes, rng: random.Random, _: Path) -> bytes:
    """Break what says where a GGUF file's texts and tensors are, and not the weights."""
    begin = rng.choice((0, data.index(b"token_embd.weight") - 8))
    end = min(begin + 600, len(data))
    return data[:begin] + broken(data[begin:end], rng) + data[end:]


def read_torch(path: Path) -> None:
    with open_torch(path) as file:
        for tensor in file.tensors.values():
            mx.eval(tensor.load())
            if tensor.shape:
                tensor.rows(slice(0, 1))


def read_safetensors(path: Path) -> None:
    mx.eval(load_tensors(path))
    folder = path.parent / "folder"
    folder.mkdir()
    path.rename(folder / "model.safetensors")
    try:
        with open_tensors(folder) as tensors:
            for tensor in tensors.values():
                if tensor.shape:
                    any(run is None for run in tensor.runs())
    finally:
        (folder / "model.safetensors").rename(path)
        folder.rmdir()


def read_gguf(path: Path) -> None:
    """Convert it: config, tokenizer and every tensor."""
    out = path.parent / "out"
    convert_gguf(path, out)
    shutil.rmtree(out)


def torch_seeds(folder: Path) -> list[bytes]:
    names = ("small.pt", "views.pt", "nested.pt", "protocol4.pt", "module.pt")
    values = {"a": mx.arange(6.0).reshape(2, 3), "b": mx.ones(4, mx.bfloat16)}
    saved = save_torch(folder / "saved", values)
    return [saved.read_bytes(), *((TORCH_FILES / name).read_bytes() for name in names)]


def safetensors_seeds(folder: Path) -> list[bytes]:
    values = {
        "a": mx.arange(6.0).reshape(2, 3), "b": mx.ones(4, mx.bfloat16), "c": mx.zeros((3, 0)),
        "d": mx.array(1, mx.uint32), "e": mx.ones((2, 2, 2), mx.float16),
    }  # fmt: skip
    save_tensors(folder / "saved", values)
    saved = (folder / "saved").read_bytes()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return [saved, len(header).to_bytes(8, "little") + header + bytes(8)]


def gguf_seeds(_: Path) -> list[bytes]:
    rope = Tensor("rope_freqs.weight", "F32", (8,), np.ones(8, "<f4").tobytes())
    biases = random_tensor("blk.0.attn_q.bias", "F32", (64,), np.random.default_rng(3))
    return [
        gguf_bytes(tiny_metadata(), tiny_tensors()),
        gguf_bytes(tiny_metadata(llama__rope__scaling__type="linear"), tiny_tensors("Q8_0", "F16")),
        gguf_bytes(tiny_metadata(tokenizer__ggml__pre="llama-bpe"), [*tiny_tensors("Q4_0"), rope]),
        gguf_bytes(tiny_metadata(), [*tiny_tensors("BF16", "F32", tied=False), biases], version=2),
    ]


def formats(folder: Path) -> list[Format]:
    return [
        Format("torch", torch_seeds(folder), break_pickle, read_torch),
        Format("safetensors", safetensors_seeds(folder), break_header, read_safetensors),
        Format("gguf", gguf_seeds(folder), break_head, read_gguf),
    ]


def make_case(kind: Format, seed: str, path: Path) -> None:
    rng = random.Random(seed)
    data = rng.choice(kind.seeds)
    inside = rng.random() < 0.5
    path.write_bytes(kind.break_inside(data, rng, path) if inside else broken(data, rng))


def run_case(kind: Format, seed: str, folder: Path, tally: Tally) -> None:
    """Make a case, read it and note what came of it."""
    path = folder / kind.name
    make_case(kind, seed, path)
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 5 * MOST_SECONDS)
    try:
        outcome, failure = outcome_of(kind, path)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - begin
    tally.slowest_seconds = max(tally.slowest_seconds, seconds)
    if seconds > MOST_SECONDS:
        outcome, failure = "failed", failure or f"took {seconds:.1f} s"
    left = sorted(entry.name for entry in folder.iterdir() if entry != path)
    if left:
        outcome, failure = "failed", failure or f"wrote {left}"
        for name in left:
            shutil.rmtree(folder / name)
    tally.outcomes[outcome] += 1
    if failure:
        tally.failures.setdefault(failure, seed)


def outcome_of(kind: Format, path: Path) -> tuple[str, str]:
    """Return taken, refused or failed, and for the last what distinguishes it."""
    try:
        kind.read(path)
    except (CheckpointError, ConfigError) as error:
        if "\n" in str(error) or len(str(error)) > MOST_CHARACTERS:
            return "failed", f"refused in {len(str(error))} characters: {str(error)[:100]!r}"
        return "refused", ""
    except TooSlow:
        return "failed", "does not end"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "failed", description(error)
    return "taken", ""


def description(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"


def limit_memory() -> None:
    """Give the process a gigabyte more than it has, where the system says how much that is."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def fuzz(kind: Format, seconds: float, first_seed: int, folder: Path) -> Tally:
    tally, end, number = Tally(), time.monotonic() + seconds, first_seed
    while time.monotonic() < end:
        run_case(kind, f"{kind.name}-{number}", folder, tally)
        number += 1
    return tally


def too_slow(_: int, __: FrameType | None) -> None:
    raise TooSlow


def report(kind: Format, tally: Tally, keep: Path) -> None:
    counts = ", ".join(f"{count} {what}" for what, count in sorted(tally.outcomes.items()))
    say(f"{kind.name}: {tally.outcomes.total()} cases ({counts}), "
        f"the slowest {tally.slowest_seconds:.2f} s")  # fmt: skip
    for failure, seed in tally.failures.items():
        keep.mkdir(parents=True, exist_ok=True)
        make_case(kind, seed, keep / seed)
        say(f"  {failure}: {keep / seed}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Break files at random and read them.")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all formats together")
    parser.add_argument("--format", choices=("torch", "safetensors", "gguf"))
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="for what fails")
    options = parser.parse_args()
    warnings.simplefilter("error")
    signal.signal(signal.SIGPROF, too_slow)
    num_failures = 0
    folder = Path(tempfile.mkdtemp(prefix="fuzz-readers-"))
    say(f"in {folder}")
    (folder / "seeds").mkdir()
    (folder / "case").mkdir()
    kinds = [kind for kind in formats(folder / "seeds") if options.format in (None, kind.name)]
    convert_gguf_once(folder)
    limit_memory()
    for kind in kinds:
        tally = fuzz(kind, options.seconds / len(kinds), options.seed, folder / "case")
        report(kind, tally, options.keep)
        num_failures += len(tally.failures)
        shutil.rmtree(folder / "case")
        (folder / "case").mkdir()
    shutil.rmtree(folder)
    return 1 if num_failures else 0


def convert_gguf_once(folder: Path) -> None:
    """Have everything imported before time and memory are limited."""
    (folder / "first").write_bytes(gguf_seeds(folder)[0])
    read_gguf(folder / "first")


if __name__ == "__main__":
    sys.exit(main())
