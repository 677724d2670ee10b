"""Where a drafter's tensors lie: safetensors, TensorRT-LLM's rank files, PyTorch files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mlx.core as mx

from redrafter_mlx.convert.torch_checkpoint import TorchTensor
from redrafter_mlx.convert.torch_folder import (
    find_torch_files,
    open_torch_files,
    open_torch_folder,
)
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import load_tensors, read_json

_RANK_FILE = re.compile(r"rank(\d{1,3})\.safetensors")


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor that is not read yet.

    Attributes:
        shape: Its sizes.
        load: Reads it.
    """

    shape: tuple[int, ...]
    load: Callable[[], mx.array]


@contextmanager
def open_source(source: Path) -> Iterator[dict[str, LazyTensor]]:
    """Open a checkpoint's files and give its tensors by their names there.

    Args:
        source: A safetensors or a PyTorch file, told by what is in it; or a folder, of
            which the files of the first kind found are read: ``model*.safetensors``, with or
            without an index; ``rank*.safetensors``, joined; ``pytorch_model*.bin``, with or
            without an index; ``model.pt``.

    Raises:
        CheckpointError: There is no such file, or one cannot be read.
    """
    if source.is_file() and not _is_safetensors(source):
        with open_torch_files([source]) as tensors:
            yield _lazy(tensors)
    elif ranks := _find_ranks(source):
        yield _joined([load_tensors(path) for path in ranks], source)
    elif not _has_safetensors(source) and find_torch_files(source):
        with open_torch_folder(source) as tensors:
            yield _lazy(tensors)
    elif source.is_dir() and not _has_safetensors(source):
        raise CheckpointError(
            f"{source} holds no model*.safetensors, rank*.safetensors, pytorch_model*.bin or "
            "model.pt; choose a folder with weights."
        )
    else:
        yield _lazy(load_tensors(source))


def _is_safetensors(file: Path) -> bool:
    """Return whether a JSON object follows 8 bytes of length; by its name if it is damaged."""
    try:
        with file.open("rb") as opened:
            head = opened.read(9)
    except OSError:
        head = b""
    return head[8:] == b"{" or (head[:2] != b"PK" and file.suffix == ".safetensors")


def _lazy(tensors: Mapping[str, mx.array | TorchTensor]) -> dict[str, LazyTensor]:
    return {
        name: LazyTensor(
            tensor.shape,
            tensor.load if isinstance(tensor, TorchTensor) else partial(_same, tensor),
        )
        for name, tensor in tensors.items()
    }


def _same(array: mx.array) -> mx.array:
    return array


def _has_safetensors(folder: Path) -> bool:
    return any(folder.glob("model*.safetensors*"))


def _find_ranks(folder: Path) -> list[Path]:
    """Return the rank files in order of rank, none beside files of another kind."""
    if _has_safetensors(folder):
        return []
    found = {
        int(match[1]): path
        for path in folder.glob("rank*.safetensors")
        if (match := _RANK_FILE.fullmatch(path.name))
    }
    for rank in range(max(_num_ranks(folder), max(found) + 1) if found else 0):
        if rank not in found:
            raise CheckpointError(f"{folder} lacks rank{rank}.safetensors; get every rank's file.")
    return [found[rank] for rank in sorted(found)]


def _num_ranks(folder: Path) -> int:
    """Return how many ranks config.json tells of, 0 where it does not."""
    path = folder / "config.json"
    mapping = read_json(path).get("mapping") if path.exists() else None
    num_ranks = mapping.get("world_size") if isinstance(mapping, dict) else None
    return num_ranks if type(num_ranks) is int and 0 < num_ranks < 1000 else 0


def _joined(ranks: Sequence[Mapping[str, mx.array]], folder: Path) -> dict[str, LazyTensor]:
    """Join what each rank holds of a tensor: its share of the rows, in order of rank.

    This holds for a drafter's tensors alone; a shape of the model's beside it may be wrong.

    Source:
        NVIDIA/TensorRT-LLM, examples/redrafter/convert_checkpoint.py, hf_drafter, which
        splits every tensor over the ranks along axis 0.
    """
    names = ranks[0].keys()
    for rank, tensors in enumerate(ranks):
        odd = names ^ tensors.keys()
        if odd:
            raise CheckpointError(
                f"{folder}: rank0.safetensors and rank{rank}.safetensors differ in the tensor "
                f"{min(odd)!r:.120}; get the files again."
            )
    return {name: _join([tensors[name] for tensors in ranks], name, folder) for name in names}


def _join(shares: list[mx.array], name: str, folder: Path) -> LazyTensor:
    num_rows = sum(share.shape[0] for share in shares if share.ndim)
    shape = (num_rows, *shares[0].shape[1:])

    def load() -> mx.array:
        if any(share.shape[1:] != shape[1:] or not share.ndim for share in shares):
            shapes = ", ".join(str(share.shape) for share in shares)
            raise CheckpointError(
                f"{folder}: the ranks' shares of {name!r:.120} have the shapes {shapes:.120} and "
                "cannot be joined; get the files again."
            )
        return mx.concatenate(shares)

    return LazyTensor(shape, load)
