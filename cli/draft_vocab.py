"""The tokens that a corpus uses most: the draft vocabulary of a drafter's head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from redrafter_mlx.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ARRAYS = ("tokens", "lengths", "prompt_lengths")


def most_used_tokens(
    corpus: Path, count: int, tokenizer: Any, always: Set[int] = frozenset()
) -> tuple[int, ...]:
    """Return the ``count`` token ids that a corpus uses most, in ascending order.

    Of two that are as frequent the lower one is kept.

    Args:
        corpus: A text file in UTF-8; or an ``.npz`` with ``tokens`` (all sequences joined),
            ``lengths`` and ``prompt_lengths``, where only the answers count, since only
            answers are drafted.
        count: Size of the draft vocabulary.
        tokenizer: A transformers tokenizer; an ``.npz`` needs none.
        always: Ids that are kept however rare they are.

    Raises:
        CheckpointError: The corpus cannot be read.
        ConfigError: It has not ``count`` different tokens.
    """
    is_text = corpus.suffix != ".npz"
    counts = _count_text(corpus, tokenizer) if is_text else _count_answers(corpus)
    least, most = max(1, len(always)), len(counts.keys() | always)
    if not least <= count <= most:
        raise ConfigError(
            f"--draft-vocab is {count}, but {corpus} has {most} different tokens; choose a value "
            f"from {least} to {most}."
        )
    ranked = sorted(counts.keys() - always, key=lambda token: (-counts[token], token))
    return tuple(sorted([*always, *ranked[: count - len(always)]]))


def _count_text(path: Path, tokenizer: Any) -> Counter[int]:
    """Count line by line, so that a long text is never in memory as a whole."""
    from redrafter_mlx.text import encode

    counts: Counter[int] = Counter()
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                counts.update(encode(tokenizer, line, add_special_tokens=False))
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not a text in UTF-8; convert it.") from error
    return counts


def _count_answers(path: Path) -> Counter[int]:
    import numpy as np

    arrays = _read_arrays(path)
    tokens, lengths, prompt_lengths = (arrays[name] for name in ARRAYS)
    is_sound = lengths.shape == prompt_lengths.shape and lengths.sum() == tokens.size
    if not is_sound or (prompt_lengths < 0).any() or (prompt_lengths > lengths).any():
        raise CheckpointError(f"The lengths in {path} do not go together; make the file anew.")
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    is_answer = np.arange(tokens.size) - starts >= np.repeat(prompt_lengths, lengths)
    ids, numbers = np.unique(tokens[is_answer], return_counts=True)
    return Counter(dict(zip(ids.tolist(), numbers.tolist(), strict=True)))


def _read_arrays(path: Path) -> dict[str, npt.NDArray[np.int64]]:
    import numpy as np

    try:
        # No pickles: they run code.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ARRAYS}
    except (BadZipFile, EOFError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not an .npz with {', '.join(ARRAYS)}.") from error
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise CheckpointError(f"{name} in {path} must be a list of integers; make it anew.")
    return {name: array.astype(np.int64) for name, array in arrays.items()}
