"""Words that a terminal would cut at its edge, moved to the next line as they come."""

from __future__ import annotations

import unicodedata

ZERO_WIDTH_JOINER = "\N{ZERO WIDTH JOINER}"
TAB_CELLS = 8
FENCES = ("```", "~~~")
# Punctuation that opens something or closes it.
OPENING, CLOSING = ("Pi", "Ps"), ("Pe", "Pf", "Po")


class WordWrapper:
    """Breaks lines between words, and between wide characters, at a terminal's width.

    Only white space between words changes. Code stays as it is: what stands between fences,
    and lines that begin with white space. A word is held back until it is whole.
    """

    def __init__(self, width: int) -> None:
        """Begin a text at the left edge; ``width`` counts cells."""
        self._width = max(width, 1)
        self._column = 0
        self._gap = ""  # white space that a line break would replace
        self._word = ""
        self._is_too_long = False  # a word's beginning was shown before its end came
        self._line = ""  # the text's own line so far, to tell code
        self._fence: str | None = None  # what the code began with

    def push(self, text: str) -> str:
        """Take a piece; return what can be shown."""
        return "".join(self._take(letter) for letter in text)

    def finish(self) -> str:
        """Return what was held back."""
        return self._released() + self._spaces()

    def _take(self, letter: str) -> str:
        if letter == "\n":
            return self._end_line()
        self._line += letter
        if self._is_code():
            self._column += _cells(letter)
            return letter
        if letter in " \t":
            shown = self._released()
            self._gap += letter
            return shown
        shown = self._released() if _may_break(self._word, letter) else ""
        self._word += letter
        if not self._is_too_long and _cells(self._word) <= self._width:
            return shown
        shown += self._released()
        self._is_too_long = True
        return shown

    def _is_code(self) -> bool:
        return self._fence is not None or self._line[0] in " \t"

    def _end_line(self) -> str:
        shown = self._released() + self._spaces()
        self._fence = _fence_after(self._line.strip(), self._fence)
        self._column, self._line = 0, ""
        return shown + "\n"

    def _released(self) -> str:
        """Return the held word behind its gap, or on a line of its own if it does not fit."""
        word, self._word = self._word, ""
        is_continued, self._is_too_long = self._is_too_long, False
        if not word:
            return ""
        gap, self._gap = self._gap, ""
        start = self._end_of(gap)
        if start and start + _cells(word) > self._width and not is_continued:
            gap, start = "\n", 0
        # The terminal itself breaks a word that is longer than a line.
        self._column = (start + _cells(word) - 1) % self._width + 1
        return gap + word

    def _spaces(self) -> str:
        gap, self._gap = self._gap, ""
        return gap if self._end_of(gap) <= self._width else ""

    def _end_of(self, gap: str) -> int:
        """Return the column behind white space."""
        column = self._column
        for letter in gap:
            column += TAB_CELLS - column % TAB_CELLS if letter == "\t" else 1
        return column


def _fence_after(line: str, fence: str | None) -> str | None:
    """Return the fence of the code that goes on behind a line, ``None`` where there is none."""
    mark, rest = line[:3], line.lstrip("`~")
    if fence is None:
        return mark if mark in FENCES and "`" not in rest else None
    return None if mark == fence and not rest else fence


def _may_break(word: str, letter: str) -> bool:
    """Whether a line may end between a word and a letter that is no white space."""
    if not word or word.endswith(ZERO_WIDTH_JOINER) or _cells(letter) == 0:
        return False
    if unicodedata.category(word[-1]) in OPENING or unicodedata.category(letter) in CLOSING:
        return False
    return _cells(letter) == 2 or _cells(word) - _cells(word[:-1]) == 2


def _cells(text: str) -> int:
    """Return how many columns a terminal shows a text in."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
