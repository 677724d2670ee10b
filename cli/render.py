"""Everything that is shown: answers and results on stdout, all else on stderr.

No text of a model or a user is read as markup, and none of its control characters reaches
a terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from redrafter_mlx import __version__
from redrafter_mlx.cli.wrap import WordWrapper

if TYPE_CHECKING:
    from rich.console import Console

    from redrafter_mlx.decoding.stats import DecodeStats

# C0 but the tab and the new line, DEL, and C1: an escape sequence needs one of them.
CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


# How a stats line calls an answer that --max-tokens or the end of the context ended.
CUT = "cut short"


class AnswerWriter:
    """Writes an answer to stdout, piece by piece; its block ends the answer's last line.

    Into a pipe or a file go the very characters; for a terminal, control characters are
    left out and lines are broken between words. An error before the first piece leaves
    stdout empty.
    """

    def __init__(self) -> None:
        """Start an answer."""
        self._last = ""
        self._wrapper: WordWrapper | None = None
        if sys.stdout.isatty():
            self._wrapper = WordWrapper(shutil.get_terminal_size().columns)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Show what is held back and end the last line where the text has not."""
        if self._wrapper:
            self._show(self._wrapper.finish())
        if self._last != "\n" and (self._last or kind is None):
            _write_out("\n")

    def write(self, text: str) -> None:
        """Show a piece at once."""
        self._show(self._wrapper.push(without_controls(text)) if self._wrapper else text)

    def _show(self, text: str) -> None:
        if text:
            self._last = text[-1]
            _write_out(text)


def without_controls(text: str) -> str:
    """Return the text without control characters, tabs and new lines excepted."""
    return text.translate(CONTROLS)


def one_line(text: str) -> str:
    """Return the text as one line that a terminal shows as it is."""
    return without_controls(" ".join(text.split()))


def line(text: str) -> None:
    """Show a line on stdout."""
    _write_out(without_controls(text) + "\n")


def json_object(values: Mapping[str, Any]) -> None:
    """Show one JSON object on one line of stdout, in ASCII whatever the locale."""
    _write_out(json.dumps(values, allow_nan=False) + "\n")


def version() -> None:
    """Show the program's version."""
    line(f"redrafter-mlx {__version__}")


def note(text: str, where: Console | None = None) -> None:
    """Show a quiet line (or a quiet block) on stderr, or on a console that shows a bar."""
    from rich.text import Text

    (where or console()).print(Text(without_controls(text), style="dim"))


def error(message: str) -> None:
    """Show what went wrong, in one line on stderr."""
    sys.stderr.write(one_line(f"redrafter-mlx: {message}") + "\n")


def traceback(failure: Exception) -> None:
    """Show where an error comes from, on stderr."""
    from traceback import format_exception

    sys.stderr.write("".join(format_exception(failure)))


def table(rows: Mapping[str, Mapping[str, str]]) -> None:
    """Show a table on stderr: a name and its values a row, the same columns in each."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False)
    shown.add_column("")
    for column in next(iter(rows.values())):
        shown.add_column(column, justify="right")
    for name, values in rows.items():
        shown.add_row(*(Text(without_controls(cell)) for cell in (name, *values.values())))
    console().print(shown)


def stats_line(stats: DecodeStats, ending: str | None = None) -> None:
    """Show an answer's figures in one quiet line, and why it ended where it was cut."""
    speeds = (
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"{stats.tokens_per_round:.2f} tokens/round",
    )
    _stats_line(stats, speeds, ending)


def length_line(stats: DecodeStats, ending: str | None = None) -> None:
    """Show the same without the speeds, where those of other runs follow."""
    _stats_line(stats, (), ending)


def _stats_line(stats: DecodeStats, speeds: Sequence[str], ending: str | None) -> None:
    count, waiting = counted(stats.emitted_tokens, "token"), f"{stats.prefill_seconds:.2f} s"
    parts = (count, *speeds, f"first after {waiting}", *([ending] if ending else []))
    note(" · ".join(parts))


def stats_details(stats: DecodeStats) -> None:
    """Show what was accepted by depth and by source, and the parts of a round."""
    acceptance(stats)
    round_parts(stats)


def acceptance(stats: DecodeStats) -> None:
    """Show what was accepted by depth and by source, and how many rounds there were."""
    shares = " ".join(f"{share:.2f}" for share in stats.acceptance_by_depth)
    note(f"accepted by depth: {shares or 'nothing was drafted'}")
    sources = ", ".join(f"{name} {count}" for name, count in stats.accepted_by_source.items())
    note(f"accepted by source: {sources or 'none'}")
    note(
        f"{counted(stats.num_rounds, 'round')}, {stats.num_plain_steps} of them plain, "
        f"{stats.verified_rows} rows, {stats.accepted_per_round:.2f} guesses kept a round"
    )


def round_parts(stats: DecodeStats) -> None:
    """Show where the time of a round went, or why nobody knows."""
    parts = ", ".join(f"{name} {value:.1f}" for name, value in stats.part_milliseconds.items())
    if parts:
        note(f"ms of a round, over {stats.num_timed_rounds}: {parts}")
    else:
        note("ms of a round: none was timed, since nothing was drafted")


def counted(number: int, noun: str) -> str:
    """Return "1 token", "2 tokens"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def confirm(question: str) -> bool:
    """Ask on stderr; return whether the answer on stdin is yes."""
    write_err(f"{one_line(question)} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def console() -> Console:
    """Return rich's view of stderr."""
    from rich.console import Console

    is_plain = bool(os.environ.get("NO_COLOR")) or not sys.stderr.isatty()
    return Console(
        stderr=True,
        force_terminal=False if is_plain else None,
        color_system=None if is_plain else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def _write_out(text: str) -> None:
    # A character that the locale's encoding lacks must not end the program.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def write_err(text: str) -> None:
    """Show a text on stderr at once."""
    sys.stderr.write(text)
    sys.stderr.flush()
