"""Chooses a draft vocabulary: the tokens that a corpus uses most.

A drafter whose head is cut to these reads fewer bytes a step. It can propose no other
token; the text stays the target's own.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from redrafter_mlx.errors import CheckpointError, ConfigError

_BLOCK_CHARACTERS = 1 << 18
_INTEGER_ARRAYS = ("tokens", "lengths", "prompt_lengths")
# What np.load raises on a damaged archive, one that lacks an array, and on other files.
_LOAD_ERRORS = (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)

Counts = npt.NDArray[np.int64]


def count_tokens(corpus: Path, vocab_size: int, encode: Callable[[str], list[int]]) -> Counts:
    """Count how often a corpus uses each token.

    Args:
        corpus: A UTF-8 text file; or an ``.npz`` of a target's answers with ``tokens``
            (all sequences joined), ``lengths`` and ``prompt_lengths`` (integers, one a
            sequence), where only the answers count.
        vocab_size: Token ids are smaller than this.
        encode: Gives the ids of a text, without special tokens. A text file comes to it
            in blocks of whole lines.

    Returns:
        (vocab_size,) int64.

    Raises:
        CheckpointError: The corpus cannot be read, contradicts itself, holds an id
            outside the vocabulary, or no token.
    """
    corpus = Path(corpus)
    counts = np.zeros(vocab_size, np.int64)
    blocks = _answers(corpus) if corpus.suffix == ".npz" else _encoded_blocks(corpus, encode)
    for token_ids in blocks:
        counts += _count_ids(token_ids, vocab_size, corpus)
    if not counts.any():
        raise CheckpointError(f"{corpus} holds no token to count; choose another corpus.")
    return counts


def most_used(counts: Counts, n: int, always: Iterable[int] = ()) -> npt.NDArray[np.int32]:
    """Return the n most used tokens, of equally used ones the lowest ids.

    Args:
        counts: (vocab_size,), how often each token is used.
        n: How many tokens to choose.
        always: Tokens to choose however rare they are, as those that end an answer.

    Returns:
        (n,) int32, ascending.

    Raises:
        ConfigError: n is larger than the vocabulary or smaller than ``always``, or one of
            these is outside the vocabulary.
    """
    fixed = np.array(sorted(set(always)), np.int64)
    if not max(1, fixed.size) <= n <= counts.size:
        raise ConfigError(
            f"The draft vocabulary is to have {n} tokens; choose {max(1, fixed.size)} to "
            f"{counts.size}, the target's vocabulary."
        )
    if fixed.size and not (fixed[0] >= 0 and fixed[-1] < counts.size):
        raise ConfigError(
            f"The draft vocabulary is to hold the ids {fixed[0]} to {fixed[-1]}; choose ids "
            f"from 0 to {counts.size - 1}."
        )
    ranked = np.argsort(-counts, kind="stable")
    others = ranked[~np.isin(ranked, fixed)][: n - fixed.size]
    return np.sort(np.concatenate([fixed, others])).astype(np.int32)


def covered_share(counts: Counts, token_ids: npt.NDArray[np.int32]) -> float:
    """Return the share of a corpus's tokens, 0 to 1, that are among ``token_ids``."""
    return float(counts[token_ids].sum() / counts.sum())


def _count_ids(token_ids: npt.NDArray[Any], vocab_size: int, corpus: Path) -> Counts:
    if token_ids.size == 0:
        return np.zeros(vocab_size, np.int64)
    low, high = int(token_ids.min()), int(token_ids.max())
    if low < 0 or high >= vocab_size:
        raise CheckpointError(
            f"{corpus} holds the token id {low if low < 0 else high}, the target's vocabulary "
            f"has {vocab_size}; choose a corpus of this target."
        )
    return np.bincount(token_ids, minlength=vocab_size)


def _encoded_blocks(
    corpus: Path, encode: Callable[[str], list[int]]
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the ids of a text file, block by block."""
    try:
        with corpus.open(encoding="utf-8") as file:
            while block := file.read(_BLOCK_CHARACTERS):
                # On to the end of the line; a file without line ends is cut all the same.
                block += file.readline(_BLOCK_CHARACTERS)
                yield np.array(encode(block), np.int64)
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{corpus} is not UTF-8 text; convert it, or give an .npz."
        ) from error
    except OSError as error:
        raise _unreadable(corpus, error) from error


def _answers(corpus: Path) -> Iterator[npt.NDArray[Any]]:
    """Yield the answer tokens of an ``.npz``, all at once."""
    try:
        # Opened here, for np.load leaves the file open where it is no archive.
        with corpus.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            tokens, lengths, prompt_lengths = (arrays[name] for name in _INTEGER_ARRAYS)
    except _LOAD_ERRORS as error:
        raise _unreadable(corpus, error) from error
    for name, array in zip(_INTEGER_ARRAYS, (tokens, lengths, prompt_lengths), strict=True):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise CheckpointError(
                f"{corpus}: {name} is {array.dtype} of shape {array.shape}, expected a list of "
                "whole numbers; make the corpus again."
            )
    yield tokens[_answer_mask(lengths, prompt_lengths, tokens.size, corpus)]


def _answer_mask(
    lengths: npt.NDArray[Any], prompt_lengths: npt.NDArray[Any], num_tokens: int, corpus: Path
) -> npt.NDArray[np.bool_]:
    """Return which of the joined tokens belong to an answer."""
    lengths, prompt_lengths = lengths.astype(np.int64), prompt_lengths.astype(np.int64)
    if lengths.size != prompt_lengths.size or lengths.sum() != num_tokens:
        raise CheckpointError(
            f"{corpus}: {lengths.size} lengths sum to {lengths.sum()}, for {num_tokens} tokens "
            f"and {prompt_lengths.size} prompts; make the corpus again."
        )
    runs = np.stack([prompt_lengths, lengths - prompt_lengths], axis=1)
    if (runs < 0).any():
        row = int(np.argmax((runs < 0).any(axis=1)))
        raise CheckpointError(
            f"{corpus}: sequence {row} has length {lengths[row]} and a prompt of "
            f"{prompt_lengths[row]}; make the corpus again."
        )
    return np.repeat(np.tile([False, True], lengths.size), runs.ravel())


def _unreadable(corpus: Path, error: Exception) -> CheckpointError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return CheckpointError(f"{corpus} cannot be read ({reason}); check the path and the file.")
