"""What a chat template writes around the answers of a conversation."""

from __future__ import annotations

from collections.abc import Sequence


def opening_of(text: str) -> str:
    """Return the last word of a rendered prompt and all white space behind it."""
    words = text.split()
    return text[text.rfind(words[-1]) :] if words else text


def with_opening(segment: str, opening: str) -> str:
    """Return a segment with the white space of an opening that ends in the same word.

    Where the words differ (some templates begin a new answer with an empty thought that
    they leave out of past ones) the segment stays as the template writes it.
    """
    written, word = segment.rstrip(), opening.rstrip()
    return written + opening[len(word) :] if written.endswith(word) else segment


def split_at(text: str, marks: Sequence[str]) -> list[str]:
    """Return the parts of a text between marks that follow each other in it."""
    parts = []
    for mark in marks:
        part, _, text = text.partition(mark)
        parts.append(part)
    return [*parts, text]


def interleave(segments: Sequence[str], answers: Sequence[str]) -> str:
    """Return the text of answers and what stands around them."""
    answered = zip(segments, answers, strict=False)
    return "".join(segment + answer for segment, answer in answered) + segments[-1]


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids two sequences share from the first on."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
