"""Measures memory and time of converting one large PyTorch file; see ``--help``.

    python -m tests.convert.measure_memory FOLDER [--layers 9] [--quantize 4] [--dtype bfloat16]

writes a model of Vicuna's shape in float16 into FOLDER/source, as one pytorch_model.bin of about
4 GB in torch's zip format, then converts it in a fresh process and copies the same bytes with
``cp`` and ``sync``. Peaks are read from /proc: all resident pages, those of mapped files
included, and the anonymous ones alone, sampled every 10 ms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np

HIDDEN, INNER, VOCAB = 4096, 11008, 32000
RANDOM_BYTES = 64 << 20


def shapes_of(num_layers: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        for part in "qkvo":
            shapes[f"{prefix}self_attn.{part}_proj.weight"] = (HIDDEN, HIDDEN)
        for part, shape in {
            "gate": (INNER, HIDDEN),
            "up": (INNER, HIDDEN),
            "down": (HIDDEN, INNER),
        }.items():
            shapes[f"{prefix}mlp.{part}_proj.weight"] = shape
        for part in ("input", "post_attention"):
            shapes[f"{prefix}{part}_layernorm.weight"] = (HIDDEN,)
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def write_source(folder: Path, num_layers: int) -> None:
    from tests.convert.tiny_torch import mapping, program, tensor

    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 32,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    values = (random.standard_normal(RANDOM_BYTES // 2, np.float32) / 50).astype("<f2").tobytes()
    shapes = shapes_of(num_layers)
    entries = {}
    for key, (name, shape) in enumerate(shapes.items()):
        strides = (shape[1], 1) if len(shape) == 2 else (1,)
        entries[name] = tensor(
            shape,
            strides,
            num_items=int(np.prod(shape)),
            key=str(key),
            kind=b"ctorch\nHalfStorage\n",
        )
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as file:
        file.writestr("archive/data.pkl", program(mapping(entries)))
        for key, shape in enumerate(shapes.values()):
            with file.open(f"archive/data/{key}", "w", force_zip64=True) as entry:
                left = 2 * int(np.prod(shape))
                while left:
                    left -= entry.write(values[: min(left, RANDOM_BYTES)])


def status_kb(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    return 0


def convert(source: Path, out: Path, dtype: str | None, bits: int | None) -> None:
    """Convert in this process and write a line of JSON with the figures."""
    from redrafter_mlx.config import Quantization
    from redrafter_mlx.convert.target import TargetOptions, convert_target

    before_kb, peak_kb, is_done = status_kb("VmRSS"), 0, threading.Event()

    def sample() -> None:
        nonlocal peak_kb
        while not is_done.wait(0.01):
            peak_kb = max(peak_kb, status_kb("RssAnon"))

    sampler = threading.Thread(target=sample)
    sampler.start()
    start = time.perf_counter()
    quantization = Quantization(bits) if bits else None
    converted = convert_target(source, out, TargetOptions(dtype, quantization))
    seconds = time.perf_counter() - start
    is_done.set()
    sampler.join()
    figures = {
        "written_gb": round(converted.num_bytes / 1e9, 3),
        "seconds": round(seconds, 1),
        "before_mb": round(before_kb / 1000),
        "peak_resident_mb": round(status_kb("VmHWM") / 1000),
        "peak_anonymous_mb": round(peak_kb / 1000),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--dtype")
    parser.add_argument("--quantize", type=int)
    parser.add_argument("--in-process", action="store_true", help="what the fresh process does")
    options = parser.parse_args()
    source, out = options.folder / "source", options.folder / "out"
    if options.in_process:
        convert(source, out, options.dtype, options.quantize)
        return
    if not source.exists():
        write_source(source, options.layers)
    file = source / "pytorch_model.bin"
    sys.stdout.write(f"source: {file.stat().st_size / 1e9:.3f} GB\n")
    command = [sys.executable, "-m", "tests.convert.measure_memory", *sys.argv[1:], "--in-process"]
    subprocess.run(command, check=True)
    copy = options.folder / "copy.bin"
    subprocess.run(["sync"], check=True)
    start = time.perf_counter()
    subprocess.run(["cp", file, copy], check=True)
    subprocess.run(["sync", copy], check=True)
    sys.stdout.write(f"cp and sync: {time.perf_counter() - start:.1f} s\n")


if __name__ == "__main__":
    main()
