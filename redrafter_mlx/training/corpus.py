"""What a target answered or read, as token ids in a folder of shards.

A corpus is ``corpus.json``, which identifies the target, and ``shard-PART-NUMBER.npz``
files, each written whole. A shard holds ``tokens`` (all sequences joined), ``lengths``,
``prompt_lengths`` and ``temperature``, one a sequence: 0 for a greedy answer, NaN for a
text by others that the target read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from redrafter_mlx.config import TargetIdentity, build_strictly
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.training.files import read_arrays, write_arrays, write_object
from redrafter_mlx.weights import read_json

CORPUS_FILE = "corpus.json"
CORPUS_FORMAT_VERSION = 1
READ = math.nan

Ids = npt.NDArray[np.int32]

_ARRAYS = ("tokens", "lengths", "prompt_lengths", "temperature")


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One prompt with what follows it.

    Attributes:
        tokens: (prompt and answer,) int32.
        prompt_length: How many of them are the prompt, 1 or more.
        temperature: At which the target answered; NaN where it only read the text.
    """

    tokens: Ids
    prompt_length: int
    temperature: float

    @property
    def answer(self) -> Ids:
        """The tokens behind the prompt."""
        return self.tokens[self.prompt_length :]

    @property
    def num_answer_tokens(self) -> int:
        """Tokens behind the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def is_greedy(self) -> bool:
        """Whether each answer token is the target's most probable one."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus on disk.

    Attributes:
        folder: Where it lies.
        target: The target that made it.
        shards: Its shard files, by name.
    """

    folder: Path
    target: TargetIdentity
    shards: tuple[Path, ...]


def create_corpus(folder: Path, target: TargetIdentity) -> None:
    """Make a corpus's folder, or check that the one there is of the same target.

    Raises:
        CheckpointError: Another target made it, or nothing can be written there.
    """
    if (folder / CORPUS_FILE).exists():
        require_target(open_corpus(folder), target)
        return
    if folder.exists() and (not folder.is_dir() or any(map(_is_foreign, folder.iterdir()))):
        raise CheckpointError(
            f"{folder} exists and is no corpus; choose another folder or remove it."
        )
    values = {"format_version": CORPUS_FORMAT_VERSION, "target": asdict(target)}
    write_object(folder / CORPUS_FILE, values)


def _is_foreign(file: Path) -> bool:
    """Whether a file is none that a killed process left when it began a corpus."""
    return not file.name.startswith(f"{CORPUS_FILE}.")


def open_corpus(folder: Path) -> Corpus:
    """Find a corpus's shards.

    Raises:
        CheckpointError: It is no corpus, or a newer program's.
    """
    folder = Path(folder)
    if not (folder / CORPUS_FILE).is_file():
        raise CheckpointError(
            f"{folder} is no corpus, for it has no {CORPUS_FILE}; redrafter-mlx distill makes one."
        )
    file = folder / CORPUS_FILE
    values = read_json(file, "remove the corpus and make it again by redrafter-mlx distill")
    if values.get("format_version") != CORPUS_FORMAT_VERSION:
        raise CheckpointError(
            f"{folder} has format_version {values.get('format_version')!r}, this program reads "
            f"{CORPUS_FORMAT_VERSION}; make the corpus again."
        )
    target = build_strictly(TargetIdentity, values.get("target", {}), f"{file}: target")
    return Corpus(folder, target, tuple(sorted(folder.glob("shard-*.npz"))))


def require_target(corpus: Corpus, target: TargetIdentity) -> None:
    """Refuse a corpus that another target made.

    Raises:
        CheckpointError: The fingerprints or the sizes differ.
    """
    for name in ("model_type", "hidden_size", "vocab_size", "num_layers", "fingerprint"):
        theirs, ours = getattr(corpus.target, name), getattr(target, name)
        if theirs != ours:
            raise CheckpointError(
                f"The corpus {corpus.folder} was made by {corpus.target.name}, whose {name} is "
                f"{str(theirs)[:12]}, not by {target.name} with {str(ours)[:12]}; distil one with "
                "this model."
            )


def shard_path(folder: Path, part: str, number: int) -> Path:
    """Return where a part's shard lies; parts that differ in their settings stand side by side."""
    return folder / f"shard-{part}-{number:05d}.npz"


def write_shard(path: Path, samples: Sequence[Sample]) -> None:
    """Write a shard whole or not at all."""
    joined = np.concatenate([sample.tokens for sample in samples]) if samples else np.zeros(0)
    write_arrays(
        path,
        {
            "tokens": joined.astype(np.int32),
            "lengths": np.array([len(sample.tokens) for sample in samples], np.int32),
            "prompt_lengths": np.array([sample.prompt_length for sample in samples], np.int32),
            "temperature": np.array([sample.temperature for sample in samples], np.float32),
        },
    )


def read_shard(path: Path, vocab_size: int) -> list[Sample]:
    """Read a shard, or an ``.npz`` of the same arrays from elsewhere.

    Raises:
        CheckpointError: It is damaged, contradicts itself or holds an id outside the
            vocabulary.
    """
    tokens, lengths, prompt_lengths, temperature = read_arrays(path, _ARRAYS)
    _check_shard(path, (tokens, lengths, prompt_lengths), temperature, vocab_size)
    ends = np.cumsum(lengths, dtype=np.int64)
    tokens = tokens.astype(np.int32)
    return [
        Sample(tokens[end - length : end], int(prompt_length), float(temp))
        for end, length, prompt_length, temp in zip(
            ends, lengths, prompt_lengths, temperature, strict=True
        )
    ]


def answer_offsets(samples: Iterable[Sample]) -> npt.NDArray[np.int64]:
    """Return (samples + 1,), where each sample's answer begins when all are joined."""
    sizes = [sample.num_answer_tokens for sample in samples]
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _check_shard(
    path: Path,
    integers: tuple[npt.NDArray[Any], ...],
    temperature: npt.NDArray[Any],
    vocab_size: int,
) -> None:
    tokens, lengths, prompt_lengths = integers
    if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in integers):
        raise CheckpointError(f"{path} holds something else than ids and lengths; make it again.")
    if not len(lengths) == len(prompt_lengths) == len(temperature):
        raise CheckpointError(f"{path} has lists of different lengths; make it again.")
    if int(lengths.sum(dtype=np.int64)) != len(tokens) or (prompt_lengths > lengths).any():
        raise CheckpointError(f"{path}: the lengths do not add up to its tokens; make it again.")
    if (prompt_lengths < 1).any():
        raise CheckpointError(f"{path} has a sequence without a prompt; give each a token of it.")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise CheckpointError(
            f"{path} holds ids up to {tokens.max()}, the target's vocabulary has {vocab_size}; "
            "choose a corpus of this target."
        )
