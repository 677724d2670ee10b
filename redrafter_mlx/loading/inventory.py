"""What the caches hold of each model, and its removal."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.folders import is_leftover, partial_name
from redrafter_mlx.loading.converted import (
    FOLDER_NAME,
    Origin,
    conversion_folder,
    is_complete,
    models_folder,
    read_origin,
    size_of,
)
from redrafter_mlx.loading.download import downloads_folder
from redrafter_mlx.loading.hub import find_drafter
from redrafter_mlx.loading.known import (
    KNOWN_NAMES,
    cache_folder,
    is_repository,
    refuse_file,
    repository_of,
    short_name,
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model in the user's cache.

    Attributes:
        folder: Where it lies.
        origin: What it was made from.
        num_bytes: Its size.
        is_leftover: Whether its making was interrupted, so that it is no model.
        remark: Why it is of no use any more, empty where it is.
    """

    folder: Path
    origin: Origin
    num_bytes: int
    is_leftover: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """What the caches hold of a model.

    Attributes:
        name: A known name, a repository, or the path of what was converted.
        conversions: Its converted copies, and what is left of interrupted ones.
        downloaded_bytes: What the Hugging Face cache holds of its repository.
        drafter: The drafter that goes with it, ``None`` where there is none.
        own_drafter: The user's own in the cache, which is never removed.
    """

    name: str
    conversions: tuple[Conversion, ...]
    downloaded_bytes: int
    drafter: Path | None
    own_drafter: Path | None = None

    @property
    def num_bytes(self) -> int:
        """All that a removal frees."""
        return self.downloaded_bytes + sum(entry.num_bytes for entry in self.conversions)


def list_models() -> list[CachedModel]:
    """Return the known models, then the others of which something is cached."""
    conversions = _conversions()
    names = dict.fromkeys(KNOWN_NAMES)
    names |= dict.fromkeys(sorted({entry.origin.name for entry in conversions}))
    downloads = _downloaded_bytes()
    noted = sorted(name for name in _noted_repositories() if name in downloads)
    names |= dict.fromkeys(short_name(name) for name in noted)
    return [_cached(name, conversions, downloads) for name in names]


def find_cached(name: str) -> CachedModel:
    """Return what the caches hold of one model.

    Args:
        name: A known name, a repository, the path of a model that was converted, or the
            folder of a conversion.

    Raises:
        CheckpointError: Nothing of it is cached.
    """
    conversions = _conversions()
    for entry in conversions:
        if name in (entry.folder.name, str(entry.folder)):
            return CachedModel(entry.folder.name, (entry,), 0, None)
    wanted = short_name(name)
    if os.path.exists(os.path.expanduser(name)) and wanted not in KNOWN_NAMES:
        wanted = os.path.realpath(os.path.expanduser(name))
    found = _cached(wanted, conversions, _downloaded_bytes())
    if not found.num_bytes and not found.conversions:
        kept = f" but your drafter {found.own_drafter}, which stays" if found.own_drafter else ""
        raise CheckpointError(
            f"The cache holds nothing of {name}{kept}; redrafter-mlx models lists what it holds."
        )
    return found


def remove(model: CachedModel) -> None:
    """Remove a model's conversions, and its repository from the Hugging Face cache.

    Raises:
        CheckpointError: Something cannot be removed.
    """
    for entry in model.conversions:
        _refuse_drafter(entry.folder)
    revisions = _revisions(repository_of(model.name)) if model.downloaded_bytes else []
    for revision in revisions:
        _refuse_drafter(revision.snapshot_path)
    try:
        for entry in model.conversions:
            _remove_folder(entry.folder)
        if revisions:
            _forget_downloads(repository_of(model.name))
            cache = _scan()
            cache.delete_revisions(*(revision.commit_hash for revision in revisions)).execute()
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or model.name} cannot be removed ({error.strerror or error}); check "
            "its permissions."
        ) from error


def _remove_folder(folder: Path) -> None:
    """Take its name away first: interrupted, what is left is a leftover and no model."""
    partial = folder if is_leftover(folder) else folder.rename(partial_name(folder))
    shutil.rmtree(partial)


