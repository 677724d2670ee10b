"""The matrices of targets and drafters: what one pass reads and multiplies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from redrafter_mlx.bench.names import letters
from redrafter_mlx.errors import ConfigError

FULL_BITS = 16
QUANTISED_BITS = (2, 3, 4, 6, 8)
# MLX's affine mode: one float16 scale and one float16 bias for 64 weights.
_GROUP_BITS = 32 / 64
_BYTES_PER_HALF = 2


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix, ``count`` times in a pass, ``bits`` wide (16: float16)."""

    inputs: int
    outputs: int
    count: int
    bits: int

    @property
    def bytes_each(self) -> float:
        """Bytes of one such matrix, scales and biases included."""
        width = self.bits if self.bits == FULL_BITS else self.bits + _GROUP_BITS
        return self.inputs * self.outputs * width / 8

    @property
    def sliced(self) -> Matrix:
        """The same, in float16 in slices of no more outputs than inputs, which split-K takes."""
        if self.bits != FULL_BITS:
            return self
        slices = ceil(self.outputs / self.inputs)
        return replace(self, outputs=ceil(self.outputs / slices), count=self.count * slices)


def check_bits(bits: int) -> None:
    """Raise ConfigError unless MLX stores weights of this many bits."""
    if bits != FULL_BITS and bits not in QUANTISED_BITS:
        choices = ", ".join(str(choice) for choice in (*QUANTISED_BITS, FULL_BITS))
        raise ConfigError(f"bits is {bits}; choose one of: {choices}.")


@dataclass(frozen=True, slots=True)
class TargetSize:
    """A target of the Llama family, by the names of its config.json; ``bits`` 16 is float16."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    bits: int = FULL_BITS

    def __post_init__(self) -> None:
        """Check the bits."""
        check_bits(self.bits)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Every matrix that a pass reads; the embedding is a look-up and left out."""
        hidden, layers, bits = self.hidden_size, self.num_layers, self.bits
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return (
            Matrix(hidden, heads, layers, bits),
            Matrix(hidden, kv_heads, 2 * layers, bits),
            Matrix(heads, hidden, layers, bits),
            Matrix(hidden, self.intermediate_size, 2 * layers, bits),
            Matrix(self.intermediate_size, hidden, layers, bits),
            Matrix(hidden, self.vocab_size, 1, bits),
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the float16 keys and values of one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * _BYTES_PER_HALF


@dataclass(frozen=True, slots=True)
class DrafterSize:
    """A recurrent drafter; ``vocab_size`` is its draft vocabulary's, ``bits`` 16 is float16."""

    hidden_size: int
    exit_dim: int
    vocab_size: int
    num_blocks: int = 2
    bits: int = FULL_BITS

    def __post_init__(self) -> None:
        """Check the bits."""
        check_bits(self.bits)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Every matrix that one draft step reads."""
        hidden, exit_dim, bits = self.hidden_size, self.exit_dim, self.bits
        projection = () if exit_dim == 2 * hidden else (Matrix(2 * hidden, exit_dim, 1, bits),)
        return (
            Matrix(hidden, hidden, 2, bits),
            *projection,
            Matrix(exit_dim, exit_dim, self.num_blocks, bits),
            Matrix(exit_dim, self.vocab_size, 1, bits),
        )


def weight_bytes(matrices: tuple[Matrix, ...]) -> float:
    """Return the bytes of all matrices, each counted as often as it occurs."""
    return sum(matrix.bytes_each * matrix.count for matrix in matrices)


# Source: each model's config.json.
TARGETS = (
    TargetSize("vicuna-7b", 4096, 11008, 32, 32, 32, 128, 32000),
    TargetSize("vicuna-13b", 5120, 13824, 40, 40, 40, 128, 32000),
    TargetSize("vicuna-33b", 6656, 17920, 60, 52, 52, 128, 32000),
    TargetSize("smollm2-135m", 576, 1536, 30, 9, 3, 64, 49152),
    TargetSize("llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256),
    TargetSize("llama-3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256),
    TargetSize("llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256),
    TargetSize("llama-3.3-70b", 8192, 28672, 80, 64, 8, 128, 128256),
)


def find_target(name: str) -> TargetSize:
    """Return the sizes of a target that is known by name, in float16.

    Case, spaces, hyphens and underscores do not matter: "Vicuna 7B" is vicuna-7b.

    Raises:
        ConfigError: No target is called so.
    """
    for target in TARGETS:
        if letters(target.name) == letters(name):
            return target
    names = ", ".join(target.name for target in TARGETS)
    raise ConfigError(
        f"The sizes of {name!r} are not known; choose one of: {names}, or a model's folder."
    )


def apple_drafter(target: TargetSize, bits: int = FULL_BITS) -> DrafterSize:
    """Return the drafter of Apple's recipe: two blocks, exit_dim twice the hidden size."""
    return DrafterSize(target.hidden_size, 2 * target.hidden_size, target.vocab_size, bits=bits)
