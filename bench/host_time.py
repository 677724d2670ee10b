"""Measure what the host does for a round: on a model whose arithmetic is next to nothing.

Run it with ``python -m redrafter_mlx.bench.host_time``. The sides alternate, and medians are
compared: time per round and per token of mlx-lm's generator, and the Python time from a host
read to the next ``async_eval``.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from redrafter_mlx.config import BeamShape, DrafterConfig, GenerationConfig
from redrafter_mlx.decoding import round as round_module
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import Drafter, RecurrentDrafter
from redrafter_mlx.models.target_config import TargetConfig

SETTINGS: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
PROMPT = [1, 2, 3, 4, 5]


def small_target() -> Decoder:
    """Return a random target of 32 narrow layers."""
    target = Decoder(TargetConfig.from_dict(SETTINGS), is_tied=True)
    target.update(tree_map(lambda x: mx.random.normal(x.shape) * 0.1, target.parameters()))
    mx.eval(target.parameters())
    return target


def small_drafter(target: Decoder) -> Drafter:
    """Return a random drafter for it."""
    config = DrafterConfig(hidden_size=64, vocab_size=1000, exit_dim=128, num_draft_layers=2)
    network = RecurrentDrafter(config)
    network.update(tree_map(lambda x: mx.random.normal(x.shape) * 0.1, network.parameters()))
    return Drafter(network, target)


def mlx_lm_model(target: Decoder) -> Any:
    """Return mlx-lm's model with the same weights."""
    from mlx_lm.models import llama

    model = llama.Model(llama.ModelArgs.from_dict(SETTINGS))
    weights: dict[str, mx.array] = dict(tree_flatten(target.parameters()))
    model.load_weights(list(weights.items()))
    mx.eval(model.parameters())
    return model


def mlx_lm_tokens(model: Any, count: int) -> Iterator[int]:
    """Yield tokens of mlx-lm's generator."""
    from mlx_lm.generate import generate_step

    for token, _ in generate_step(mx.array(PROMPT), model, max_tokens=count):
        yield int(token)


def seconds_per_item(items: Iterator[Any], count: int) -> float:
    """Return the time of an item, without the first."""
    next(items)
    started = time.perf_counter()
    for _ in islice(items, count):
        pass
    return (time.perf_counter() - started) / count


def our_rounds(model: LoadedModel, shape: BeamShape, count: int) -> float:
    """Return the seconds of a round."""
    config = GenerationConfig(
        max_tokens=count, beam=shape, ignore_eos=True, use_lookup=False, is_adaptive=False
    )
    stats = DecodeStats()
    for _ in decode(model, model.target.make_kv_cache(), PROMPT, config, stats):
        pass
    return stats.seconds_per_round


class PythonTime:
    """Seconds of Python from each host read to the last ``mx.async_eval`` before the next read.

    An earlier one may be the commit's, which moves rows before the pass is built.

    Attributes:
        gaps: One a pass.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.gaps: list[float] = []
        self._read_at = self._given_at = math.inf

    def note_read(self) -> None:
        """Take the time: the host has just read what the device brought."""
        if self._given_at > self._read_at:
            self.gaps.append(self._given_at - self._read_at)
        self._read_at = self._given_at = time.perf_counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notice each ``mx.async_eval``, and each read that our rounds make."""
        async_eval, unpacked = mx.async_eval, vars(round_module)["_unpacked"]

        def noticed_eval(*arrays: Any) -> None:
            self._given_at = time.perf_counter()
            async_eval(*arrays)

        def noticed_read(*values: Any) -> round_module.Outcome:
            self.note_read()
            return unpacked(*values)

        mx.async_eval, vars(round_module)["_unpacked"] = noticed_eval, noticed_read
        try:
            yield
        finally:
            mx.async_eval, vars(round_module)["_unpacked"] = async_eval, unpacked


def python_seconds(ours: LoadedModel, theirs: Any, shape: BeamShape, count: int) -> list[float]:
    """Return the medians of our Python time a round and of mlx-lm's a token."""
    our_time, their_time = PythonTime(), PythonTime()
    with our_time.watching():
        our_rounds(ours, shape, count)
    with their_time.watching():
        for _ in mlx_lm_tokens(theirs, count):
            their_time.note_read()
    return [statistics.median(side.gaps) for side in (our_time, their_time)]


def main() -> None:
    """Measure both sides in turn and show the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    target = small_target()
    ours = LoadedModel("small", None, target, small_drafter(target), None, frozenset())
    theirs = mlx_lm_model(target)
    sides: dict[str, list[float]] = {}
    for _ in range(options.trials):
        sides.setdefault("mlx-lm token", []).append(
            seconds_per_item(mlx_lm_tokens(theirs, options.tokens + 1), options.tokens - 1)
        )
        for shape in (BeamShape(1, 1), BeamShape(1, 4), BeamShape(2, 4), BeamShape(4, 5)):
            name = f"round ({shape.beam_width}, {shape.beam_length})"
            sides.setdefault(name, []).append(our_rounds(ours, shape, options.tokens))
    base = statistics.median(sides["mlx-lm token"])
    for name, values in sides.items():
        value = statistics.median(values)
        sys.stdout.write(f"{name:16} {1e3 * value:8.3f} ms  {value / base:.2f}\n")
    pairs = [
        python_seconds(ours, theirs, BeamShape(2, 4), options.tokens) for _ in range(options.trials)
    ]
    mine, other = (statistics.median(values) for values in zip(*pairs, strict=True))
    sys.stdout.write(
        f"Python from read to async_eval: a round (2, 4) {1e3 * mine:.3f} ms, a token of mlx-lm "
        f"{1e3 * other:.3f} ms: {mine / other:.2f}\n"
    )


if __name__ == "__main__":
    main()
