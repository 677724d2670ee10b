"""From a drafter's folder to a drafter bound to its target."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import mlx.core as mx

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.convert.drafter_file import check_draft_vocab, check_entries
from redrafter_mlx.convert.names import DRAFT_VOCAB
from redrafter_mlx.errors import CheckpointError, ShapeError
from redrafter_mlx.loading.modules import compute_dtype, fill
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter, RecurrentDrafter
from redrafter_mlx.models.packing import dequantized
from redrafter_mlx.weights import load_tensors, read_json

_MAKE_AGAIN = "make the drafter again by redrafter-mlx convert or train"


def load_drafter(folder: Path, target: Decoder, dtype: str = "auto") -> Drafter:
    """Return the drafter in ``folder``, bound to ``target`` and in its dtype.

    Args:
        folder: With config.json and model.safetensors, as ``redrafter-mlx convert`` writes.
        target: The model that it drafts for.
        dtype: See ``compute_dtype``: quantised layers stay so unless it asks for a dtype.

    Raises:
        CheckpointError: The files do not go together, or hold what is no number or no token.
        ShapeError: The drafter does not fit the target.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"{folder} is no drafter's folder, for it has no config.json; redrafter-mlx convert "
            "makes one."
        )
    config = DrafterConfig.from_dict(read_json(file, _MAKE_AGAIN), str(file))
    check_fit(config, target)
    network = RecurrentDrafter(config)
    settings = asdict(config.quantization) if config.quantization else {}
    tensors = load_tensors(folder)
    wanted = compute_dtype(dtype)
    if wanted is not None:
        tensors = dequantized(tensors, settings, wanted)
    check_entries(tensors, folder)
    fill(network, tensors, settings, what="drafter")
    check_draft_vocab(tensors.get(DRAFT_VOCAB), config, folder)
    network.set_dtype(target.dtype)
    mx.eval(network.parameters())  # else the first draft would pay for the cast
    return Drafter(network, target)


def check_fit(config: DrafterConfig, target: Decoder) -> None:
    """Refuse a drafter made for a target of another size, with both numbers."""
    for size in ("hidden_size", "vocab_size"):
        drafter_size, target_size = getattr(config, size), getattr(target.config, size)
        if drafter_size != target_size:
            raise ShapeError(
                f"The drafter has {size} {drafter_size}, but the model has {target_size}; take a "
                "drafter that was made for this model."
            )
