"""Repositories of the Hugging Face Hub, by huggingface_hub and in its cache.

After a download this package notes the commit and the files beside its own conversions: a
model that is noted and still there is used without asking the network.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from redrafter_mlx.errors import CheckpointError, ReDrafterError
from redrafter_mlx.loading.hub_errors import explain, is_out_of_reach
from redrafter_mlx.loading.hub_files import needed_files
from redrafter_mlx.loading.known import cache_folder
from redrafter_mlx.loading.watch import SILENT, Watch
from redrafter_mlx.sizes import readable_size
from redrafter_mlx.weights import read_index, read_json, write_json


@dataclass(frozen=True, slots=True)
class _Listing:
    """What a repository holds of what is needed.

    Attributes:
        sizes: Bytes of each needed file, ``None`` where the Hub does not tell.
    """

    sizes: dict[str, int | None]

    @property
    def num_bytes(self) -> int:
        """All bytes, as far as they are told."""
        return sum(size or 0 for size in self.sizes.values())


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """How large a repository may be.

    Attributes:
        max_bytes: More than this is not downloaded.
        memory_bytes: The machine's memory, for which it would be too large.
        remedy: What to do then.
    """

    max_bytes: int
    memory_bytes: int
    remedy: str


def fetch(
    repository: str,
    revision: str | None = None,
    watch: Watch = SILENT,
    limit: SizeLimit | None = None,
) -> Path:
    """Return the folder of a repository's needed files, downloading what is missing.

    What was downloaded once is used from then on, whatever the repository holds by now.

    Args:
        repository: ``org/name``.
        revision: Branch, tag or commit.
        watch: Is told of a download.
        limit: Of the files' size.

    Raises:
        CheckpointError: The repository, or a file of it, cannot be got, or it is too large.
    """
    record = record_file(repository, revision)
    folder = _downloaded(repository, record)
    if folder is not None:
        return folder
    try:
        return _download(repository, revision, record, watch, limit)
    except ReDrafterError:
        raise
    except Exception as error:  # whatever fails on the way is the user's to know in one line
        raise explain(repository, revision, error) from error


def fetch_config(repository: str, revision: str | None) -> Path | None:
    """Return a folder with the repository's config.json alone, ``None`` if it cannot be got."""
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    folder = _downloaded(repository, record_file(repository, revision))
    if folder is not None:
        return folder
    place: object = None
    try:
        HfApi().model_info(repository, revision=revision)  # fails at once, a download tries again
        with quiet_hub():
            place = hf_hub_download(repository, "config.json", revision=revision)
    except Exception:  # why is told when the rest is fetched
        with suppress(Exception):
            place = try_to_load_from_cache(repository, "config.json", revision=revision)
    return Path(place).parent if isinstance(place, str) else None


def record_file(repository: str, revision: str | None) -> Path:
    """Return the file in which a complete download is noted."""
    return downloads_folder() / repository / f"{quote(revision or 'main', safe='')}.json"


def downloads_folder() -> Path:
    """Return the folder of the notes on complete downloads."""
    return cache_folder() / "downloads"


def _downloaded(repository: str, record: Path) -> Path | None:
    """Return the folder of a download that is noted and complete, if there is one."""
    if not record.is_file():
        return None
    from huggingface_hub import try_to_load_from_cache

    with suppress(ReDrafterError, KeyError, TypeError, ValueError):
        noted = read_json(record)
        places: list[str] = []
        for name in noted["files"]:
            place = try_to_load_from_cache(repository, name, revision=noted["commit"])
            if not isinstance(place, str):
                return None
            places.append(place)
        return Path(places[0]).parents[noted["files"][0].count("/")] if places else None
    return None


def _download(
    repository: str, revision: str | None, record: Path, watch: Watch, limit: SizeLimit | None
) -> Path:
    from huggingface_hub import snapshot_download

    try:
        listing = _list(repository, revision)
    except Exception as error:
        # Without a network what another program downloaded serves, too.
        folder = _local(repository, revision) if is_out_of_reach(error) else None
        if folder is None:
            raise
        return folder
    if limit is not None and listing.num_bytes > limit.max_bytes:
        raise CheckpointError(
            f"{repository} is {readable_size(listing.num_bytes)} and this machine has "
            f"{readable_size(limit.memory_bytes)} of memory; {limit.remedy}."
        )
    watch.note(
        f"Downloading {repository}: {len(listing.sizes)} files, {readable_size(listing.num_bytes)}"
    )
    patterns = [glob.escape(name) for name in listing.sizes]
    with quiet_hub():
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    _check_sizes(folder, listing.sizes)
    with suppress(OSError, ReDrafterError):  # without the note the next start asks the Hub again
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, {"commit": folder.name, "files": list(listing.sizes)})
    return folder


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep huggingface_hub's bars to terminals and its warnings, whose end is told, to itself.

    Its own environment variables go before.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars, logging

    hides_bars = not sys.stderr.isatty() and constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    verbosity = logging.get_verbosity()
    if hides_bars:
        disable_progress_bars()
    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if hides_bars:
            enable_progress_bars()


def _list(repository: str, revision: str | None) -> _Listing:
    from huggingface_hub import HfApi, hf_hub_download

    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    sizes = {entry.rfilename: entry.size for entry in info.siblings or ()}

    def shards_of(index: str) -> Iterable[str]:
        with quiet_hub():
            place = Path(hf_hub_download(repository, index, revision=info.sha))
        return read_index(place.parent, index).values()

    needed = needed_files(sizes, repository, shards_of)
    for name in needed:
        if name not in sizes:
            raise CheckpointError(f"{repository} lacks {name}; choose another repository.")
    return _Listing({name: sizes[name] for name in needed})


def _local(repository: str, revision: str | None) -> Path | None:
    """Return what the Hub's cache holds of a repository, if that is enough to load it."""
    from huggingface_hub import try_to_load_from_cache

    place = try_to_load_from_cache(repository, "config.json", revision=revision)
    if not isinstance(place, str):
        return None
    folder = Path(place).parent
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    try:
        files = needed_files(names, repository, lambda index: read_index(folder, index).values())
    except CheckpointError:  # it may have weights that nobody has downloaded
        return None
    _check_all_there(folder, files)
    return folder


def _check_sizes(folder: Path, sizes: Mapping[str, int | None]) -> None:
    """Check what came against the listing; a wrong file goes, or it would be taken for good."""
    _check_all_there(folder, list(sizes))
    for name, size in sizes.items():
        file = folder / name
        num_bytes = file.stat().st_size
        if size is not None and num_bytes != size:
            file.resolve().unlink()
            file.unlink(missing_ok=True)
            raise CheckpointError(
                f"{name} came with {num_bytes} bytes and not {size}; run again, the rest is kept."
            )


def _check_all_there(folder: Path, files: Sequence[str]) -> None:
    for name in files:
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{name} is not in {folder}: the download is incomplete; run again with a network."
            )
