"""Where a bench runs, and what it runs: machine, packages, commit, weights."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

import redrafter_mlx
from redrafter_mlx.bench.results import Machine, WeightsRecord
from redrafter_mlx.decoding.profile import chip_name
from redrafter_mlx.loading.hub import find_drafter
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.matrix import Matrix
from redrafter_mlx.sizes import total_memory_bytes

_PACKAGES = ("mlx", "mlx-lm", "transformers", "numpy")
_GIT_SECONDS = 10
_MAPPED_FILES = Path("/proc/self/maps")


def this_machine() -> Machine:
    """Return what this process runs on."""
    chip, _, device = chip_name().rpartition(", ")
    return Machine(
        chip=chip,
        memory_bytes=total_memory_bytes(),
        num_cpus=os.cpu_count() or 1,
        system=_system(),
        device=device,
        packages=_packages(),
        git_commit=git_commit(Path(redrafter_mlx.__file__).resolve().parents[1]),
    )


def describe_target(model: LoadedModel) -> WeightsRecord:
    """Return what tells one target from another."""
    target = model.target
    matrix = Matrix.of(target.model.layers[0].mlp.down_proj)
    return WeightsRecord(
        name=model.name,
        dtype=_dtype_name(target.model.norm.weight.dtype),
        bits=None if matrix.scales is None else matrix.bits,
        bytes_read=_bytes_read(target),
        fingerprint=target.fingerprint,
    )


def describe_drafter(model: LoadedModel, folder: Path | None = None) -> WeightsRecord | None:
    """Return what tells one drafter from another, ``None`` without one.

    Args:
        model: With the drafter.
        folder: Where it is; by default where it was found.
    """
    if model.drafter is None:
        return None
    quantization = model.drafter.config.quantization
    return WeightsRecord(
        name=_drafter_name(model, folder),
        dtype=_dtype_name(model.drafter.dtype),
        bits=quantization.bits if quantization else None,
        bytes_read=model.drafter.bytes_read,
        fingerprint=model.drafter.digest,
    )


def git_commit(folder: Path) -> str | None:
    """Return the commit of a checkout, with ``-dirty`` where files differ from it."""
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, or a checkout that it does not trust
        return None
    return found.stdout.strip() or None


def _system() -> str:
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return " ".join(filter(None, [name, platform.system(), platform.release()]))


def _packages() -> dict[str, str]:
    found = {"redrafter-mlx": redrafter_mlx.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    blas = _preloaded_blas()
    return found | ({"blas": blas} if blas else {})


def _preloaded_blas() -> str | None:
    """Return the BLAS that took the place of MLX's own on Linux, and its threads."""
    try:
        mapped = _MAPPED_FILES.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if "/libopenblas.so" not in mapped:
        return None
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "all")
    return f"OpenBLAS with {threads} thread{'s' if threads != '1' else ''}"


def _dtype_name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _bytes_read(target: Decoder) -> int:
    """Return the bytes of a pass's weights: of an untied embedding only a few rows are read."""
    parameters: dict[str, mx.array] = dict(tree_flatten(target.parameters()))
    skipped = () if target.is_tied else ("model.embed_tokens.",)
    return sum(value.nbytes for name, value in parameters.items() if not name.startswith(skipped))


def _drafter_name(model: LoadedModel, folder: Path | None) -> str:
    if folder is None and model.folder is not None:
        folder = find_drafter(model.name, model.folder)
    return "/".join(folder.resolve().parts[-2:]) if folder else "made in memory"
