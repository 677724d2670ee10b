"""A folder in the cache that stands for a converted model."""

from __future__ import annotations

from pathlib import Path

from redrafter_mlx.loading.converted import Origin, conversion_folder
from redrafter_mlx.weights import write_json


def write_conversion(origin: Origin, num_bytes: int = 3000) -> Path:
    """Write the folder, with so many bytes of weights, and return it."""
    folder = conversion_folder(origin)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {})
    write_json(folder / "origin.json", origin.to_dict())
    (folder / "model.safetensors").write_bytes(bytes(num_bytes))
    return folder
