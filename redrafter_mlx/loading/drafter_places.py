"""Where a model's drafter may lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from redrafter_mlx.config import DrafterConfig, TargetIdentity
from redrafter_mlx.errors import ReDrafterError
from redrafter_mlx.loading.converted import is_complete, read_origin
from redrafter_mlx.loading.known import (
    cache_folder,
    is_known_name,
    is_repository,
    repository_of,
    short_name,
)
from redrafter_mlx.loading.target import fingerprint, read_target
from redrafter_mlx.weights import read_json

_PACKAGED_DRAFTERS = Path(__file__).resolve().parents[1] / "drafters"


def find_drafter(name: str, folder: Path) -> Path | None:
    """Return the folder of a model's drafter, ``None`` where there is none.

    Args:
        name: What the model was asked for by.
        folder: The model's folder; a ``drafter`` folder inside it comes first, or inside
            what it was converted from, then the user's cache, then what the package brings:
            by the model's name, and where none has it by the model's fingerprint.
    """
    places = [folder / "drafter"]
    origin = read_origin(folder)
    if origin and origin.source:
        places.append(Path(origin.source) / "drafter")
    if is_known_name(name) or is_repository(name):
        for alias in dict.fromkeys((short_name(name), name, repository_of(name))):
            places += [cache_folder() / "drafters" / alias, _PACKAGED_DRAFTERS / alias]
    named = next((place for place in places if is_complete(place)), None)
    return named or _made_for(folder)


def _made_for(folder: Path) -> Path | None:
    """Return the drafter that was made for the very model in a folder, whatever its name."""
    own = None
    with suppress(ReDrafterError):
        settings = read_json(folder / "config.json")
        sizes = (settings.get("hidden_size"), settings.get("vocab_size"))
        for place, made_for in _drafters():
            if (made_for.hidden_size, made_for.vocab_size) == sizes:
                own = own or _fingerprint(folder)
                if made_for.fingerprint == own:
                    return place
    return None


def _fingerprint(folder: Path) -> str | None:
    target = read_target(folder, "stored")
    norms = [tensor for name, tensor in target.stored.items() if name.endswith("norm.weight")]
    # A damaged file may claim more than the memory holds; loading refuses it.
    is_sound = all(tensor.size <= target.config.hidden_size for tensor in norms)
    return fingerprint(target.stored) if is_sound else None


def _drafters() -> Iterator[tuple[Path, TargetIdentity]]:
    """Yield every drafter that tells what it was made for, the user's own first."""
    for root in (cache_folder() / "drafters", _PACKAGED_DRAFTERS):
        for file in sorted((*root.glob("*/config.json"), *root.glob("*/*/config.json"))):
            with suppress(ReDrafterError):
                made_for = DrafterConfig.from_dict(read_json(file)).target
                if made_for is not None:
                    yield file.parent, made_for
