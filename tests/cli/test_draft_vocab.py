"""The most used tokens of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redrafter_mlx.cli.draft_vocab import most_used_tokens
from redrafter_mlx.errors import CheckpointError, ConfigError


class LetterTokenizer:
    """Gives each character its code."""

    bos_token = None

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(letter) for letter in text]


def write_npz(path: Path, **changes: Any) -> Path:
    """Two sequences: prompt 7 7 7 with answer 5 2, prompt 8 with answer 5 6 6 2."""
    arrays = {
        "tokens": np.array([7, 7, 7, 5, 2, 8, 5, 6, 6, 2], np.uint16),
        "lengths": np.array([5, 5], np.int32),
        "prompt_lengths": np.array([3, 1], np.int32),
    }
    np.savez(path, **{**arrays, **changes})
    return path


@pytest.mark.parametrize(
    ("count", "always", "ids"),
    [
        (3, (), (2, 5, 6)),
        (2, (), (2, 5)),
        (1, (), (2,)),
        (2, (9,), (2, 9)),
        (4, (9,), (2, 5, 6, 9)),
        (1, (9,), (9,)),
        (2, (6,), (2, 6)),
    ],
)
def test_answers_of_an_npz_are_counted(
    tmp_path: Path, count: int, always: tuple[int, ...], ids: tuple[int, ...]
) -> None:
    """5, 6 and 2 are used twice each; the prompts' 7 and 8 do not count."""
    corpus = write_npz(tmp_path / "c.npz")
    assert most_used_tokens(corpus, count, None, frozenset(always)) == ids


def test_text_is_counted(tmp_path: Path) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_text("abca\nca", encoding="utf-8")
    assert most_used_tokens(corpus, 2, LetterTokenizer()) == (ord("a"), ord("c"))
    assert most_used_tokens(corpus, 3, LetterTokenizer()) == (ord("\n"), ord("a"), ord("c"))
    assert most_used_tokens(corpus, 2, LetterTokenizer(), {ord("b")}) == (ord("a"), ord("b"))


@pytest.mark.parametrize(("count", "always"), [(4, ()), (0, ()), (1, (2, 9)), (5, (9,))])
def test_count_out_of_range(tmp_path: Path, count: int, always: tuple[int, ...]) -> None:
    corpus = write_npz(tmp_path / "c.npz")
    with pytest.raises(ConfigError, match=f"--draft-vocab is {count}, .* choose a value from"):
        most_used_tokens(corpus, count, None, frozenset(always))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"lengths": np.array([5, 6])}, "do not go together"),
        ({"lengths": np.array([10])}, "do not go together"),
        ({"prompt_lengths": np.array([6, 1])}, "do not go together"),
        ({"prompt_lengths": np.array([-1, 1])}, "do not go together"),
        ({"lengths": np.array([12, -2])}, "do not go together"),
        ({"tokens": np.ones(10)}, "tokens in .* must be a list of integers"),
        ({"tokens": np.ones((5, 2), int)}, "tokens in .* must be a list of integers"),
        ({"tokens": np.array([{}] * 10)}, "is not an .npz with tokens, lengths, prompt_lengths"),
    ],
)
def test_broken_npz(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    corpus = write_npz(tmp_path / "c.npz", **changes)
    with pytest.raises(CheckpointError, match=complaint):
        most_used_tokens(corpus, 1, None)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no archive"])
def test_what_is_no_npz(tmp_path: Path, content: bytes) -> None:
    corpus = tmp_path / "c.npz"
    corpus.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is not an \.npz"):
        most_used_tokens(corpus, 1, None)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_bytes(b"a\xff")
    with pytest.raises(CheckpointError, match="not a text in UTF-8"):
        most_used_tokens(corpus, 1, LetterTokenizer())
