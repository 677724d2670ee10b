"""Speed beside mlx-lm's, in one run on the same weights, the sides taking turns.

Run it as ``python -m redrafter_mlx.bench.side_by_side --questions FILE --out RESULTS.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from redrafter_mlx.bench.peer import Timing, load_peer, time_ours, time_peer
from redrafter_mlx.bench.questions import read_questions
from redrafter_mlx.config import DEFAULT_MODEL, PLAIN_BEAM_SHAPE, BeamShape, GenerationConfig
from redrafter_mlx.generation import chat_prompt
from redrafter_mlx.loading.model import LoadedModel, load

PREFILL_TOKENS = 512
PREFILL_TRIALS = 7


def measure_prefill(model: LoadedModel, peer: Any, text: list[int]) -> dict[str, float]:
    """Return the median seconds to the first token behind 512 tokens, ours and mlx-lm's."""
    prompt = (text * PREFILL_TOKENS)[:PREFILL_TOKENS]
    config = GenerationConfig(max_tokens=1, beam=PLAIN_BEAM_SHAPE)
    ours, theirs = [], []
    for _ in range(PREFILL_TRIALS + 1):
        ours.append(time_ours(model, prompt, config).prefill_seconds)
        theirs.append(time_peer(peer, prompt, 1).prefill_seconds)
    # The first of each warms up.
    ours_median, theirs_median = statistics.median(ours[1:]), statistics.median(theirs[1:])
    return {
        "ours_seconds": ours_median,
        "mlx_lm_seconds": theirs_median,
        "speed_ratio": theirs_median / ours_median,
    }


def measure_question(
    model: LoadedModel, peer: Any, prompt: list[int], runs: dict[str, GenerationConfig | None]
) -> dict[str, Timing]:
    """Time one prompt by each configuration, one after the other; ``None`` is mlx-lm."""
    max_tokens = next(config.max_tokens for config in runs.values() if config)
    return {
        name: time_ours(model, prompt, config) if config else time_peer(peer, prompt, max_tokens)
        for name, config in runs.items()
    }


def rotated(runs: dict[str, GenerationConfig | None], start: int) -> dict[str, Any]:
    """Return the configurations in turn from another one on, so that none is always first."""
    names = list(runs)
    start %= len(names)
    return {name: runs[name] for name in names[start:] + names[:start]}


def summarize(rows: list[dict[str, Timing]]) -> list[str]:
    """Return a line a configuration: tokens/s, and the ratio to mlx-lm over the prompts."""
    lines = []
    for name in rows[0]:
        ratios = [row[name].tokens_per_second / row["mlx-lm"].tokens_per_second for row in rows]
        tokens = sum(len(row[name].tokens) - 1 for row in rows)
        rate = tokens / sum(row[name].decode_seconds for row in rows)
        equal = sum(row[name].tokens == row["plain"].tokens for row in rows)
        lines.append(
            f"{name:8} {rate:7.2f} tokens/s, over mlx-lm {statistics.median(ratios):.3f} "
            f"(median; {min(ratios):.3f} to {max(ratios):.3f}); text equal {equal}/{len(rows)}"
        )
    return lines


def main() -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=20, help="first questions only")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2, 3, 4, 5])
    options = parser.parse_args()
    model = load(options.model, drafter=options.drafter, dtype="float32")
    assert model.folder is not None
    peer = load_peer(model.folder, model.target)
    questions = read_questions(options.questions)[: options.limit]
    prompts = [chat_prompt(model, question.turns[0]) for question in questions]
    prefill = measure_prefill(model, peer, prompts[0])
    measure_question(model, peer, prompts[0], configurations(options, max_tokens=8))
    runs = configurations(options, options.max_tokens)
    rows = [
        measure_question(model, peer, prompt, rotated(runs, number))
        for number, prompt in enumerate(prompts)
    ]
    _write(options.out, prefill, rows)
    sys.stdout.write(f"prefill of {PREFILL_TOKENS} tokens: {prefill}\n")
    sys.stdout.writelines(f"{line}\n" for line in summarize(rows))


def configurations(
    options: argparse.Namespace, max_tokens: int
) -> dict[str, GenerationConfig | None]:
    """Return what is compared: mlx-lm, plain decoding and every shape."""
    config = GenerationConfig(max_tokens=max_tokens, ignore_eos=True)
    fixed = replace(config, use_lookup=False, is_adaptive=False)
    shapes = [BeamShape(*pair) for pair in product(options.widths, options.lengths)]
    drafted = {
        f"{shape.beam_width},{shape.beam_length}": replace(fixed, beam=shape) for shape in shapes
    }
    plain = replace(config, beam=PLAIN_BEAM_SHAPE)
    return {"mlx-lm": None, "plain": plain, "default": config, **drafted}


def _write(path: Path, prefill: dict[str, float], rows: list[dict[str, Timing]]) -> None:
    values = [
        {name: [len(t.tokens), t.prefill_seconds, t.decode_seconds] for name, t in row.items()}
        for row in rows
    ]
    path.write_text(json.dumps({"prefill": prefill, "rows": values}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
