"""The drafter alone, lookups alone and both, at equal rows; and whole drafters side by side.

Run it as ``python -m redrafter_mlx.bench.sources [--questions FILE] [--drafters NAME=FOLDER ...]``.
Without questions it takes the built-in prompts that have a text to copy from. Every round
has the whole shape, and the sides take turns prompt by prompt.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from redrafter_mlx.bench.questions import read_questions
from redrafter_mlx.config import DEFAULT_MODEL, PLAIN_BEAM_SHAPE, BeamShape, GenerationConfig
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.generation import chat_prompt
from redrafter_mlx.loading.drafter import load_drafter
from redrafter_mlx.loading.model import LoadedModel, load
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.prompts import bench_prompts, copy_prompts


@dataclass(frozen=True, slots=True)
class Side:
    """What is compared: a model with its drafter, and how it decodes."""

    model: LoadedModel
    config: GenerationConfig


def sources(model: LoadedModel, base: GenerationConfig) -> dict[str, Side]:
    """Return plain decoding and the three ways to draft."""
    return {
        "plain": Side(model, replace(base, beam=PLAIN_BEAM_SHAPE)),
        "drafter": Side(model, replace(base, use_lookup=False)),
        "lookup": Side(model, replace(base, use_drafter=False)),
        "both": Side(model, base),
        "adaptive": Side(model, replace(base, beam=None, is_adaptive=True)),
    }


def drafters(model: LoadedModel, base: GenerationConfig, named: list[str]) -> dict[str, Side]:
    """Return plain decoding and the model with each ``name=folder`` drafter."""
    found = {"plain": Side(model, replace(base, beam=PLAIN_BEAM_SHAPE))}
    for entry in named:
        name, _, folder = entry.partition("=")
        drafter = load_drafter(Path(folder), model.target)
        found[name] = Side(replace(model, drafter=drafter), replace(base, use_lookup=False))
    return found


def run(side: Side, kv_cache: KVCache, prompt: list[int]) -> tuple[list[int], DecodeStats]:
    """Decode once; the cache keeps the prompt."""
    stats = DecodeStats()
    return list(decode(side.model, kv_cache, prompt, side.config, stats)), stats


def line(name: str, stats: list[DecodeStats], plain: list[DecodeStats]) -> str:
    """Return a side's figures, and its speed over plain decoding prompt by prompt."""
    num_tokens = sum(one.emitted_tokens - 1 for one in stats)
    ratios = [
        mine.tokens_per_second / theirs.tokens_per_second
        for mine, theirs in zip(stats, plain, strict=True)
    ]
    accepted: defaultdict[str, int] = defaultdict(int)
    for one in stats:
        for source, count in one.accepted_by_source.items():
            accepted[source] += count
    num_rounds = sum(one.num_rounds for one in stats)
    timed = [one.part_milliseconds["draft"] for one in stats if "draft" in one.part_milliseconds]
    draft = f", draft {statistics.median(timed):.1f} ms" if timed else ""
    return (
        f"{name:10} {num_tokens / num_rounds:.3f} tokens/round, "
        f"{num_tokens / sum(one.decode_seconds for one in stats):.2f} tokens/s, over plain "
        f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f}), "
        f"rows {sum(one.verified_rows for one in stats) / num_rounds:.2f}{draft}, "
        f"accepted {dict(accepted)}"
    )


def prompts_of(options: argparse.Namespace, model: LoadedModel) -> list[list[int]]:
    """Return the prompts to answer."""
    if options.questions is not None:
        texts = [question.turns[0] for question in read_questions(options.questions)]
    elif options.bench:
        texts = [prompt.text for prompt in bench_prompts()]
    else:
        texts = [prompt.text for prompt in copy_prompts()]
    return [chat_prompt(model, text) for text in texts[:: options.every][: options.limit]]


def main() -> None:
    """Compare from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--drafters", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--bench", action="store_true", help="the built-in bench prompts")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--limit", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--shape", type=int, nargs=3, default=(1, 5, 5), metavar="N")
    options = parser.parse_args()
    model = load(options.model, drafter=options.drafter)
    base = GenerationConfig(
        max_tokens=options.tokens,
        beam=BeamShape(*options.shape),
        ignore_eos=True,
        is_adaptive=False,
        timed_every=6 if options.drafters else 0,
    )
    sides = drafters(model, base, options.drafters) if options.drafters else sources(model, base)
    figures: defaultdict[str, list[DecodeStats]] = defaultdict(list)
    num_equal: defaultdict[str, int] = defaultdict(int)
    prompts = prompts_of(options, model)
    for prompt in prompts:
        kv_cache, texts = model.target.make_kv_cache(), {}
        for name, side in sides.items():
            texts[name], one = run(side, kv_cache, prompt)
            figures[name].append(one)
            num_equal[name] += texts[name] == texts["plain"]
    for name, stats in figures.items():
        sys.stdout.write(
            f"{line(name, stats, figures['plain'])}, text equal {num_equal[name]}/{len(prompts)}\n"
        )


if __name__ == "__main__":
    main()
