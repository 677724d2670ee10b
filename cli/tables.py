"""Tables of results, on stdout."""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from redrafter_mlx.cli import render

if TYPE_CHECKING:
    from rich.console import RenderableType


def show_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, num_names: int = 1) -> None:
    """Show a table no wider than the terminal, 80 columns where there is none.

    Args:
        head: A few words over each column; a new line in them stays.
        rows: As long as the head.
        num_names: Columns from the left that hold words, which may be broken over lines; the
            others hold figures.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=0)
    for place, name in enumerate(head):
        is_figure = place >= num_names
        table.add_column(
            _apart(place, name), justify="right" if is_figure else "left", no_wrap=is_figure
        )
    for row in rows:
        table.add_row(*(_apart(place, render.one_line(cell)) for place, cell in enumerate(row)))
    text = io.StringIO()
    width = shutil.get_terminal_size().columns
    Console(file=text, width=width, force_terminal=False, color_system=None).print(table)
    for line in text.getvalue().splitlines():
        render.line(line.rstrip())


def _apart(place: int, text: str) -> RenderableType:
    """Return a cell two spaces from the one before; Rich's own padding would widen the last."""
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, overflow="fold"), (0, 0, 0, 2 if place else 0))


def show_text(text: str) -> None:
    """Show a paragraph, its lines broken between words; after "- " they are indented."""
    width = shutil.get_terminal_size().columns
    indent = "  " if text.startswith("- ") else ""
    # A number stays on the line of its percent sign.
    joined = render.one_line(text).replace(" %", "\xa0%")
    for line in textwrap.wrap(joined, width, subsequent_indent=indent):
        render.line(line.replace("\xa0", " "))
