"""Models that had to be converted, each once, in the user's cache.

A conversion is a folder ``models/KEY-vN``: KEY says of what and how, N is the converter's
version. ``origin.json`` in it tells where it comes from.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.target_options import quantized_already
from redrafter_mlx.errors import CheckpointError, ReDrafterError
from redrafter_mlx.file_errors import refusing, unreadable
from redrafter_mlx.loading.known import cache_folder
from redrafter_mlx.sizes import readable_size
from redrafter_mlx.weights import read_json, write_json

# Raise it when a folder converted before is no longer what would be written now.
CONVERTER_VERSION = 1
ORIGIN_FILE = "origin.json"
FOLDER_NAME = re.compile(r".+-v\d+")


@dataclass(frozen=True, slots=True)
class Origin:
    """What a model was converted from, and how.

    Attributes:
        name: A known name, a repository, or the resolved path of a file or folder.
        revision: The repository's, ``None`` for the newest.
        quantization: How the weights were quantised, if they were.
        source: Where the files lay.
    """

    name: str
    revision: str | None = None
    quantization: Quantization | None = None
    source: str | None = None

    @property
    def label(self) -> str:
        """The model and its variant as a user reads them."""
        revision = f" at {self.revision}" if self.revision else ""
        packing = self.quantization
        quantized = f", {packing.bits} bits in groups of {packing.group_size}" if packing else ""
        return f"{self.name}{revision}{quantized}"

    @property
    def plan(self) -> str:
        """What is made of the model, to be put behind a verb."""
        packing = self.quantization
        packed = f" to {packing.bits} bits (groups of {packing.group_size})," if packing else ""
        return f"{replace(self, quantization=None).label}{packed} once"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        packing = self.quantization
        return {
            "name": self.name,
            "revision": self.revision,
            "quantization": [packing.bits, packing.group_size] if packing else None,
            "source": self.source,
        }


def models_folder() -> Path:
    """Return the folder of all conversions."""
    return cache_folder() / "models"


def is_conversion(folder: Path) -> bool:
    """Whether the program made this folder itself, so that it can be made again."""
    return folder.parent == models_folder() and FOLDER_NAME.fullmatch(folder.name) is not None


def conversion_folder(origin: Origin) -> Path:
    """Return where the conversion of a model lies, or would lie."""
    name = origin.name
    key = _path_key(Path(name)) if os.path.isabs(name) else name.replace("/", "--")
    if origin.revision:
        key += f"@{quote(origin.revision, safe='')}"
    if origin.quantization:
        # Like the "@", a "+" is in no name and no quoted revision: no other model's key ends so.
        key += f"+q{origin.quantization.bits}g{origin.quantization.group_size}"
    return models_folder() / f"{key}-v{CONVERTER_VERSION}"


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a model; the program's own appear whole or not at all."""
    return os.path.isfile(folder / "config.json")


def read_origin(folder: Path) -> Origin | None:
    """Return where a conversion comes from, ``None`` where it does not say."""
    with suppress(ReDrafterError, KeyError, TypeError):
        noted = read_json(folder / ORIGIN_FILE)
        packing = noted["quantization"]
        return Origin(
            name=str(noted["name"]),
            revision=noted["revision"],
            quantization=Quantization(*packing) if packing else None,
            source=noted["source"],
        )
    return None


def convert_once(folder: Path, origin: Origin, convert: Callable[[Path], object]) -> None:
    """Have a conversion made; of two programs that convert at once one is left over.

    Args:
        folder: Where it shall lie.
        origin: Noted in it.
        convert: Makes the folder, whole or not at all.
    """
    try:
        convert(folder)
    except CheckpointError as error:
        if is_complete(folder):
            return
        if folder.exists():
            raise CheckpointError(
                f"{folder} has no config.json; remove it and run again."
            ) from error
        raise
    with suppress(ReDrafterError):
        write_json(folder / ORIGIN_FILE, origin.to_dict())


def refuse_quantized(folder: Path, name: str) -> None:
    """Refuse to quantise weights that are quantised already.

    Raises:
        ConfigError: config.json says that they are.
    """
    if not is_complete(folder):
        return
    settings = read_json(folder / "config.json")
    if settings.get("quantization") or settings.get("quantization_config"):
        raise quantized_already(name)


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def size_text(folder: Path) -> str:
    """Return a folder's size as a user reads it."""
    return readable_size(size_of(folder))


def _path_key(path: Path) -> str:
    """Return a key that changes when the path, or a file's size or time, changes."""
    digest = hashlib.sha256(os.fsencode(path))
    with refusing(unreadable, path):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        with suppress(OSError):
            status = file.stat()
            if file.is_file():
                entry = (file.name, status.st_size, status.st_mtime_ns)
                digest.update(repr(entry).encode("utf-8", "surrogateescape"))
    name = re.sub(r"[^\w.-]+", "_", path.name, flags=re.ASCII)[:60] or "model"
    return f"{name}-{digest.hexdigest()[:12]}"
