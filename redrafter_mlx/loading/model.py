"""From a name to everything that decoding needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from redrafter_mlx.config import CPU_BEAM_SHAPE, GPU_BEAM_SHAPE, BeamShape, Quantization
from redrafter_mlx.convert.model_files import VOCABULARY_FILES
from redrafter_mlx.convert.tokenizer_files import check_sizes, check_texts
from redrafter_mlx.decoding.pace import CPU_COSTS, GPU_COSTS, Pace, RoundCosts
from redrafter_mlx.decoding.profile import find_profile, profile_key
from redrafter_mlx.errors import CheckpointError, ReDrafterError
from redrafter_mlx.loading.converted import is_conversion
from redrafter_mlx.loading.drafter import load_drafter
from redrafter_mlx.loading.hub import find_drafter, resolve_model
from redrafter_mlx.loading.known import profile_folder
from redrafter_mlx.loading.memory import MachineMemory, check_memory, memory_need
from redrafter_mlx.loading.target import identify, load_target
from redrafter_mlx.loading.watch import SILENT, Watch
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter
from redrafter_mlx.weights import read_json

UNTUNED = "The shape of the draft is a guess; redrafter-mlx tune measures the best one here."


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A target, with what speaks to it and what drafts for it.

    Attributes:
        name: As it was asked for.
        folder: Where its files are; ``None`` for a model made in memory.
        target: The decoder.
        drafter: Bound to the target; ``None`` decodes plainly.
        tokenizer: A transformers tokenizer; ``None`` for a model made in memory.
        eos_ids: Every token id that ends an answer.
        notices: Lines to tell the user once.
        beam_shape: Of the draft where nobody asks for another: measured, or as suits the
            device.
        pace: What drafting has brought so far, across answers.
    """

    name: str
    folder: Path | None
    target: Decoder
    drafter: Drafter | None
    tokenizer: Any
    eos_ids: frozenset[int]
    notices: tuple[str, ...] = ()
    beam_shape: BeamShape = field(default_factory=lambda: default_beam_shape())
    pace: Pace = field(default_factory=lambda: Pace(default_costs()))


def default_costs() -> RoundCosts:
    """Return what the parts of a round cost on this device when nobody measured it."""
    return GPU_COSTS if mx.default_device().type == mx.gpu else CPU_COSTS


def load(
    name_or_path: str | Path,
    *,
    drafter: str | Path | None = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    quantization: Quantization | None = None,
    watch: Watch = SILENT,
) -> LoadedModel:
    """Load a model, and the drafter that goes with it.

    Args:
        name_or_path: A known name, a model's folder or GGUF file, or a Hub repository.
        drafter: A drafter's folder; ``"auto"`` looks in the model's folder, the user's cache
            and the package; ``None`` decodes plainly.
        dtype: See ``compute_dtype``.
        revision: A repository's branch, tag or commit.
        quantization: How to quantise the weights; the copy is kept in the user's cache.
        watch: Is told of downloads and conversions.

    Raises:
        CheckpointError: A file is missing or broken, or the model is not supported.
        ConfigError: The revision or the quantisation does not go with this model.
        ShapeError: An explicit drafter does not fit the model.
    """
    name = str(name_or_path)
    folder = resolve_model(
        name, revision=revision, quantization=quantization, dtype=dtype, watch=watch
    )
    drafter_folder = _drafter_folder(name, folder, drafter)
    with _told_how_to_repair(folder):
        need = memory_need(folder, drafter_folder, dtype)
    notices = check_memory(name, need, MachineMemory.of_this_machine())
    with _told_how_to_repair(folder):
        target, tokenizer = load_target(folder, dtype), load_tokenizer(folder)
    load_one = _load_found if drafter == "auto" else _load_named
    found = load_one(name, drafter_folder, target, dtype)
    tuned = _tuned(target, found.drafter)
    notices = (*notices, *_dtype_notice(target, dtype), *found.notices, *tuned.notices)
    return LoadedModel(
        name=name,
        folder=folder,
        target=target,
        drafter=found.drafter,
        tokenizer=tokenizer,
        eos_ids=eos_ids(folder, tokenizer),
        notices=(*notices, *_template_notice(name, tokenizer)),
        beam_shape=tuned.shape,
        pace=Pace(tuned.costs),
    )


@contextmanager
def _told_how_to_repair(folder: Path) -> Iterator[None]:
    """Add what helps where the program made the broken folder itself."""
    try:
        yield
    except CheckpointError as error:
        if not is_conversion(folder):
            raise
        raise CheckpointError(f"{error} Remove {folder} and run again.") from error


