"""The floating dtypes of MLX by the names that a user gives them."""

from __future__ import annotations

import mlx.core as mx

from redrafter_mlx.config import FLOAT_DTYPES

MLX_DTYPES: dict[str, mx.Dtype] = {name: getattr(mx, name) for name in FLOAT_DTYPES}
