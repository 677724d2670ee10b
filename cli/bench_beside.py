"""One's own figures beside what Apple published, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrafter_mlx.cli.tables import show_table, show_text

if TYPE_CHECKING:
    from redrafter_mlx.bench.beside import Beside, Figures
    from redrafter_mlx.bench.results import BenchResults

SOURCES = ("here", "Apple", "paper")
# Field, words over its columns that keep the table within 80, digits.
MEASURES = (
    ("tokens_per_second", "\ntok/s", 1),
    ("times_plain", "times\nplain", 2),
    ("tokens_per_round", "tok/\nround", 2),
)


def show_beside(results: BenchResults) -> None:
    """Show one's own figures beside Apple's and the paper's; nothing where none were published."""
    from redrafter_mlx.bench.beside import beside_notes, beside_published

    found = beside_published(results)
    if not found:
        return
    heads = [f"{words}\n{source}" for _, words, _ in MEASURES for source in SOURCES]
    show_table(["\n\ndecoding", *heads], map(_row, found))
    for note in beside_notes(results):
        show_text(note)


def _row(one: Beside) -> list[str]:
    cells = [_cell(who, name, digits) for name, _, digits in MEASURES for who in one.sources]
    return [one.name, *cells]


def _cell(figures: Figures | None, name: str, digits: int) -> str:
    value = None if figures is None else getattr(figures, name)
    return "-" if value is None else f"{value:.{digits}f}"
