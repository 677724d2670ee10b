"""Apple's chips: what Apple says of their memory and GPU, and what MLX calls them."""

from __future__ import annotations

from dataclasses import dataclass

from redrafter_mlx.bench.names import letters
from redrafter_mlx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip with its largest GPU.

    Attributes:
        name: Apple's name without "Apple".
        generation: What MLX calls ``arch_gen``: 13 is M1, 14 M2, and so on.
        family: The last letter of MLX's architecture name: g base and Pro, s Max, d Ultra.
        gpu_cores: Cores of the GPU that the two figures below are for.
        bandwidth_gb_per_second: Memory bandwidth.
        fp16_tflops: Peak of the GPU's own units, 1e12 operations a second; the units of M1 to
            M5 multiply float16 at float32's rate. M5's matrix units are left out.

    Source:
        bandwidth: Apple's technical specifications. fp16_tflops: Apple's press releases for M1
        and M2 (2.6, 5.2, 10.4, 20.8; 3.6, 6.8, 13.6, 27.2); from M3 on Apple gives none, so
        cores x 128 units x 2 operations x clock (1.38 GHz for M3, 1.58 GHz for M4 and M5).
    """

    name: str
    generation: int
    family: str
    gpu_cores: int
    bandwidth_gb_per_second: float
    fp16_tflops: float


CHIPS = (
    Chip("M1", 13, "g", 8, 68.25, 2.6),
    Chip("M1 Pro", 13, "g", 16, 200.0, 5.2),
    Chip("M1 Max", 13, "s", 32, 400.0, 10.4),
    Chip("M1 Ultra", 13, "d", 64, 800.0, 20.8),
    Chip("M2", 14, "g", 10, 100.0, 3.6),
    Chip("M2 Pro", 14, "g", 19, 200.0, 6.8),
    Chip("M2 Max", 14, "s", 38, 400.0, 13.6),
    Chip("M2 Ultra", 14, "d", 76, 800.0, 27.2),
    Chip("M3", 15, "g", 10, 100.0, 3.5),
    Chip("M3 Pro", 15, "g", 18, 150.0, 6.4),
    Chip("M3 Max", 15, "s", 40, 400.0, 14.1),
    Chip("M3 Ultra", 15, "d", 80, 819.0, 28.3),
    Chip("M4", 16, "g", 10, 120.0, 4.0),
    Chip("M4 Pro", 16, "g", 20, 273.0, 8.1),
    Chip("M4 Max", 16, "s", 40, 546.0, 16.2),
    Chip("M5", 17, "g", 10, 153.0, 4.0),
)


def find_chip(name: str) -> Chip:
    """Return the chip that a name means: "M2 Ultra", "Apple M2 Ultra", "m2-ultra" or "m2ultra".

    Raises:
        ConfigError: No chip is called so.
    """
    wanted = letters(name).removeprefix("apple")
    for chip in CHIPS:
        if letters(chip.name) == wanted:
            return chip
    names = ", ".join(chip.name for chip in CHIPS)
    raise ConfigError(f"There is no chip {name!r}; choose one of: {names}.")
