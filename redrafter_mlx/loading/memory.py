"""What a model needs of the machine's memory, known before its weights are read."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.errors import CheckpointError, ReDrafterError
from redrafter_mlx.loading.modules import compute_dtype
from redrafter_mlx.loading.target import read_target
from redrafter_mlx.models.packing import dequantized
from redrafter_mlx.models.target_config import TargetConfig
from redrafter_mlx.sizes import total_memory_bytes
from redrafter_mlx.weights import load_tensors, read_json

KV_CACHE_TOKENS = 4096
# Of a weight: 4 bits, and for each group of 64 a scale and a bias of 16.
_FOUR_BITS_BYTES = (4 + 2 * 16 / 64) / 8


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a model fills while it answers.

    Attributes:
        weight_bytes: The target's weights as they lie in memory.
        kv_cache_bytes: Keys and values of ``num_cached_tokens``.
        drafter_bytes: The drafter's weights, likewise; 0 without one.
        num_cached_tokens: ``KV_CACHE_TOKENS``, or the model's context where it is shorter.
        four_bit_bytes: The target's weights at 4 bits; ``None`` where quantising does not
            help, since they are quantised already or would be multiplied out.
    """

    weight_bytes: int
    kv_cache_bytes: int
    drafter_bytes: int
    num_cached_tokens: int
    four_bit_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.kv_cache_bytes + self.drafter_bytes

    @property
    def sentence(self) -> str:
        """The figures, to be put behind a model's name."""
        parts = [f"weights {_gib(self.weight_bytes)}"]
        parts.append(f"KV cache of {self.num_cached_tokens} tokens {_gib(self.kv_cache_bytes)}")
        if self.drafter_bytes:
            parts.append(f"drafter {_gib(self.drafter_bytes)}")
        return f"needs about {_gib(self.total_bytes)} GiB of memory ({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """What there is.

    Attributes:
        total_bytes: The machine's memory.
        recommended_bytes: What Metal recommends to use of it, ``None`` on other devices.
    """

    total_bytes: int
    recommended_bytes: int | None

    @classmethod
    def of_this_machine(cls) -> MachineMemory:
        """Ask the system and MLX."""
        return cls(total_memory_bytes(), recommended_bytes())


def recommended_bytes() -> int | None:
    """Return the most memory that Metal recommends to use, ``None`` on other devices."""
    size = mx.device_info().get("max_recommended_working_set_size")
    return size if isinstance(size, int) and size > 0 else None


def memory_need(folder: Path, drafter_folder: Path | None, dtype: str) -> MemoryNeed:
    """Return what a model and its drafter need, from the headers of their files alone.

    Args:
        folder: The model's.
        drafter_folder: The drafter's; one that cannot be read counts nothing.
        dtype: See ``compute_dtype``.

    Raises:
        CheckpointError: The model's files cannot be used.
    """
    target = read_target(folder, dtype)
    tensors = target.tensors.values()
    float_bytes = max((tensor.dtype.size for tensor in tensors if _is_float(tensor)), default=4)
    num_tokens = min(target.config.max_positions, KV_CACHE_TOKENS)
    can_shrink = compute_dtype(dtype) is None and not target.quantization
    return MemoryNeed(
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        kv_cache_bytes=num_tokens * _numbers_per_token(target.config) * float_bytes,
        drafter_bytes=_drafter_bytes(drafter_folder, dtype, float_bytes),
        num_cached_tokens=num_tokens,
        four_bit_bytes=sum(map(_four_bit_bytes, tensors)) if can_shrink else None,
    )


def check_memory(name: str, need: MemoryNeed, machine: MachineMemory) -> tuple[str, ...]:
    """Return a notice where a model will be slow for its size.

    Raises:
        CheckpointError: It is larger than the machine's memory.
    """
    if need.total_bytes > machine.total_bytes:
        raise CheckpointError(
            f"{name} {need.sentence} and this machine has {_gib(machine.total_bytes)}; "
            f"{_remedy(name, need, machine.total_bytes)}."
        )
    limit = machine.recommended_bytes
    if limit is None or need.total_bytes <= limit:
        return ()
    return (
        f"{name} {need.sentence}, more than the {_gib(limit)} that the GPU is recommended to "
        f"use, so it may be slow: {_remedy(name, need, limit)}.",
    )


def _remedy(name: str, need: MemoryNeed, most_bytes: int) -> str:
    if need.four_bit_bytes is None:
        return "choose a smaller model"
    if need.total_bytes - need.weight_bytes + need.four_bit_bytes > most_bytes:
        return "choose a smaller model: at 4 bits a weight it is too large, too"
    command = f"redrafter-mlx chat --model {shlex.quote(name)} --quantize 4"
    return f"run {command}, or choose a smaller model"


def _drafter_bytes(folder: Path | None, dtype: str, float_bytes: int) -> int:
    """Return what a drafter's weights fill; its floats take the dtype of the target's."""
    if folder is None:
        return 0
    try:
        config = DrafterConfig.from_dict(read_json(folder / "config.json"))
        tensors, wanted = load_tensors(folder), compute_dtype(dtype)
        if wanted is not None:
            settings = asdict(config.quantization) if config.quantization else {}
            tensors = dequantized(tensors, settings, wanted)
    except ReDrafterError:
        return 0  # loading it says what is wrong
    return sum(
        tensor.size * float_bytes if _is_float(tensor) else tensor.nbytes
        for tensor in tensors.values()
    )


def _numbers_per_token(config: TargetConfig) -> int:
    """Return how many keys and values a token has in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim


def _four_bit_bytes(tensor: mx.array) -> int:
    return math.ceil(tensor.size * _FOUR_BITS_BYTES) if tensor.ndim == 2 else tensor.nbytes


def _is_float(tensor: mx.array) -> bool:
    return mx.issubdtype(tensor.dtype, mx.floating)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f}"
