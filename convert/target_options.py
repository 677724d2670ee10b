"""What a user may ask of a target's conversion, and what it tells afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from redrafter_mlx.config import FLOAT_DTYPES, Quantization
from redrafter_mlx.convert.float_dtypes import MLX_DTYPES
from redrafter_mlx.errors import ConfigError


def _start(num_bytes: int, num_parameters: int) -> None:
    """Let a conversion begin."""


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """What becomes of a target on the way.

    Attributes:
        dtype: ``float16``, ``bfloat16`` or ``float32``; ``None`` takes what config.json says
            and, where it says nothing or the weights are quantised, what is stored.
        quantization: How to quantise linear layers and embedding, ``None`` for not at all.
        chat_template: Written as chat_template.jinja where the source has no template.
        on_start: Is told the bytes of the tensors and the number of weights once all that can
            be checked is, before the first tensor; may raise.
    """

    dtype: str | None = None
    quantization: Quantization | None = None
    chat_template: str | None = None
    on_start: Callable[[int, int], None] = _start

    def __post_init__(self) -> None:
        """Check the dtype."""
        if self.dtype is not None and self.dtype not in FLOAT_DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}; choose one of {', '.join(FLOAT_DTYPES)}.")

    @property
    def mlx_dtype(self) -> mx.Dtype | None:
        """The dtype asked for, ``None`` where none is."""
        return None if self.dtype is None else MLX_DTYPES[self.dtype]

    def refuse_requantizing(self, source: object) -> None:
        """Refuse to quantise weights that are quantised already.

        Raises:
            ConfigError: These options ask for it.
        """
        if self.quantization is not None:
            raise quantized_already(source)


def quantized_already(source: object) -> ConfigError:
    """Return the error to raise where quantised weights are to be quantised."""
    return ConfigError(
        f"The weights of {source} are quantised already; leave out --quantize, or take the "
        "unquantised model."
    )


AS_STORED = TargetOptions()


@dataclass(frozen=True, slots=True)
class ConvertedTarget:
    """What was written.

    Attributes:
        num_bytes: Bytes of the tensors.
        num_tensors: How many there are; a quantised weight counts three.
        notes: A line each for what was not taken over as it was.
    """

    num_bytes: int
    num_tensors: int
    notes: tuple[str, ...] = ()
