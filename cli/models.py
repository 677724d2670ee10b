"""``redrafter-mlx models``: what is cached of each model, and its removal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from redrafter_mlx.cli import render
from redrafter_mlx.cli.options import ProgramOptions
from redrafter_mlx.sizes import readable_size

if TYPE_CHECKING:
    from redrafter_mlx.loading.inventory import CachedModel, Conversion


@dataclass(frozen=True, kw_only=True)
class RemovalOptions:
    """What is removed, if anything."""

    remove: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Remove what is cached of this model; drafters of yours stay."
        ),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without a question.")] = False

    def __post_init__(self) -> None:
        """Refuse a yes to nothing."""
        if self.yes and self.remove is None:
            raise typer.BadParameter("it goes with --remove NAME.", param_hint="--yes")


def models(removal: RemovalOptions, program: ProgramOptions) -> None:
    """List the known models and what is cached of them, or remove one from the caches."""
    if removal.remove is None:
        _show_list()
    else:
        _remove(removal.remove, is_sure=removal.yes)


def _show_list() -> None:
    from redrafter_mlx.loading.inventory import list_models
    from redrafter_mlx.loading.known import cache_folder

    entries = list_models()
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        render.line(f"{entry.name:{width}}  {_summary(entry)}")
        for conversion in entry.conversions:
            render.line(f"{'':{width}}  {_conversion_line(conversion)}")
    if not any(entry.num_bytes or entry.conversions for entry in entries):
        render.note(f"Nothing is cached yet; the cache is {cache_folder()}")


def _summary(entry: CachedModel) -> str:
    """Return whether a model is cached, and whether a drafter is at hand."""
    drafter = "with a drafter" if entry.drafter else "no drafter"
    if not entry.num_bytes and not entry.conversions:
        return f"not cached, {drafter}"
    downloaded = (
        f"downloaded {readable_size(entry.downloaded_bytes)}, " if entry.downloaded_bytes else ""
    )
    copies = sum(not conversion.is_leftover for conversion in entry.conversions)
    converted = f"converted {render.counted(copies, 'time')}, " if copies else ""
    if not downloaded and not copies:
        converted = "not cached, "
    return f"{downloaded}{converted}{drafter}"


def _conversion_line(conversion: Conversion) -> str:
    variant = conversion.origin.label.removeprefix(conversion.origin.name).strip(" ,")
    size = readable_size(conversion.num_bytes)
    parts = (size, variant, conversion.remark)
    return f"{', '.join(part for part in parts if part)}: {conversion.folder}"


def _remove(name: str, *, is_sure: bool) -> None:
    from redrafter_mlx.loading.inventory import find_cached, remove

    found = find_cached(name)
    if not is_sure and not _has_terminal():
        raise typer.BadParameter(
            "without a terminal to ask on it needs --yes.", param_hint="--remove"
        )
    for line in _contents(found):
        render.note(line)
    if not is_sure and not render.confirm(f"Remove {readable_size(found.num_bytes)}?"):
        render.note("Nothing was removed")
        return
    remove(found)
    render.line(f"Removed {readable_size(found.num_bytes)} of {found.name}")


def _has_terminal() -> bool:
    return sys.stdin.isatty()


def _contents(found: CachedModel) -> list[str]:
    """Return a line for each thing that goes, and for what stays."""
    from redrafter_mlx.loading.known import repository_of

    lines = [_conversion_line(entry) for entry in found.conversions]
    if found.downloaded_bytes:
        lines.append(
            f"{readable_size(found.downloaded_bytes)}: {repository_of(found.name)} in the Hugging "
            "Face cache, which other programs may use"
        )
    if found.own_drafter:
        lines.append(f"Your drafter stays: {found.own_drafter}")
    return lines
