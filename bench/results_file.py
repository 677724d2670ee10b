"""The file that a bench leaves behind, read back."""

from __future__ import annotations

import json
from pathlib import Path

from redrafter_mlx.bench.results import BenchResults, from_json
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import read_json

RESULTS_FILE = "results.json"


def read_results(path: Path) -> BenchResults:
    """Return what a bench found.

    Args:
        path: Its results.json, or the folder that holds it.

    Raises:
        CheckpointError: There is no such file, or it holds no results of this version.
    """
    file = path / RESULTS_FILE if path.is_dir() else path
    values = read_json(file)
    if "schema_version" not in values:
        raise CheckpointError(
            f"{file} holds no results of a bench: it has no schema_version; give a {RESULTS_FILE}."
        )
    try:
        return from_json(json.dumps(values))
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error
