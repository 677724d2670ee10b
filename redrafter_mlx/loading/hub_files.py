"""Which files of a repository a model needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from redrafter_mlx.convert.model_files import OTHER_FILES, TOKENIZER_FILES
from redrafter_mlx.errors import CheckpointError

ShardsOf = Callable[[str], Iterable[str]]
# Never *.py: no code of a repository runs here.
_SETTINGS = frozenset(
    {
        "config.json",
        *TOKENIZER_FILES,
        *OTHER_FILES,
        "drafter/config.json",
        "drafter/model.safetensors",
    }
)
# From the most wanted kind to the least: of these, one is taken.
_KINDS = (
    ("model*.safetensors", re.compile(r"model[^/]*\.safetensors"), "model.safetensors"),
    ("rank*.safetensors", re.compile(r"rank\d+\.safetensors"), None),
    ("pytorch_model*.bin", re.compile(r"pytorch_model[^/]*\.bin"), "pytorch_model.bin"),
    ("model.pt", re.compile(r"model\.pt"), None),
)
_GGUF = re.compile(r"[^/]*\.gguf")


def needed_files(names: Iterable[str], repository: str, shards_of: ShardsOf) -> list[str]:
    """Return, of a repository's files, what loading or converting its model takes.

    Settings and tokenizer, and the weights in one format only: safetensors before PyTorch's,
    GGUF last; where there is an index, the files that it names, whether they are there or not.

    Args:
        names: The repository's files.
        repository: For messages.
        shards_of: Returns the files that an index names.

    Raises:
        CheckpointError: There are no weights, or several GGUF files and nobody chose one.
    """
    present = frozenset(names)
    weights = _weights(present, repository, shards_of)
    return sorted((present & _SETTINGS) | weights)


def _weights(present: frozenset[str], repository: str, shards_of: ShardsOf) -> frozenset[str]:
    for _, pattern, whole in _KINDS:
        found = frozenset(name for name in present if pattern.fullmatch(name))
        if not found:
            continue
        index = f"{whole}.index.json"
        if whole is None or index not in present:
            return found
        return frozenset(shards_of(index)) | {index}
    return _gguf(sorted(name for name in present if _GGUF.fullmatch(name)), repository)


def _gguf(found: Collection[str], repository: str) -> frozenset[str]:
    if len(found) > 1:
        raise CheckpointError(
            f"{repository} holds {len(found)} GGUF files ({', '.join(found):.200}); download one "
            "of them and give its path."
        )
    if not found:
        kinds = ", ".join(kind for kind, *_ in _KINDS)
        raise CheckpointError(
            f"{repository} holds no weights that can be read ({kinds} or a .gguf file); choose "
            "another repository."
        )
    return frozenset(found)
