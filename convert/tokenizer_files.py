"""The files of a model's folder beside config.json and the weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from redrafter_mlx.convert.model_files import OTHER_FILES, TOKENIZER_FILES
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.json_files import MAX_JSON_BYTES
from redrafter_mlx.weights import read_json


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a file of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def check_sizes(folder: Path) -> None:
    """Refuse a file that is too large to be what its name says, before anybody reads it.

    Raises:
        CheckpointError: A file is larger than 64 MiB.
    """
    for path in _present(folder):
        num_bytes = path.stat().st_size
        if num_bytes > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path} is {num_bytes} bytes long, more than the {MAX_JSON_BYTES} that such a "
                "file may have; get it again."
            )


def check_texts(folder: Path) -> None:
    """Refuse a JSON file that holds no object.

    Raises:
        CheckpointError: A file is too large, not JSON, or something other than an object.
    """
    check_sizes(folder)
    for path in _present(folder):
        if path.suffix == ".json":
            read_json(path)


def copy_others(source: Path, folder: Path) -> None:
    """Check the files and copy them.

    Raises:
        CheckpointError: See ``check_texts``; or one cannot be copied.
    """
    check_texts(source)
    for path in _present(source):
        try:
            shutil.copyfile(path, folder / path.name)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be copied ({error.strerror}); check the disk."
            ) from error


def _present(folder: Path) -> list[Path]:
    paths = (folder / name for name in (*TOKENIZER_FILES, *OTHER_FILES))
    return [path for path in paths if path.is_file()]