def default_beam_shape() -> BeamShape:
    """Return the shape of the draft that suits the device when nobody chose one."""
    return GPU_BEAM_SHAPE if mx.default_device().type == mx.gpu else CPU_BEAM_SHAPE


def load_tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer; code that comes with a model is never run.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """
    check_sizes(folder)
    # Without it transformers says on import that there is no PyTorch, which is not missed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()  # what it warns of, a damaged file, is raised below
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        tokenizer.decode(tokenizer.encode("a"))  # a setting of a wrong type shows only here
    except Exception as error:
        # transformers raises many kinds here; all of them mean an unusable folder.
        check_texts(folder)  # says more plainly which file it is
        if not any((folder / name).is_file() for name in VOCABULARY_FILES):
            raise CheckpointError(
                f"{folder} has no tokenizer.json; copy the model's tokenizer files there."
            ) from error
        reason = " ".join((str(error) or type(error).__name__).split())[:200]
        raise CheckpointError(f"The tokenizer in {folder} cannot be loaded: {reason}") from error
    return tokenizer


def eos_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """Return the union of what config, generation config and tokenizer call the end."""
    named: list[Any] = [tokenizer.eos_token_id]
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            ids = read_json(folder / name).get("eos_token_id")
            named += ids if isinstance(ids, list) else [ids]
    return frozenset(token for token in named if isinstance(token, int))


def _dtype_notice(target: Decoder, dtype: str) -> tuple[str, ...]:
    """Warn of what a CPU can do but not in good time."""
    parameters: dict[str, mx.array] = dict(tree_flatten(target.parameters()))
    kinds = {tensor.dtype for tensor in parameters.values()}
    if dtype == "auto" or mx.default_device().type == mx.gpu or kinds == {mx.float32}:
        return ()
    return (f"--dtype {dtype} is very slow on a CPU, about 0.2 tokens/s for SmolLM2-135M.",)


def _template_notice(name: str, tokenizer: Any) -> tuple[str, ...]:
    if getattr(tokenizer, "chat_template", None):
        return ()
    return (f"{name} has no chat template: prompts are taken as they are.",)


@dataclass(frozen=True, slots=True)
class _Tuned:
    shape: BeamShape
    costs: RoundCosts
    notices: tuple[str, ...] = ()


def _tuned(target: Decoder, drafter: Drafter | None) -> _Tuned:
    """Return what was measured for this pair, or what suits the device and a line about it."""
    if drafter is None:
        return _Tuned(default_beam_shape(), default_costs())
    profile = find_profile(profile_key(target, drafter), profile_folder())
    if profile is not None:
        return _Tuned(profile.shape, profile.costs)
    return _Tuned(default_beam_shape(), default_costs(), (UNTUNED,))


@dataclass(frozen=True, slots=True, eq=False)
class _FoundDrafter:
    drafter: Drafter | None
    notices: tuple[str, ...] = ()


def _drafter_folder(name: str, folder: Path, wanted: str | Path | None) -> Path | None:
    if wanted == "auto":
        return find_drafter(name, folder)
    return None if wanted is None else Path(wanted)


def _load_named(name: str, folder: Path | None, target: Decoder, dtype: str) -> _FoundDrafter:
    if folder is None:
        return _FoundDrafter(None)
    return _with_origin(load_drafter(folder, target, dtype), name, target)


def _load_found(name: str, folder: Path | None, target: Decoder, dtype: str) -> _FoundDrafter:
    """Load a drafter that nobody named; without a usable one a notice says so."""
    if folder is None:
        return _FoundDrafter(
            None,
            (
                f"No drafter was found for {name}: guessing by lookup alone. redrafter-mlx "
                "convert imports one; give its folder as the drafter.",
            ),
        )
    try:
        return _load_named(name, folder, target, dtype)
    except ReDrafterError as error:
        return _FoundDrafter(None, (f"Guessing by lookup alone, the drafter is unusable: {error}",))


def _with_origin(drafter: Drafter, name: str, target: Decoder) -> _FoundDrafter:
    origin = drafter.config.target
    if origin is None or origin.fingerprint == identify(name, target).fingerprint:
        return _FoundDrafter(drafter)
    return _FoundDrafter(
        drafter,
        (
            f"The drafter was made for {origin.name}, not for {name}: the text stays the "
            "model's own, but fewer guesses may be right.",
        ),
    )
