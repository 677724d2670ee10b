"""Choosing a draft vocabulary by counting a corpus."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redrafter_mlx.convert.draft_vocab import count_tokens, covered_share, most_used
from redrafter_mlx.errors import CheckpointError, ConfigError

VOCAB = 128


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def never(text: str) -> list[int]:
    raise AssertionError("an .npz is counted without a tokenizer")


def write_corpus(path: Path, **changes: Any) -> Path:
    """Two sequences: prompt 1 2, answer 3 3 5; prompt 9, answer 3."""
    arrays: dict[str, Any] = {
        "tokens": np.array([1, 2, 3, 3, 5, 9, 3], np.uint16),
        "lengths": np.array([5, 2], np.int32),
        "prompt_lengths": np.array([2, 1], np.int32),
        "temperature": np.array([0.0, 0.8], np.float32),
    }
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez(path / "corpus.npz", **arrays)
    return path / "corpus.npz"


def test_only_answers_count(tmp_path: Path) -> None:
    counts = count_tokens(write_corpus(tmp_path), VOCAB, never)
    assert counts.shape == (VOCAB,) and counts.dtype == np.int64
    assert {i: n for i, n in enumerate(counts.tolist()) if n} == {3: 3, 5: 1}


def test_an_empty_answer_counts_nothing(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, prompt_lengths=np.array([5, 1], np.int32))
    assert count_tokens(path, VOCAB, never).sum() == 1


@pytest.mark.parametrize(("changes", "words"), [
    ({"lengths": np.array([5, 1])}, "sum to 6, for 7 tokens"),
    ({"lengths": np.array([8, -1])}, "length -1 and a prompt of 1"),
    ({"prompt_lengths": np.array([2, 3])}, "sequence 1 has length 2 and a prompt of 3"),
    ({"prompt_lengths": np.array([-1, 1])}, "a prompt of -1"),
    ({"prompt_lengths": np.array([2])}, "1 prompts"),
    ({"prompt_lengths": None}, "prompt_lengths"),
    ({"tokens": np.array([1, 2, 3, 3, 5, 9, 3.0])}, "tokens is float64"),
    ({"tokens": np.ones((7, 1), np.int32)}, r"shape \(7, 1\)"),
    ({"tokens": np.array([1, 2, 3, 3, 5, 9, VOCAB])}, f"id {VOCAB}, .* has {VOCAB}"),
    ({"tokens": np.array([1, 2, -3, 3, 5, 9, 3])}, "id -3"),
    ({"tokens": np.array([1] * 7, object)}, "cannot be read"),
    ({"prompt_lengths": np.array([5, 2])}, "no token"),
])  # fmt: skip
def test_a_corpus_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        count_tokens(write_corpus(tmp_path, **changes), VOCAB, never)


def test_a_prompt_may_hold_any_id(tmp_path: Path) -> None:
    """Only answers are counted, so only their ids index the vocabulary."""
    tokens = np.array([1, 60000, 3, 3, 5, 9, 3], np.uint16)
    assert count_tokens(write_corpus(tmp_path, tokens=tokens), VOCAB, never).sum() == 4


def damaged_files() -> list[bytes]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("tokens.npy", b"no array")
    array = io.BytesIO()
    np.save(array, np.ones(3))
    return [b"", b"nothing", archive.getvalue(), archive.getvalue()[:60], array.getvalue()]


@pytest.mark.parametrize("content", damaged_files())
def test_a_damaged_archive_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.npz"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"corpus\.npz cannot be read") as caught:
        count_tokens(path, VOCAB, never)
    assert "\n" not in str(caught.value)


def test_a_text_counts_the_same_in_any_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "one line\nand another, longer than a block\n\nthe last" * 9
    path = tmp_path / "corpus.txt"
    path.write_text(text)
    expected = np.bincount(encode(text), minlength=VOCAB)
    for size in (7, 64, 1 << 18):
        monkeypatch.setattr("redrafter_mlx.convert.draft_vocab._BLOCK_CHARACTERS", size)
        assert np.array_equal(count_tokens(path, VOCAB, encode), expected)


def test_a_block_ends_with_its_line_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrafter_mlx.convert.draft_vocab._BLOCK_CHARACTERS", 10)
    path = tmp_path / "corpus.txt"
    path.write_text("short\nwords and\n" + "x" * 45)
    blocks: list[str] = []

    def encode_noting(text: str) -> list[int]:
        blocks.append(text)
        return encode(text)

    count_tokens(path, VOCAB, encode_noting)
    assert blocks == ["short\nwords and\n", "x" * 20, "x" * 20, "x" * 5]


@pytest.mark.parametrize(("content", "words"), [
    (b"", "no token"), (b"\xff\xfe\x00", "not UTF-8"), ("é".encode(), "id 233, .* has 128"),
])  # fmt: skip
def test_a_text_that_cannot_be_counted_is_refused(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        count_tokens(path, VOCAB, encode)


@pytest.mark.parametrize("name", ["nothing.txt", "nothing.npz"])
def test_an_absent_corpus_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        count_tokens(tmp_path / name, VOCAB, encode)


def test_the_most_used_come_in_ascending_order() -> None:
    chosen = most_used(np.array([5, 0, 9, 7, 1]), 3)
    assert chosen.dtype == np.int32
    assert chosen.tolist() == [0, 2, 3]


def test_equally_used_tokens_go_by_the_lowest_id() -> None:
    assert most_used(np.array([1, 4, 1, 1, 4, 1]), 4).tolist() == [0, 1, 2, 4]
    # 500 odd ids are used, then come the lowest even ones.
    counts = np.arange(1000) % 2
    assert most_used(counts, 600).tolist() == sorted([*range(1, 1000, 2), *range(0, 200, 2)])


def test_tokens_that_end_an_answer_are_always_in() -> None:
    counts = np.array([5, 0, 9, 7, 0])
    assert most_used(counts, 3, [4, 1, 4]).tolist() == [1, 2, 4]
    assert most_used(counts, 3, [2]).tolist() == [0, 2, 3]


def test_every_token_may_be_chosen() -> None:
    assert most_used(np.zeros(4, np.int64), 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("n", "always", "words"),
    [(6, [], "6 tokens; .* 5,"), (0, [], "0 tokens"), (1, [1, 2], "choose 2"), (3, [5], "5"),
     (3, [-1], "-1")],
)  # fmt: skip
def test_a_choice_that_cannot_be_made_is_refused(n: int, always: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        most_used(np.arange(5), n, always)


def test_the_share_counts_occurrences() -> None:
    counts = np.array([6, 0, 3, 1])
    assert covered_share(counts, most_used(counts, 2)) == pytest.approx(0.9)
    assert covered_share(counts, most_used(counts, 4)) == 1.0
