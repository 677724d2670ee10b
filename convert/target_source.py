"""Where a target's tensors lie: safetensors or PyTorch files in a folder, or a GGUF file."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np

from redrafter_mlx.convert.cursor import FileCursor
from redrafter_mlx.convert.tensor_job import Rows, SourceTensor, number_type, row_runs
from redrafter_mlx.convert.torch_checkpoint import TorchTensor
from redrafter_mlx.convert.torch_folder import find_torch_files, open_torch_folder
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import INDEX_FILE, load_tensors, read_index

_GGUF_MAGIC = b"GGUF"


def find_gguf(source: Path) -> Path | None:
    """Return the GGUF file that a source is, or that a folder without other weights holds.

    Raises:
        CheckpointError: Such a folder holds several.
    """
    if not source.is_dir():
        return source if is_gguf(source) else None
    if has_safetensors(source) or find_torch_files(source):
        return None
    files = sorted(path for path in source.glob("*.gguf") if is_gguf(path))
    if len(files) > 1:
        raise CheckpointError(
            f"{source} holds {len(files)} GGUF files, {files[0].name} among them; name one."
        )
    return files[0] if files else None


def is_gguf(file: Path) -> bool:
    """Return whether a file begins as GGUF files do."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except OSError:
        return False


def has_safetensors(folder: Path) -> bool:
    """Return whether a folder holds safetensors of a model, or an index of some."""
    return any(folder.glob("model*.safetensors")) or (folder / INDEX_FILE).exists()


@contextmanager
def open_tensors(folder: Path) -> Iterator[dict[str, SourceTensor]]:
    """Open a model's files, safetensors before PyTorch's, and give their tensors by name.

    Raises:
        CheckpointError: There is no such file, one cannot be read, two hold a tensor of one
            name, or one that an index promises is absent.
    """
    if has_safetensors(folder):
        yield _open_safetensors(folder)
    elif find_torch_files(folder):
        with open_torch_folder(folder) as tensors:
            yield {
                name: SourceTensor(name, tensor.dtype, tensor.shape, partial(_torch_runs, tensor))
                for name, tensor in tensors.items()
            }
    else:
        raise CheckpointError(
            f"{folder} holds no model*.safetensors, pytorch_model*.bin or *.gguf; choose a folder "
            "with weights."
        )


def _torch_runs(tensor: TorchTensor) -> Iterator[Rows]:
    num_rows = tensor.shape[0] if tensor.shape else 1
    for run in row_runs(num_rows, tensor.num_bytes // max(1, num_rows)):
        yield tensor.rows(run)
        tensor.release()


def _open_safetensors(folder: Path) -> dict[str, SourceTensor]:
    """Map the files; MLX would keep every tensor that it has once read."""
    arrays = load_tensors(folder)  # checks index, headers and names
    files = set(read_index(folder).values()) or {p.name for p in folder.glob("model*.safetensors")}
    tensors = {}
    for file in files:
        data = FileCursor(folder / file).data
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        for name in header.keys() - {"__metadata__"}:
            array, begin = arrays[name], start + header[name]["data_offsets"][0]
            runs = partial(_mapped_runs, data, begin, array.dtype, array.shape)
            tensors[name] = SourceTensor(name, array.dtype, array.shape, runs)
    return tensors


def _mapped_runs(
    data: mmap.mmap, begin: int, dtype: mx.Dtype, shape: tuple[int, ...]
) -> Iterator[Rows]:
    items = np.frombuffer(data, number_type(dtype), math.prod(shape), begin)
    rows = items.reshape(shape or (1,))
    for run in row_runs(len(rows), rows[:1].nbytes):
        yield rows[run]
        if hasattr(mmap, "MADV_DONTNEED"):
            data.madvise(mmap.MADV_DONTNEED)  # mapped pages count as the process's memory
