"""The training step of ``redrafter_mlx.training`` written plainly in PyTorch, without MLX.

Run by ``redrafter_mlx.bench.training_speed`` as a program: PROBLEM.npz THREADS.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, Any]


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def loss(weights: Tensors, head: Any, batch: Tensors, decay: float) -> Any:
    """Return the weighted mean KL over the positions and depths that lie in the answers.

    Args:
        weights: The drafter's, under Apple's names; two residual blocks, a tied head and
            exit_dim == hidden_size.
        head: (vocab_size, hidden_size), embedding and output head of the target.
        batch: ``hidden`` (chunks, rows, hidden_size) and ``tokens`` (chunks, rows), rows
            being the positions and the depths behind them; ``num_rows`` (chunks,), those
            that hold something; ``depths``.
        decay: Weight of a depth over that of the one before it.
    """
    import torch
    from torch.nn import functional

    hidden, depths = batch["hidden"], batch["depths"]
    positions = hidden.shape[1] - depths
    with torch.no_grad():
        taught = functional.log_softmax(hidden[:, 1:] @ head.T, dim=-1)
        probs = taught.exp()
        negative_entropy = (probs * taught).sum(dim=-1)
    read = functional.linear(head[batch["tokens"]], weights["rnn_w.weight"])
    width = hidden.shape[-1]
    of_hidden, of_state = weights["input_proj.weight"].split(width, dim=1)
    known = functional.linear(hidden[:, :positions], of_hidden, weights["input_proj.bias"])
    state = torch.zeros(hidden.shape[0], positions, width)
    ahead = torch.arange(1, positions + 1)
    total: Any = 0.0
    weight: Any = 0.0
    for depth in range(depths):
        past = functional.linear(state, weights["rnn_u.weight"], weights["rnn_u.bias"])
        state = functional.silu(read[:, depth : depth + positions] + past)
        x = known + functional.linear(state, of_state)
        for block in ("lm_head.0.linear", "lm_head.1.linear"):
            inner = functional.linear(x, weights[f"{block}.weight"], weights[f"{block}.bias"])
            x = x + functional.silu(inner)
        drafted = functional.log_softmax(x @ head.T, dim=-1)
        rows = slice(depth, depth + positions)
        losses = negative_entropy[:, rows] - (probs[:, rows] * drafted).sum(dim=-1)
        counts = decay**depth * (ahead + depth < batch["num_rows"][:, None])
        total, weight = total + (counts * losses).sum(), weight + counts.sum()
    return total / weight


def train(problem: Any) -> tuple[list[float], list[float]]:
    """Take a step with each batch; return the losses and the seconds of each."""
    import torch

    weights = {
        name.removeprefix("weight/"): torch.tensor(problem[name]).requires_grad_()
        for name in problem.files
        if name.startswith("weight/")
    }
    head, depths = torch.tensor(problem["head"]), int(problem["depths"])
    groups = [
        {"params": [w for w in weights.values() if w.ndim > 1]},
        {"params": [w for w in weights.values() if w.ndim == 1], "weight_decay": 0.0},
    ]
    decay = float(problem["weight_decay"])
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8, weight_decay=decay)
    losses, seconds = [], []
    names = ("hidden", "tokens", "num_rows")
    for *arrays, rate in zip(*(problem[name] for name in (*names, "rates")), strict=True):
        started = time.perf_counter()
        batch = dict(zip(names, map(torch.tensor, arrays), strict=True))
        batch |= {"hidden": batch["hidden"].float(), "depths": depths}
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        optimizer.zero_grad()
        found = loss(weights, head, batch, float(problem["depth_decay"]))
        found.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), float(problem["max_norm"]))
        optimizer.step()
        losses.append(float(found))
        seconds.append(time.perf_counter() - started)
    return losses, seconds


def main() -> None:
    """Train on a problem and print what it took."""
    import torch

    path, threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    with np.load(path, allow_pickle=False) as problem:
        losses, seconds = train(problem)
    found = {"losses": losses, "seconds": seconds, "peak_bytes": peak_bytes()}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
