"""What `tune` found out about one model on one machine, and where it is kept."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from redrafter_mlx.config import BeamShape, build_strictly
from redrafter_mlx.decoding.pace import RoundCosts
from redrafter_mlx.errors import CheckpointError, ReDrafterError
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter
from redrafter_mlx.models.matrix import Matrix
from redrafter_mlx.weights import read_json, write_json

PROFILE_VERSION = 2


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile holds for; measured anew where any of it differs.

    Attributes:
        chip: Name of the processor, and which of MLX's back ends runs on it.
        model: The target's fingerprint.
        precision: The dtype that the target computes in, and its bits where quantised.
        drafter: Digest of the drafter's configuration and weights.
        mlx_version: Kernels change from one to the next.
    """

    chip: str
    model: str
    precision: str
    drafter: str
    mlx_version: str

    @property
    def file_name(self) -> str:
        """Name of the profile's file."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


@dataclass(frozen=True, slots=True)
class Profile:
    """The shape that measured best, and what its rounds cost.

    Attributes:
        key: What it holds for.
        shape: ``beam_length`` 1 where plain decoding was fastest.
        costs: In plain steps.
        step_seconds: A plain step.
        acceptance_by_depth: Of the widest draft that was measured.
        acceptance_by_log_prob: ``[lower bound, share accepted, drafted rows]`` for bins of
            the joint log-probability.
        version: Version of this layout.
    """

    key: ProfileKey
    shape: BeamShape
    costs: RoundCosts
    step_seconds: float
    acceptance_by_depth: tuple[float, ...]
    acceptance_by_log_prob: tuple[tuple[float, float, int], ...]
    version: int = PROFILE_VERSION


def chip_name() -> str:
    """Return the processor's name and the back end, ``Apple M2 Ultra, gpu``."""
    device = mx.default_device().type
    if device == mx.gpu:
        return f"{mx.device_info().get('device_name', 'unknown')}, gpu"
    return f"{_cpu_name()}, cpu"


def _cpu_name() -> str:
    """Return the CPU's name; Linux tells it in a file only."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def profile_key(target: Decoder, drafter: Drafter) -> ProfileKey:
    """Return what a profile of this pair holds for, here and now."""
    matrix = Matrix.of(target.model.layers[0].mlp.down_proj)
    dtype = str(target.dtype).removeprefix("mlx.core.")
    return ProfileKey(
        chip=chip_name(),
        model=target.fingerprint,
        precision=dtype if matrix.scales is None else f"{dtype}, {matrix.bits} bits",
        drafter=drafter.digest,
        mlx_version=version("mlx"),
    )


def save_profile(profile: Profile, folder: Path) -> Path:
    """Write a profile into ``folder``, over an older one; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / profile.key.file_name
    partial = path.with_suffix(".partial")
    write_json(partial, asdict(profile))
    partial.replace(path)
    return path


def find_profile(key: ProfileKey, folder: Path) -> Profile | None:
    """Return the profile for ``key``; ``None`` where there is none that can be used."""
    path = folder / key.file_name
    if not os.path.isfile(path):  # unlike Path's, false also where the folder is closed to us
        return None
    try:
        return _from_dict(read_json(path))
    except ReDrafterError:
        return None


def _from_dict(values: dict[str, Any]) -> Profile:
    if values.get("version") != PROFILE_VERSION:
        raise CheckpointError(f"The profile has version {values.get('version')!r}; tune again.")
    try:
        bins = tuple(
            (float(low), float(share), int(n)) for low, share, n in values["acceptance_by_log_prob"]
        )
        return Profile(
            key=build_strictly(ProfileKey, values["key"]),
            shape=build_strictly(BeamShape, values["shape"]),
            costs=_costs_from_dict(values["costs"]),
            step_seconds=float(values["step_seconds"]),
            acceptance_by_depth=tuple(map(float, values["acceptance_by_depth"])),
            acceptance_by_log_prob=bins,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"The profile cannot be read ({error}); tune again.") from error


def _costs_from_dict(values: dict[str, Any]) -> RoundCosts:
    costs = RoundCosts(
        verify=tuple(map(float, values["verify"])),
        draft_step=float(values["draft_step"]),
        overhead=float(values["overhead"]),
        context=int(values["context"]),
        growth=tuple(map(float, values["growth"])),
    )
    if not _are_possible(costs):
        raise ValueError(f"costs are {values!r:.80}")
    return costs


def _are_possible(costs: RoundCosts) -> bool:
    """Whether no cost is negative, infinite or no number, and more rows never cost less."""
    verify, growth = costs.verify, costs.growth
    parts = (*verify, *growth, costs.draft_step, costs.overhead, costs.context)
    return (
        all(map(math.isfinite, parts))
        and min(parts) >= 0
        and len(verify) >= 2
        and verify[0] > 0
        and len(growth) in (0, len(verify))
        and all(list(rows) == sorted(rows) for rows in (verify, growth))
    )
