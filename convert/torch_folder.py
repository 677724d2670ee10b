"""The PyTorch files of a folder, read as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redrafter_mlx.convert.torch_checkpoint import TorchTensor, open_torch
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import read_index, require_shards

TORCH_INDEX_FILE = "pytorch_model.bin.index.json"


def find_torch_files(folder: Path) -> list[Path]:
    """Return a folder's PyTorch files, none where it has none.

    They are those that ``pytorch_model.bin.index.json`` names; without an index every
    ``pytorch_model*.bin``, and without these ``model.pt``.

    Raises:
        CheckpointError: The index is malformed.
    """
    index = read_index(folder, TORCH_INDEX_FILE)
    names = set(index.values()) or {path.name for path in folder.glob("pytorch_model*.bin")}
    if not names and (folder / "model.pt").exists():
        names = {"model.pt"}
    return [folder / name for name in sorted(names)]


@contextmanager
def open_torch_folder(folder: Path) -> Iterator[dict[str, TorchTensor]]:
    """Open a folder's PyTorch files and give their tensors by name.

    Raises:
        CheckpointError: There is no such file, one cannot be read, two hold a tensor of one
            name, or one that the index promises is absent.
    """
    paths = find_torch_files(folder)
    if not paths:
        raise CheckpointError(
            f"{folder} holds no pytorch_model*.bin and no model.pt; choose a folder with weights."
        )
    index = read_index(folder, TORCH_INDEX_FILE)
    require_shards(folder, index.values(), TORCH_INDEX_FILE)
    with open_torch_files(paths) as tensors:
        absent = index.keys() - tensors.keys()
        if absent:
            raise CheckpointError(
                f"The tensor {min(absent)!r:.120} is in {TORCH_INDEX_FILE} but not in the files of "
                f"{folder}; get the files again."
            )
        yield tensors


@contextmanager
def open_torch_files(paths: Iterable[Path]) -> Iterator[dict[str, TorchTensor]]:
    """Open PyTorch files and give their tensors by name.

    Raises:
        CheckpointError: A file cannot be read, or two hold a tensor of one name.
    """
    tensors: dict[str, TorchTensor] = {}
    with ExitStack() as stack:
        for path in paths:
            shard = stack.enter_context(open_torch(path)).tensors
            twice = tensors.keys() & shard.keys()
            if twice:
                raise CheckpointError(
                    f"The tensor {min(twice)!r:.120} is in {path} and in another file beside it; "
                    "get the files again."
                )
            tensors |= shard
        yield tensors
