"""Writes the folder of a model: complete or not at all, and only where there is room."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.model_files import CHAT_TEMPLATE_FILE
from redrafter_mlx.convert.target_options import ConvertedTarget
from redrafter_mlx.convert.tensor_job import TensorJob
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.folders import new_folder
from redrafter_mlx.safetensors_writer import ModelWriter
from redrafter_mlx.sizes import readable_size
from redrafter_mlx.weights import write_json

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ModelContents:
    """What a model's folder is made of.

    Attributes:
        config: config.json.
        jobs: What makes the tensors.
        num_parameters: How many weights the model has, packed ones counted singly.
        write_others: Writes the tokenizer and whatever else goes beside the weights.
        on_start: See ``TargetOptions``.
        notes: A line each for what was not taken over as it was.
    """

    config: Mapping[str, Any]
    jobs: Sequence[TensorJob]
    num_parameters: int
    write_others: Callable[[Path], None]
    on_start: Callable[[int, int], None]
    notes: tuple[str, ...] = ()


def write_model(
    out: Path | str, contents: ModelContents, on_progress: OnProgress | None = None
) -> ConvertedTarget:
    """Write a new folder that mlx-lm and this package load.

    config.json comes last: without it no folder is taken for a model.

    Args:
        out: The folder to make.
        contents: What to put in it.
        on_progress: Is told the bytes of tensors written, and to be written.

    Raises:
        CheckpointError: There is no room, the folder exists or cannot be written, or a tensor
            cannot be converted.
    """
    entries = {name: entry for job in contents.jobs for name, entry in job.entries.items()}
    with new_folder(out) as folder:
        writer = ModelWriter(folder, entries)
        _require_room(folder, out, writer.num_bytes)
        contents.on_start(writer.num_bytes, contents.num_parameters)
        contents.write_others(folder)
        with writer:
            _write_tensors(writer, contents.jobs, on_progress or (lambda *_: None))
        writer.finish(contents.num_parameters)
        write_json(folder / "config.json", dict(sorted(contents.config.items())))
    return ConvertedTarget(writer.num_bytes, len(entries), contents.notes)


def affine_entry(quantization: Quantization) -> dict[str, Any]:
    """Return what config.json says of a quantisation."""
    return {"group_size": quantization.group_size, "bits": quantization.bits, "mode": "affine"}


def common_entry(jobs: Sequence[TensorJob], quantization: Quantization | None) -> dict[str, Any]:
    """Return config.json's entries for one quantisation of all modules, none for ``None``.

    Raises:
        ConfigError: No job quantises.
    """
    if quantization is None:
        return {}
    if not any(name.endswith(".scales") for job in jobs for name in job.entries):
        raise ConfigError(
            f"No layer's width is a multiple of group_size {quantization.group_size}; choose a "
            "smaller one or leave the model as it is."
        )
    entry = affine_entry(quantization)
    return {"quantization": entry, "quantization_config": entry}


def undivided_notes(num_matrices: int, quantization: Quantization) -> list[str]:
    """Return the line on matrices that stay as they are, none where there are none."""
    width = quantization.group_size
    note = f"not quantised: {num_matrices} matrices whose width is no multiple of {width}"
    return [note] if num_matrices else []


def write_chat_template(folder: Path, template: str) -> None:
    """Write a template to the file where transformers looks for it.

    Raises:
        CheckpointError: The file cannot be written.
    """
    path = folder / CHAT_TEMPLATE_FILE
    try:
        path.write_text(template, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror}); choose another place."
        ) from error


def _write_tensors(writer: ModelWriter, jobs: Sequence[TensorJob], on_progress: OnProgress) -> None:
    done, total = 0, writer.num_bytes
    on_progress(done, total)
    for job in jobs:
        for piece in job.pieces():
            for name, data in piece.items():
                writer.write(name, data)
                done += data.nbytes
            on_progress(done, total)
        mx.clear_cache()  # a GPU's buffers are kept for reuse


def _require_room(folder: Path, out: Path | str, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise CheckpointError(
            f"{out} needs {readable_size(num_bytes)} and {readable_size(free)} are free there; "
            "make room or choose another disk."
        )
