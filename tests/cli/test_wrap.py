"""Lines broken between words as they come."""

from __future__ import annotations

import random
import re

import pytest

from redrafter_mlx.cli.wrap import WordWrapper

WORDS = [
    *("a", "It", "word", "longer-word,", "naïve", "é", "https://x.test/very/long/address"),
    *("日本語です", "「引用」、", "👩\u200d👩\u200d👧", "❤️"),
]


def wrapped(text: str, width: int, cuts: int = 0, seed: int = 0) -> str:
    """Return what is shown of a text that comes in pieces."""
    places = sorted(random.Random(seed).choices(range(len(text) + 1), k=cuts))
    ends = zip([0, *places], [*places, len(text)], strict=True)
    wrapper = WordWrapper(width)
    return "".join(wrapper.push(text[start:end]) for start, end in ends) + wrapper.finish()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one two three", "one two\nthree"),
        ("one two\nthree", "one two\nthree"),
        ("12345678 12345678", "12345678\n12345678"),
        ("1234567 2", "1234567\n2"),
        ("123456 2 3", "123456 2\n3"),
        ("one    two    x", "one\ntwo    x"),
        ("one two \nthree", "one two \nthree"),
        ("1234567 \nx", "1234567 \nx"),
        ("12345678 \nx", "12345678\nx"),
        ("a\tb", "a\nb"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("an/address/too/long for it", "an/address/too/long for\nit"),
        ("x an/address/too/long", "x\nan/address/too/long"),
        ("", ""),
        (" ", " "),
    ],
)
def test_words_move_to_the_next_line(text: str, shown: str) -> None:
    assert wrapped(text, 8) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("日本語を話す", "日本語を\n話す"),
        ("x日本語を話す", "x日本語\nを話す"),
        ("日本語x y話", "日本語x\ny話"),
        ("日本語だ。x", "日本語\nだ。x"),
        ("日本語「話」", "日本語\n「話」"),
        ("a 👩‍👩‍👧 👍🏽 ❤️", "a 👩‍👩‍👧 👍🏽\n❤️"),
        ("naïve ab", "naïve ab"),
        ("e\u0301" * 3 + " x yz", "e\u0301" * 3 + " x yz"),
        ("नमस्ते जी xy", "नमस्ते जी\nxy"),
    ],
)
def test_width_counts_cells_and_not_characters(text: str, shown: str) -> None:
    assert wrapped(text, 8) == shown


CODE = "def f(x):  return  [x for x in range(10)]"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{CODE}\n```\n",
        f"~~~\n{CODE}\n```\n{CODE}\n~~~\n",
        f"  ```\n{CODE}\n  ```\n",
        f"    {CODE}",
        f"\t{CODE}\n  {CODE}\n",
    ],
)
def test_code_stays_as_it_is(text: str) -> None:
    assert wrapped(text, 12) == text


@pytest.mark.parametrize("before", ["```\nx\n```", "```one line``` of it", " code"])
def test_text_behind_code_is_text_again(before: str) -> None:
    assert wrapped(f"{before}\none two three", 24)[-13:] == "one two three"
    assert wrapped(f"{before}\none two three", 22).endswith("\none two three")
    assert wrapped(f"{before}\n{'word ' * 6}", 22).endswith("\nword word word word\nword word ")


def texts() -> list[str]:
    """Return random texts of words, spaces, lines and code."""
    random_source = random.Random(5)
    parts = [*WORDS, *WORDS, " ", "  ", "\n", "\n\n", "\n  ", "\n```\n", "\t"]
    return [
        "".join(
            random_source.choice(parts) + random_source.choice(["", " ", " "]) for _ in range(40)
        )
        for _ in range(40)
    ]


@pytest.mark.parametrize("width", [1, 2, 7, 20, 80])
def test_laws_of_any_text(width: int) -> None:
    """Nothing is lost, lines stay lines, no cut changes what is shown."""
    for seed, text in enumerate(texts()):
        shown = wrapped(text, width)
        assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", text)
        lines = iter(shown.split("\n"))
        for line in text.split("\n"):
            rest = re.sub(r"\s", "", line)
            part = re.sub(r"\s", "", next(lines))
            while part != rest:
                assert rest.startswith(part)
                part += re.sub(r"\s", "", next(lines))
        assert wrapped(text, width, cuts=30, seed=seed) == shown


def test_wide_enough_it_shows_the_very_text() -> None:
    for text in texts():
        assert wrapped(text, 10_000) == text


def test_a_whole_word_is_not_held_back_for_long() -> None:
    """What can be shown is shown: only the last word waits, and no longer than a line."""
    wrapper = WordWrapper(10)
    assert wrapper.push("one tw") == "one"
    assert wrapper.push("o ") == " two"
    assert wrapper.push("x" * 11) == "\n" + "x" * 11
    assert wrapper.push("y" * 25) == "y" * 25
    assert wrapper.push(" z") == ""
    assert wrapper.finish() == " z"
