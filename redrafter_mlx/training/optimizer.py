"""AdamW in float32 with a warm-up, a cosine and gradients of bounded length."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from redrafter_mlx.training.settings import TrainingConfig

Arrays = dict[str, mx.array]

_BETAS = (0.9, 0.98)
_EPSILON = 1e-8


def learning_rate(step: int, num_steps: int, config: TrainingConfig) -> float:
    """Return the rate of a step, counted from 0: it rises linearly, then falls as a cosine."""
    num_warmup = max(1, round(config.warmup * num_steps))
    if step < num_warmup:
        return config.learning_rate * (step + 1) / num_warmup
    share = (step - num_warmup) / max(1, num_steps - num_warmup)
    height = 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
    return config.learning_rate * (config.final_rate + (1.0 - config.final_rate) * height)


def cut_gradients(gradients: Arrays, max_norm: float) -> tuple[Arrays, mx.array]:
    """Return the gradients, scaled down where together they are longer than ``max_norm``.

    Returns:
        The gradients, and how long they were.
    """
    # Row by row: one sum over millions of entries in float32 loses the small ones.
    squares = [mx.square(part).sum(axis=-1).sum() for part in gradients.values()]
    norm = mx.sqrt(sum(squares, mx.array(0.0)))
    scale = mx.minimum(1.0, max_norm / (norm + 1e-12))
    return {name: part * scale for name, part in gradients.items()}, norm


class AdamW:
    """Adam with decoupled weight decay on matrices.

    Attributes:
        means: Running mean of each gradient; ``squares``: of its square.

    Source:
        arXiv:1711.05101, algorithm 2, with bias correction.
    """

    def __init__(self, weights: Arrays, weight_decay: float) -> None:
        """Begin with no memory of a gradient."""
        self._weight_decay = weight_decay
        self.means = {name: mx.zeros(part.shape) for name, part in weights.items()}
        self.squares = {name: mx.zeros(part.shape) for name, part in weights.items()}

    def update(self, weights: Arrays, gradients: Arrays, rate: float, step: int) -> Arrays:
        """Return the weights after a step, counted from 0."""
        fix_mean, fix_square = (1.0 - beta ** (step + 1) for beta in _BETAS)
        updated = {}
        for name, gradient in gradients.items():
            mean = _BETAS[0] * self.means[name] + (1.0 - _BETAS[0]) * gradient
            square = _BETAS[1] * self.squares[name] + (1.0 - _BETAS[1]) * mx.square(gradient)
            self.means[name], self.squares[name] = mean, square
            move = (mean / fix_mean) / (mx.sqrt(square / fix_square) + _EPSILON)
            weight = weights[name]
            if weight.ndim > 1:
                move = move + self._weight_decay * weight
            updated[name] = weight - rate * move
        return updated


def trainable(network: nn.Module) -> Arrays:
    """Return a network's trainable tensors by name."""
    return dict(tree_flatten(network.trainable_parameters()))


def assign(network: nn.Module, weights: Arrays) -> None:
    """Put tensors into a network by name."""
    network.update(tree_unflatten(list(weights.items())))
