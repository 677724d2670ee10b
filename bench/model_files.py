"""The sizes of a target and a drafter, by a known name or from a folder's config.json."""

from __future__ import annotations

from pathlib import Path

from redrafter_mlx.bench.model_sizes import TARGETS, DrafterSize, TargetSize, find_target
from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.errors import CheckpointError, ShapeError
from redrafter_mlx.loading.known import short_name
from redrafter_mlx.models.target_config import TargetConfig
from redrafter_mlx.weights import read_json


def target_size(name: str) -> TargetSize:
    """Return the sizes of a target, in float16 whatever its files hold.

    Args:
        name: A known name, its repository's, or a model's folder.

    Raises:
        ConfigError: It is neither a known name nor a folder.
        CheckpointError: The folder's config.json cannot be read, or is of another kind of model.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return find_target(short_name(name))
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"{folder} has no config.json, so it is no model's folder; give one, or one of: "
            f"{', '.join(target.name for target in TARGETS)}."
        )
    config = TargetConfig.from_dict(read_json(file))
    return TargetSize(
        name=folder.resolve().name,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
    )


def drafter_size(folder: Path, target: TargetSize) -> DrafterSize:
    """Return the sizes of a drafter, in float16 whatever its files hold.

    Raises:
        CheckpointError: The folder holds no drafter.
        ShapeError: It was made for a target of another size.
    """
    file = folder / "config.json"
    config = DrafterConfig.from_dict(read_json(file), str(file))
    for size in ("hidden_size", "vocab_size"):
        if getattr(config, size) != getattr(target, size):
            raise ShapeError(
                f"The drafter in {folder} has {size} {getattr(config, size)}, but {target.name} "
                f"has {getattr(target, size)}; take a drafter that was made for this model."
            )
    return DrafterSize(
        config.hidden_size, config.exit_dim, config.num_head_rows, config.num_draft_layers
    )
