"""Runs the jobs of a conversion in memory."""

import math

import mlx.core as mx
import numpy as np

from redrafter_mlx.convert.tensor_job import TensorJob

BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


def run_job(job: TensorJob) -> dict[str, mx.array]:
    """Return the arrays that a job makes, their pieces joined."""
    parts: dict[str, list[bytes]] = {name: [] for name in job.entries}
    for piece in job.pieces():
        for name, data in piece.items():
            assert data.flags.c_contiguous, "a file takes bytes that lie together"
            parts[name].append(data.tobytes())
    arrays = {}
    for name, entry in job.entries.items():
        joined = b"".join(parts[name])
        assert len(joined) == math.prod(entry.shape) * entry.dtype.size
        bits = mx.array(np.frombuffer(joined, f"<u{entry.dtype.size}").reshape(entry.shape))
        arrays[name] = bits.view(entry.dtype)
    return arrays