def _forget_downloads(repository: str) -> None:
    # Joined to a folder, an absolute path would replace it.
    assert is_repository(repository)
    shutil.rmtree(downloads_folder() / repository, ignore_errors=True)


def _refuse_drafter(folder: Path) -> None:
    """Refuse to remove a folder into which the user put a drafter; the Hub's are links."""
    drafter = folder / "drafter"
    if any(path.is_file() and not path.is_symlink() for path in drafter.glob("*")):
        raise CheckpointError(f"{drafter} is a drafter that may be yours; move it away first.")


def _conversions() -> list[Conversion]:
    refuse_file(cache_folder())
    folders = sorted(models_folder().iterdir()) if models_folder().is_dir() else []
    return [
        _conversion(folder)
        for folder in folders
        if not folder.is_symlink() and (_is_whole(folder) or _is_left(folder))
    ]


def _conversion(folder: Path) -> Conversion:
    origin, is_left = _origin_of(folder), is_leftover(folder)
    if is_left:
        remark = "left over from an interrupted conversion"
    elif not os.path.isabs(origin.name):
        remark = ""
    elif not os.path.exists(origin.name):
        remark = f"{origin.name} is gone"
    else:
        is_current = conversion_folder(origin) == folder
        remark = "" if is_current else f"of an older state of {origin.name}"
    return Conversion(folder, origin, size_of(folder), is_left, remark)


def _is_whole(folder: Path) -> bool:
    return FOLDER_NAME.fullmatch(folder.name) is not None and is_complete(folder)


def _is_left(folder: Path) -> bool:
    named = folder.name.rpartition(".partial-")[0]
    return FOLDER_NAME.fullmatch(named) is not None and is_leftover(folder)


def _origin_of(folder: Path) -> Origin:
    """Return what a conversion tells; an old or an interrupted one tells by its name alone."""
    key = folder.name.rpartition("-v")[0]
    return read_origin(folder) or Origin(re.split(r"[@+]", key)[0].replace("--", "/"))


def _noted_repositories() -> Iterable[str]:
    folder = downloads_folder()
    return {str(path.parent.relative_to(folder)) for path in folder.glob("*/*/*.json")}


def _cached(
    name: str, conversions: Iterable[Conversion], downloads: Mapping[str, int]
) -> CachedModel:
    own = tuple(entry for entry in conversions if entry.origin.name == name)
    whole = [entry.folder for entry in own if not entry.is_leftover]
    folder = whole[0] if whole else models_folder() / "none"
    return CachedModel(
        name=name,
        conversions=own,
        downloaded_bytes=downloads.get(repository_of(name), 0),
        drafter=find_drafter(name, folder),
        own_drafter=_own_drafter(name),
    )


def _own_drafter(name: str) -> Path | None:
    folder = cache_folder() / "drafters"
    places = [] if os.path.isabs(name) else [folder / name, folder / repository_of(name)]
    return next((place for place in places if place.is_dir()), None)


def _downloaded_bytes() -> dict[str, int]:
    """Return the bytes that the Hugging Face cache holds of each repository of a model."""
    return {entry.repo_id: entry.size_on_disk for entry in _repositories()}


def _revisions(repository: str) -> list[Any]:
    """Return huggingface_hub's entry of each revision that its cache holds."""
    found = [entry for entry in _repositories() if entry.repo_id == repository]
    return [revision for entry in found for revision in entry.revisions]


def _repositories() -> list[Any]:
    """Return huggingface_hub's entry of each repository that this program can load."""
    from huggingface_hub import CacheNotFound

    try:
        found = _scan().repos
    except CacheNotFound:
        return []
    return [entry for entry in found if entry.repo_type == "model" and is_repository(entry.repo_id)]


def _scan() -> Any:
    """Return huggingface_hub's view of its cache."""
    from huggingface_hub import constants, scan_cache_dir

    return scan_cache_dir(constants.HF_HUB_CACHE)
