"""A round's anatomy: its parts beside the untouched round, in plain decoding steps.

Run it as ``python -m redrafter_mlx.bench.anatomy [--context N] [--temp T --top-p P]``. The
shapes take turns with plain decoding, round by round of trials; medians are told.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace

from redrafter_mlx.config import (
    DEFAULT_MODEL,
    PLAIN_BEAM_SHAPE,
    BeamShape,
    GenerationConfig,
    SamplingConfig,
)
from redrafter_mlx.decoding.decode import decode
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.generation import chat_prompt
from redrafter_mlx.loading.model import LoadedModel, load
from redrafter_mlx.prompts import copy_prompts, tune_prompts

SHAPES = (BeamShape(1, 4), BeamShape(2, 4), BeamShape(4, 5))
DRAFT, VERIFY = "draft", "verify"


@dataclass(slots=True)
class Times:
    """Seconds a round of one shape, by trial.

    Attributes:
        rounds: Untouched.
        greedy_rounds: The same, greedy, where the rounds sample.
        parts: By part, in rounds that were evaluated between the parts.
    """

    rounds: list[float] = field(default_factory=list)
    greedy_rounds: list[float] = field(default_factory=list)
    parts: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Runner:
    """Decodes one prompt again and again; its keys and values are computed once."""

    def __init__(self, model: LoadedModel, prompt: list[int]) -> None:
        """Begin with an empty cache."""
        self._model, self._prompt = model, prompt
        self._kv_cache = model.target.make_kv_cache()

    def __call__(self, config: GenerationConfig) -> DecodeStats:
        """Decode once and return the figures."""
        stats = DecodeStats()
        for _ in decode(self._model, self._kv_cache, self._prompt, config, stats):
            pass
        return stats


def measure(
    run: Runner, base: GenerationConfig, trials: int
) -> tuple[list[float], dict[BeamShape, Times]]:
    """Return the seconds of plain steps, and the times of each shape."""
    steps: list[float] = []
    times = {shape: Times() for shape in SHAPES}
    for _ in range(trials):
        steps.append(run(replace(base, beam=PLAIN_BEAM_SHAPE)).seconds_per_round)
        for shape, found in times.items():
            config = replace(base, beam=shape)
            found.rounds.append(run(config).seconds_per_round)
            if not base.sampling.is_greedy:
                greedy = replace(config, sampling=SamplingConfig())
                found.greedy_rounds.append(run(greedy).seconds_per_round)
            timed = run(replace(config, timed_every=1))
            for part, milliseconds in timed.part_milliseconds.items():
                found.parts[part].append(milliseconds / 1e3)
    return steps, times


def lines(steps: list[float], times: dict[BeamShape, Times]) -> list[str]:
    """Return a line a shape, in plain steps."""
    step = statistics.median(steps)
    shown = [f"plain step {1e3 * step:.1f} ms"]
    for shape, found in times.items():
        parts = {name: statistics.median(values) / step for name, values in found.parts.items()}
        rest = sum(value for name, value in parts.items() if name not in (DRAFT, VERIFY))
        total = statistics.median(found.rounds) / step
        shown.append(
            f"({shape.beam_width}, {shape.beam_length}): round {total:.3f} steps; "
            f"draft {parts[DRAFT]:.3f}, verify {parts[VERIFY]:.3f}, rest {rest:.3f} "
            f"(accept {parts['accept']:.3f}, host {parts['host']:.3f}, "
            f"commit {parts['commit']:.3f})"
        )
        if found.greedy_rounds:
            ratio = statistics.median(found.rounds) / statistics.median(found.greedy_rounds)
            shown.append(f"        {ratio:.3f} of a greedy round")
    return shown


def long_text(model: LoadedModel, num_tokens: int) -> list[int]:
    """Return so many tokens of real text, or none where the number is below 0."""
    text = [token for prompt in copy_prompts() for token in chat_prompt(model, prompt.text)]
    return (text * (num_tokens // len(text) + 1))[: max(num_tokens, 0)]


def long_prompt(model: LoadedModel, num_tokens: int) -> list[int]:
    """Return a prompt of so many tokens, of real text, or a short question."""
    question = chat_prompt(model, tune_prompts()[0].text)
    return long_text(model, num_tokens - len(question)) + question


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    options = parser.parse_args()
    model = load(options.model, drafter=options.drafter)
    base = GenerationConfig(
        max_tokens=options.tokens,
        sampling=SamplingConfig(temperature=options.temp, top_p=options.top_p),
        ignore_eos=True,
        use_lookup=False,
        is_adaptive=False,
    )
    run = Runner(model, long_prompt(model, options.context))
    run(base)
    steps, times = measure(run, base, options.trials)
    sys.stdout.writelines(f"{line}\n" for line in lines(steps, times))


if __name__ == "__main__":
    main()
