"""How close the choice of a token was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from redrafter_mlx.config import SamplingConfig
from redrafter_mlx.decoding.prefill import prefill
from redrafter_mlx.decoding.sampling import scores
from redrafter_mlx.models.decoder import Decoder


def choice_margin(target: Decoder, prefix: Sequence[int], sampling: SamplingConfig) -> float | None:
    """Return the gap between the two best scores for the token behind ``prefix``.

    They are logits, or tempered and noisy log-probabilities where the text is sampled; there
    is no gap where the filters leave one token.
    """
    hidden = prefill(target, target.make_kv_cache(), prefix)
    assert hidden is not None
    row = np.array(scores(target.logits(hidden), sampling, len(prefix) - 1))[0]
    second, best = np.sort(row)[-2:]
    return float(best - second) if np.isfinite(second) else None
