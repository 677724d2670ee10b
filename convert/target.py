"""Converts a target into a folder as ``mlx_lm.convert`` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.base import convert_gguf
from redrafter_mlx.convert.float_dtypes import MLX_DTYPES
from redrafter_mlx.convert.model_files import CHAT_TEMPLATE_FILES
from redrafter_mlx.convert.model_folder import (
    ModelContents,
    OnProgress,
    common_entry,
    undivided_notes,
    write_chat_template,
    write_model,
)
from redrafter_mlx.convert.output_config import output_config, wanted_dtype
from redrafter_mlx.convert.target_modules import ModelTensors, check_tensors, model_tensors
from redrafter_mlx.convert.target_options import (
    AS_STORED,
    ConvertedTarget,
    TargetOptions,
)
from redrafter_mlx.convert.target_source import find_gguf, open_tensors
from redrafter_mlx.convert.tensor_job import (
    SourceTensor,
    TensorJob,
    copy_job,
    float_job,
    have_equal_rows,
    is_divisible,
)
from redrafter_mlx.convert.tokenizer_files import copy_others, has_tokenizer
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.models.stored_tensors import (
    EMBEDDING,
    HEAD,
    is_rotary_buffer,
    is_unused,
    require_head,
)
from redrafter_mlx.models.target_config import TargetConfig, stored_quantization
from redrafter_mlx.weights import read_json

__all__ = ["ConvertedTarget", "TargetOptions", "convert_target"]


def convert_target(
    source: Path | str,
    out: Path | str,
    options: TargetOptions = AS_STORED,
    on_progress: OnProgress | None = None,
) -> ConvertedTarget:
    """Convert a target into a new folder that mlx-lm and this package load.

    Tensors go over a few rows at a time; the memory used does not depend on their size.

    Args:
        source: A Hugging Face folder with safetensors or PyTorch files, one that
            ``mlx_lm.convert`` wrote, or a GGUF file or a folder with one.
        out: The folder to make; it is complete or not there.
        options: What becomes of the weights.
        on_progress: Is told the bytes of tensors written, and to be written.

    Raises:
        CheckpointError: The model is not supported, its files do not go together, a tensor
            cannot be converted, or there is no room for the folder or it exists.
        ConfigError: The group size divides no layer.
    """
    source = Path(source)
    gguf = find_gguf(source)
    if gguf is not None:
        return convert_gguf(gguf, out, options, on_progress)
    settings = _read_settings(source)
    config = TargetConfig.from_dict(settings)
    with open_tensors(source) as stored:
        contents = _contents(source, settings, _needed(stored, config), options)
        return write_model(out, contents, on_progress)


@dataclass(frozen=True, slots=True)
class _Needed:
    """The tensors that the model uses, and a line on each kind that it does not."""

    tensors: dict[str, SourceTensor]
    notes: tuple[str, ...]


def _read_settings(source: Path) -> dict[str, Any]:
    if not source.is_dir():
        what = "is a file that is no GGUF" if source.exists() else "is not there"
        raise CheckpointError(f"{source} {what}; give a model's folder or a GGUF file.")
    if not (source / "config.json").exists():
        raise CheckpointError(
            f"{source} has no config.json; give the folder of a Hugging Face model."
        )
    return read_json(source / "config.json")


def _needed(stored: Mapping[str, SourceTensor], config: TargetConfig) -> _Needed:
    require_head(stored, config)
    notes = []
    num_buffers = sum(map(is_rotary_buffer, stored))
    if num_buffers:
        notes.append(f"left aside: {num_buffers} rotary buffers, which are computed anew")
    if config.tie_word_embeddings and HEAD in stored:
        notes.append(_head_note(stored))
    tensors = {name: tensor for name, tensor in stored.items() if not is_unused(name, config)}
    return _Needed(tensors, tuple(notes))


def _head_note(tensors: Mapping[str, SourceTensor]) -> str:
    note = f"left aside: {HEAD}, which config.json ties to the embedding"
    embedding = tensors.get(EMBEDDING)
    is_equal = embedding is not None and have_equal_rows(tensors[HEAD], embedding)
    return note if is_equal else f"{note}, though the two differ"


def _contents(
    source: Path, settings: Mapping[str, Any], needed: _Needed, options: TargetOptions
) -> ModelContents:
    """Return what the folder will hold, every tensor checked against config.json."""
    config, kept = TargetConfig.from_dict(settings), stored_quantization(settings)
    model = model_tensors(config, needed.tensors, kept)
    check_tensors(needed.tensors, model, source)
    is_quantized = any(name.endswith(".scales") for name in needed.tensors)
    dtype = options.mlx_dtype
    if is_quantized:
        options.refuse_requantizing(source)
    elif dtype is None:
        dtype = MLX_DTYPES.get(wanted_dtype(settings) or "")
    jobs = _jobs(needed.tensors, model, dtype, options.quantization)
    is_tied = HEAD not in needed.tensors
    values = output_config(settings, config, is_tied=is_tied, dtype=options.dtype)
    if is_quantized:
        values |= {"quantization": kept, "quantization_config": kept}
    return ModelContents(
        config=values | common_entry(jobs, options.quantization),
        jobs=jobs,
        num_parameters=model.num_parameters,
        write_others=partial(_copy_others, source, options.chat_template),
        on_start=options.on_start,
        notes=(*needed.notes, *_notes(source, model, options.quantization)),
    )


def _jobs(
    tensors: Mapping[str, SourceTensor],
    model: ModelTensors,
    dtype: mx.Dtype | None,
    quantization: Quantization | None,
) -> list[TensorJob]:
    jobs, packable = [], _packable(model, quantization)
    for name in model.arrays:
        tensor = tensors[name]
        if tensor.is_float:
            packing = quantization if name in packable else None
            jobs.append(float_job(tensor, name, dtype or tensor.dtype, packing))
        else:
            jobs.append(copy_job(tensor, name))
    return jobs


def _packable(model: ModelTensors, quantization: Quantization | None) -> set[str]:
    """Return the weights that MLX quantises so: those of the other widths stay as they are."""
    if quantization is None:
        return set()
    return {name for name in model.matrices if is_divisible(model.arrays[name].shape, quantization)}


def _notes(source: Path, model: ModelTensors, quantization: Quantization | None) -> list[str]:
    notes = []
    if quantization is not None:
        left = len(model.matrices) - len(_packable(model, quantization))
        notes += undivided_notes(left, quantization)
    if not has_tokenizer(source):
        notes.append("no tokenizer: the source has none")
    return notes


def _copy_others(source: Path, chat_template: str | None, folder: Path) -> None:
    """Copy the tokenizer's files and the like, and give a template where there is none."""
    copy_others(source, folder)
    if chat_template is not None and not _has_chat_template(source):
        write_chat_template(folder, chat_template)


def _has_chat_template(source: Path) -> bool:
    if any((source / name).is_file() for name in CHAT_TEMPLATE_FILES):
        return True
    path = source / "tokenizer_config.json"
    return path.is_file() and bool(read_json(path).get("chat_template"))
