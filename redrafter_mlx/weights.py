"""JSON and safetensors files.

MLX reads a safetensors file lazily and trusts its header, so a hostile or truncated file
would fail in the middle of an answer or take the process down. Here every header is
checked against the size of its file before MLX sees it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import mlx.core as mx

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.file_errors import refusing, unreadable, unwritable
from redrafter_mlx.json_files import GET_AGAIN, MAX_JSON_BYTES, parse_object

INDEX_FILE = "model.safetensors.index.json"
_MAX_DIMENSIONS = 8
_MAX_SIZE = 2**31 - 1  # MLX keeps a shape in int32
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8,
}  # fmt: skip


def read_json(path: Path | str, advice: str = GET_AGAIN) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        path: The file.
        advice: What to do where it is broken.

    Raises:
        CheckpointError: The file is missing, larger than 64 MiB, not JSON, nested too deep,
            or something other than an object.
    """
    path = Path(path)
    with refusing(unreadable, path):
        num_bytes = path.stat().st_size
        if num_bytes > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path} is {num_bytes} bytes long, more than a JSON file's {MAX_JSON_BYTES} "
                "here; check that it is the right file."
            )
        return parse_object(path.read_bytes(), str(path), advice)


def write_json(path: Path | str, values: Mapping[str, Any]) -> None:
    """Write a JSON object, indented, in UTF-8.

    Raises:
        CheckpointError: The file cannot be written.
    """
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    with refusing(unwritable, path):
        Path(path).write_text(text, encoding="utf-8")


def load_tensors(path: Path | str) -> dict[str, mx.array]:
    """Return the tensors of a safetensors file or of a model's folder, still lazy.

    Args:
        path: A ``.safetensors`` file; or a folder, of which the files are read that
            ``model.safetensors.index.json`` names and, where there is no index, every
            ``model*.safetensors``.

    Raises:
        CheckpointError: A file is missing, truncated or malformed, two files hold a
            tensor of one name, or one that the index promises is absent.
    """
    path = Path(path)
    if not os.path.isdir(path):
        return _load_file(path)
    index = read_index(path)
    require_shards(path, index.values(), INDEX_FILE)
    names = sorted(set(index.values())) or sorted(p.name for p in path.glob("model*.safetensors"))
    if not names:
        raise CheckpointError(f"{path} holds no model*.safetensors; choose a folder with weights.")
    tensors: dict[str, mx.array] = {}
    for name in names:
        shard = _load_file(path / name)
        _refuse_names(tensors.keys() & shard.keys(), "is twice in", path)
        tensors |= shard
    missing = index.keys() - tensors.keys()
    _refuse_names(missing, f"is in {INDEX_FILE} but not in the files of", path)
    return tensors


def save_tensors(path: Path | str, tensors: Mapping[str, mx.array]) -> None:
    """Write one ``.safetensors`` file with the metadata that mlx-lm expects.

    Raises:
        CheckpointError: The file cannot be written.
    """
    with refusing(unwritable, path):
        mx.save_safetensors(str(path), dict(tensors), metadata={"format": "mlx"})


def read_index(folder: Path, file: str = INDEX_FILE) -> dict[str, str]:
    """Return tensor name -> file name, empty where the folder has no such index."""
    index_path = folder / file
    if not os.path.exists(index_path):
        return {}
    index = read_json(index_path).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise CheckpointError(f"{index_path} has no weight_map; get the file again.")
    for name in index.values():
        if not _is_file_name(name):
            raise CheckpointError(f"{index_path} names the file {name!r:.120}; get the file again.")
    return index


def require_shards(folder: Path, names: Iterable[str], index: str) -> None:
    """Refuse a folder without a file that its index names.

    Raises:
        CheckpointError: With the file's name.
    """
    for name in sorted(set(names)):
        if not os.path.exists(folder / name):
            raise CheckpointError(f"{folder} lacks {name}, which {index} names; get it again.")


def _is_file_name(name: Any) -> bool:
    """Whether it leads to nothing outside of the folder that it is looked up in."""
    return (
        isinstance(name, str)
        and name == Path(name).name
        and name not in ("", "..")
        and "\0" not in name
    )


def _load_file(path: Path) -> dict[str, mx.array]:
    _check_header(path)
    with refusing(unreadable, path):
        tensors = mx.load(str(path), format="safetensors")
    assert isinstance(tensors, dict)
    return tensors


def _check_header(path: Path) -> None:
    """Check a safetensors header against the size of the file.

    Source:
        https://github.com/huggingface/safetensors, section "Format": 8 bytes of header
        length, little-endian; the header, a JSON object; the data.
    """
    with refusing(unreadable, path), path.open("rb") as file:
        num_bytes = path.stat().st_size
        header_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes < 8 or not 2 <= header_bytes <= min(num_bytes - 8, MAX_JSON_BYTES):
            raise _truncated(path, f"a header of {header_bytes} bytes, it has {num_bytes}")
        header = parse_object(file.read(header_bytes), f"The header of {path}")
    header.pop("__metadata__", None)
    data_bytes = num_bytes - 8 - header_bytes
    for name, entry in header.items():
        _check_entry(path, name, entry, data_bytes)
    _check_places(path, header, data_bytes)


def _check_places(path: Path, header: Mapping[str, Any], data_bytes: int) -> None:
    """Check that the tensors lie end to end and fill the data, as the format demands."""
    end = 0
    for place, name in sorted((entry["data_offsets"], name) for name, entry in header.items()):
        if place[0] != end:
            raise _truncated(path, f"{name!r:.120} at bytes {place}, and byte {end} comes next")
        end = place[1]
    if end != data_bytes:
        raise _truncated(path, f"{end} bytes of tensors, it has {data_bytes}")


def _check_entry(path: Path, name: str, entry: Any, data_bytes: int) -> None:
    """Check one tensor's dtype, shape and place in the data."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, place = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise CheckpointError(
            f"{path} stores {name!r:.120} as {dtype!r:.40}; convert it to F16, BF16 or F32."
        )
    claim = f"{name!r:.120} of shape {shape!r:.80} at bytes {place!r:.60} of {data_bytes}"
    if not _are_sizes(shape, _MAX_SIZE) or not _are_sizes(place, data_bytes) or len(place) != 2:
        raise _truncated(path, claim)
    if place[1] - place[0] != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise _truncated(path, claim)


def _are_sizes(values: Any, limit: int) -> TypeGuard[list[int]]:
    """Whether this is a short list of whole numbers from 0 to ``limit``."""
    if not isinstance(values, list) or len(values) > _MAX_DIMENSIONS:
        return False
    return all(type(value) is int and 0 <= value <= limit for value in values)


def _refuse_names(names: set[str], what: str, folder: Path) -> None:
    if names:
        raise CheckpointError(
            f"The tensor {min(names)!r:.120} {what} {folder}; get the files again."
        )


def _truncated(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is truncated or damaged: it claims {what}; get it again.")
