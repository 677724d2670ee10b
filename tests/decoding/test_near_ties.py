"""Random trees in every precision: the text is plain decoding's, up to near-ties below float32.

A pass over several rows may use other kernels than a pass over one, which round otherwise. In
float32 no text may differ for it. Below, two tokens may change places that the same weights in
float32 find nearly as good: no farther apart than twice the error that plain decoding itself
makes in that precision. On MLX's CPU back end half precision differs nowhere, whatever the rows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from redrafter_mlx.config import SamplingConfig
from redrafter_mlx.decoding.anatomy import Stopwatch
from redrafter_mlx.decoding.prefill import prefill
from redrafter_mlx.decoding.round import Engine, Flight
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.decoding.tree import DraftTree
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.matrix import Matrix
from tests.toy import randomize, toy_target

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
NUM_TOKENS, MAX_ROWS, MAX_DEPTH = 100, 64, 8
# Dtype, and bits where quantised.
PRECISIONS = {
    "float32": (mx.float32, None),
    "float32, 4 bits": (mx.float32, 4),
    "float16": (mx.float16, None),
    "bfloat16": (mx.bfloat16, None),
    "float16, 8 bits": (mx.float16, 8),
    "bfloat16, 4 bits": (mx.bfloat16, 4),
}


@dataclass
class Tally:
    """What was compared.

    Attributes:
        num_tokens: Tokens of rounds,
        num_accepted: drafted ones among them.
        gaps: At each difference, between the two tokens' logits in float32.
        wide_gaps: Those wider than twice the largest error of plain decoding in that text.
        error: Largest of plain decoding's logits against those in float32.
    """

    num_tokens: int = 0
    num_accepted: int = 0
    gaps: list[float] = field(default_factory=list)
    wide_gaps: list[float] = field(default_factory=list)
    error: float = 0.0

    def add_gap(self, gap: float, error: float) -> None:
        self.gaps.append(gap)
        self.wide_gaps += [gap] if gap > 2 * error else []


def target_in(precision: str, seed: int) -> Decoder:
    dtype, bits = PRECISIONS[precision]
    target = toy_target(seed, **SIZES)
    randomize(target, seed)
    target.set_dtype(dtype)
    if bits is not None:
        nn.quantize(target, group_size=32, bits=bits)
    return target


def in_float32(target: Decoder) -> Decoder:
    """Return the same weights, computed with in float32."""
    twin = Decoder(target.config, is_tied=False)
    weights = [
        (f"{name}.weight", Matrix.of(module).dense().astype(mx.float32))
        for name, module in target.named_modules()
        if "weight" in module
    ]
    twin.load_weights(weights, strict=True)
    return twin


def random_tree(rng: np.random.Generator, text: list[int]) -> DraftTree:
    """Return up to 64 rows below the text's first token; half go on as it does, some twice."""
    tokens, parents, depths = [text[0]], [0], [0]
    for row in range(1, int(rng.integers(1, MAX_ROWS + 1))):
        parent = int(rng.integers(max(row - 6, 0), row))
        if depths[parent] == min(MAX_DEPTH, len(text)) - 1:
            parent = 0
        depth = depths[parent] + 1
        is_right = depth < len(text) and rng.random() < 0.5
        tokens.append(text[depth] if is_right else int(rng.integers(0, 50)))
        parents.append(parent)
        depths.append(depth)
    return DraftTree.from_rows(
        np.array(tokens, np.int32), np.array(parents, np.int32), np.zeros(len(tokens), np.float32)
    )


def emitted(engine: Engine, tree: DraftTree) -> list[int]:
    """Verify a tree; return its round's tokens."""
    outcome = Flight(engine, tree, None, Stopwatch(DecodeStats(), is_running=False)).land()
    return [*tree.tokens[outcome.path[1:]].tolist(), outcome.next_token]


def plain_text(engine: Engine, prompt: list[int]) -> tuple[list[int], np.ndarray]:
    """Return the ids that plain decoding writes, and (tokens, vocab_size) its logits."""
    hidden = prefill(engine.target, engine.kv_cache, prompt)
    assert hidden is not None
    tips = [engine.tip(hidden)]
    while len(tips) < NUM_TOKENS:
        tips.append(engine.step(tips[-1]))
    logits = [engine.target.logits(tip.hidden).astype(mx.float32) for tip in tips]
    return [int(np.array(tip.next_token)[0]) for tip in tips], np.array(mx.concatenate(logits))


def compare(target: Decoder, seed: int, tally: Tally) -> None:
    """Go along a text of plain decoding by random trees; after a difference on as the text does."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 50, int(rng.integers(1, 40))).tolist()
    engine = Engine(target, None, target.make_kv_cache(), SamplingConfig())
    text, logits = plain_text(engine, prompt)
    twin = in_float32(target)
    exact_hidden = twin(mx.array([*prompt, *text[:-1]]), twin.make_kv_cache())
    exact = np.array(twin.logits(exact_hidden[len(prompt) - 1 :]))
    error = float(np.abs(logits - exact).max())
    tally.error = max(tally.error, error)
    engine.kv_cache.rewind(len(prompt))
    place = 1
    while place < NUM_TOKENS:
        drafted = emitted(engine, random_tree(rng, text[place - 1 :]))
        for num_right, (token, expected) in enumerate(zip(drafted, text[place:], strict=False)):
            if token != expected:
                row = exact[place + num_right]
                tally.add_gap(float(abs(row[token] - row[expected])), error)
                drafted = drafted[: num_right + 1]
                break
        place += len(drafted)
        tally.num_tokens += len(drafted)
        tally.num_accepted += len(drafted) - 1
        engine.kv_cache.rewind(len(prompt) + place - 1)


@pytest.mark.parametrize("seed", range(3))
def test_random_trees_never_change_the_text_in_float32(seed: int) -> None:
    """Law: of up to 64 rows and 8 levels, some of them duplicates."""
    tally = Tally()
    compare(target_in("float32", seed), seed, tally)
    assert tally.gaps == []
    assert tally.num_accepted > tally.num_tokens / 3


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_random_trees_change_the_text_at_near_ties_alone(precision: str) -> None:
    tally = Tally()
    for seed in range(20):
        compare(target_in(precision, seed), seed, tally)
    # For those who run it with -s.
    sys.stdout.write(
        f"\n{precision}: {len(tally.gaps)} differences in {tally.num_tokens} tokens, "
        f"{tally.num_accepted} of them drafted; largest gap {max(tally.gaps, default=0.0):.2g}, "
        f"largest error of plain decoding {tally.error:.2g}"
    )
    if precision.startswith("float32"):
        assert tally.gaps == []
    assert tally.wide_gaps == []


def test_a_kernel_that_rounds_otherwise_for_several_rows_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: errors up to 0.05 part tokens up to 0.1 apart, and this file's check counts them."""
    exact_logits, rng = Decoder.logits, np.random.default_rng(0)

    def rounded(target: Decoder, hidden: mx.array) -> mx.array:
        logits = exact_logits(target, hidden)
        is_verified = 1 < hidden.shape[0] <= MAX_ROWS
        return logits + mx.array(rng.uniform(-0.05, 0.05, logits.shape)) * is_verified

    monkeypatch.setattr(Decoder, "logits", rounded)
    tally = Tally()
    for seed in range(3):
        compare(target_in("float32", seed), seed, tally)
    assert tally.wide_gaps == tally.gaps != []
    assert max(tally.gaps) <= 0.1 + 1e-3
