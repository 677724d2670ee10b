"""From the name of a model to the folder that holds it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.kind import is_loadable
from redrafter_mlx.convert.target import TargetOptions, convert_target
from redrafter_mlx.convert.target_options import quantized_already
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.loading.converted import (
    Origin,
    conversion_folder,
    convert_once,
    is_complete,
    refuse_quantized,
    size_text,
)
from redrafter_mlx.loading.download import SizeLimit, fetch, fetch_config
from redrafter_mlx.loading.drafter_places import find_drafter
from redrafter_mlx.loading.known import (
    HUB_MODELS,
    KNOWN_NAMES,
    WHEEL_MODELS,
    cache_folder,
    find_wheel_file,
    is_known_name,
    is_repository,
    repository_of,
    require_writable_cache,
    short_name,
)
from redrafter_mlx.loading.modules import compute_dtype
from redrafter_mlx.loading.watch import SILENT, Watch
from redrafter_mlx.sizes import readable_size, total_memory_bytes

__all__ = [
    "KNOWN_NAMES",
    "cache_folder",
    "chat_template_of",
    "find_drafter",
    "find_source",
    "is_known_name",
    "resolve_model",
]

_PATH_BEGINNING = re.compile(r"[/~]|\.\.?(/|$)")
_FILE_ENDING = re.compile(r"\.(gguf|safetensors|bin|pt|pth|json)$")


def resolve_model(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    quantization: Quantization | None = None,
    dtype: str = "stored",
    watch: Watch = SILENT,
) -> Path:
    """Return the folder of a model, downloading and converting it on first use.

    Args:
        name_or_path: A known name; a model's folder or GGUF file; or a repository
            ``org/name`` of the Hugging Face Hub.
        revision: A repository's branch, tag or commit.
        quantization: How to quantise the weights of a copy in the cache.
        dtype: What the copy will be loaded in: see ``compute_dtype``.
        watch: Is told of downloads and conversions.

    Raises:
        CheckpointError: There is no such model, it cannot be got or converted, or it would not
            fit the memory.
        ConfigError: The revision or the quantisation does not go with this model.
    """
    name, how = str(name_or_path), _How(dtype, watch)
    if name in WHEEL_MODELS:
        return _wheel_model(name, revision, quantization, how)
    if not is_known_name(name) and os.path.exists(os.path.expanduser(name)):
        _refuse_revision(name, revision)
        return _local_model(Path(os.path.expanduser(name)), quantization, how)
    _refuse_missing_path(name)
    if is_known_name(name) or is_repository(name):
        return _hub_model(Origin(short_name(name), revision, quantization), how)
    raise _unknown(name)


def find_source(name_or_path: str | Path, revision: str | None, watch: Watch = SILENT) -> Path:
    """Return the files of a model or a drafter as they are, downloading them on first use.

    Raises:
        CheckpointError: There is nothing of this name, or it cannot be got.
        ConfigError: A revision is given for what is no repository.
    """
    name = str(name_or_path)
    if name in WHEEL_MODELS:
        _refuse_revision(name, revision)
        return find_wheel_file(name)
    if not is_known_name(name) and os.path.exists(os.path.expanduser(name)):
        _refuse_revision(name, revision)
        return Path(os.path.expanduser(name))
    _refuse_missing_path(name)
    if is_known_name(name) or is_repository(name):
        return fetch(repository_of(name), revision, watch)
    raise _unknown(name)


def chat_template_of(name: str) -> str | None:
    """Return the chat template that the package has for a known model without one."""
    known = HUB_MODELS.get(short_name(name))
    return known.chat_template if known else None


@dataclass(frozen=True, slots=True)
class _How:
    """What a model is got for: the dtype to load it in, and who is told."""

    dtype: str
    watch: Watch

    def weight_bytes(self, num_bytes: int, num_parameters: int) -> int:
        """Return what weights of so many bytes on the disk fill in memory."""
        dtype = compute_dtype(self.dtype)
        return num_bytes if dtype is None else num_parameters * dtype.size


def _wheel_model(
    name: str, revision: str | None, quantization: Quantization | None, how: _How
) -> Path:
    _refuse_revision(name, revision)
    if quantization is not None:
        raise quantized_already(name)
    origin = Origin(name)
    folder = conversion_folder(origin)
    if is_complete(folder):
        return folder
    return _make(find_wheel_file(name), folder, origin, how)


def _local_model(path: Path, quantization: Quantization | None, how: _How) -> Path:
    is_folder = os.path.isdir(path)
    if not is_folder and path.suffix != ".gguf":
        raise CheckpointError(f"{path} is a file; give the folder of a model or a model's name.")
    if is_folder and not any(path.glob("*.gguf")):
        _with_config(path)
    if is_folder and is_loadable(path) and quantization is None:
        return _with_config(path)
    origin = Origin(os.path.realpath(path), None, quantization, os.path.realpath(path))
    return _converted(path, origin, how)


def _hub_model(asked: Origin, how: _How) -> Path:
    folder = conversion_folder(asked)
    if is_complete(folder):
        return folder
    repository = repository_of(asked.name)
    if asked.quantization is not None and (peeked := fetch_config(repository, asked.revision)):
        refuse_quantized(peeked, asked.name)
    source = fetch(repository, asked.revision, how.watch, _limit(asked, how))
    if asked.quantization is None and asked.name not in HUB_MODELS and is_loadable(source):
        return _with_config(source)
    origin = Origin(asked.name, asked.revision, asked.quantization, str(source))
    return _converted(source, origin, how)


def _with_config(folder: Path) -> Path:
    if not is_complete(folder):
        raise CheckpointError(f"{folder} has no config.json; give the folder of an MLX model.")
    return folder


def _converted(source: Path, origin: Origin, how: _How) -> Path:
    """Return the converted copy in the cache, making it where it is not there."""
    folder = conversion_folder(origin)
    if is_complete(folder):
        return folder
    if origin.quantization is not None:
        refuse_quantized(source, origin.name)
    return _make(source, folder, origin, how)


def _make(source: Path, folder: Path, origin: Origin, how: _How) -> Path:
    """Convert a model; before the first tensor it must be known to fit the memory."""

    def start(num_bytes: int, num_parameters: int) -> None:
        _require_memory(origin, how.weight_bytes(num_bytes, num_parameters), how)
        how.watch.note(f"Converting {origin.plan}, into {folder}")

    options = TargetOptions(
        quantization=origin.quantization,
        chat_template=chat_template_of(origin.name),
        on_start=start,
    )

    def convert(out: Path) -> None:
        for line in convert_target(source, out, options, how.watch.progress).notes:
            how.watch.note(line)

    require_writable_cache(folder.parent)
    convert_once(folder, origin, convert)
    how.watch.note(f"Converted {origin.label}: {size_text(folder)}")
    return folder


def _require_memory(origin: Origin, weight_bytes: int, how: _How) -> None:
    memory = total_memory_bytes()
    if weight_bytes > memory:
        raise CheckpointError(
            f"The weights of {origin.label} fill {readable_size(weight_bytes)} and this machine "
            f"has {readable_size(memory)} of memory; {_remedy(origin, how)}."
        )


def _limit(asked: Origin, how: _How) -> SizeLimit:
    """Return the most bytes of a repository that can fit; its weights have at most 32 bits."""
    memory, packing = total_memory_bytes(), asked.quantization
    if packing is None:
        return SizeLimit(memory, memory, _remedy(asked, how))
    dtype = compute_dtype(how.dtype)
    bits = packing.bits + 32 / packing.group_size if dtype is None else 8 * dtype.size
    return SizeLimit(int(memory * 32 / bits), memory, _remedy(asked, how))


def _remedy(origin: Origin, how: _How) -> str:
    if origin.quantization is not None:
        return f"choose a smaller model: at {origin.quantization.bits} bits it is too large, too"
    # Multiplied out again, fewer bits would not make it smaller.
    is_as_stored = compute_dtype(how.dtype) is None
    return (
        "add --quantize 4 or choose a smaller model" if is_as_stored else "choose a smaller model"
    )


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise ConfigError(
            f"{name} is no repository of the Hugging Face Hub, so it has no revision "
            f"{revision!r:.80}; leave out --revision."
        )


def _refuse_missing_path(name: str) -> None:
    """Refuse what can only be meant as a path; nothing lies there."""
    if not is_known_name(name) and (_PATH_BEGINNING.match(name) or _FILE_ENDING.search(name)):
        raise CheckpointError(f"There is no file or folder {name!r:.200}; check the path.")


def _unknown(name: str) -> CheckpointError:
    return CheckpointError(
        f"There is no folder and no model {name!r:.200}; give a folder, a Hub repository org/name "
        f"or one of: {', '.join(KNOWN_NAMES)}."
    )
