"""Speed at short and long contexts, and where the time of a round goes at each.

Run it as ``python -m redrafter_mlx.bench.contexts [--contexts N ...] [--random-contexts N ...]``.

At each context one real text is read into the cache once, and each prompt is another question
behind it; every prompt is as long as the context. Plain decoding and the shapes, untouched and
timed in parts, take turns on a prompt. For contexts beyond the model's own, a random target of
its sizes in float32, with a random drafter of its drafter's sizes, goes on from random keys
and values, which no pass computed: what they hold costs nothing else. Its times say what a
round costs; its tokens a round say nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

from redrafter_mlx.bench.context_prompts import (
    Context,
    check_room,
    random_context,
    random_twin,
    real_context,
)
from redrafter_mlx.bench.context_times import SHAPES, SPARE_TOKENS, ShapeTimes, measure
from redrafter_mlx.bench.report import markdown_table
from redrafter_mlx.config import DEFAULT_MODEL, BeamShape
from redrafter_mlx.errors import ReDrafterError
from redrafter_mlx.loading.model import LoadedModel, load

CONTEXTS, RANDOM_CONTEXTS = (200, 2_000, 7_500), (16_000,)
# What each column shows, and its digits.
COLUMNS = {
    "plain tokens/s": ("plain_speed", 2),
    "speculative tokens/s": ("speed", 2),
    "speedup": ("speedup", 2),
    "tokens/round": ("tokens_per_round", 2),
    "round": ("round_steps", 2),
    "draft": ("draft_steps", 3),
    "verify": ("verify_steps", 2),
    "rest": ("rest_steps", 3),
    "speedup by verify alone": ("verify_speedup", 2),
    "round without attention": ("round_steps_without_attention", 2),
}
HEAD = ("context", "shape", *COLUMNS)
NOTES = """
Medians over the prompts, with the least and the most. Round, draft, verify and rest (accept,
host, commit) are in plain steps of the same context. The parts are of rounds that are evaluated
between them, so together they take a little longer than a round. "Speedup by verify alone" is
tokens a round over verify. "Round without attention" is a round over a plain step, the time of
attention alone, measured on the same cache, taken from both: it stays the same over the
contexts where only attention takes the speedup.
"""


def rows_of(name: str, found: Sequence[dict[BeamShape, ShapeTimes]]) -> Iterator[list[str]]:
    """Yield a row of the table a shape: medians over the prompts, the least and the most."""
    for shape in SHAPES:
        cells = (
            _spread([getattr(times[shape], attribute) for times in found], digits)
            for attribute, digits in COLUMNS.values()
        )
        yield [name, f"({shape.beam_width}, {shape.beam_length})", *cells]


def _spread(values: Sequence[float], digits: int) -> str:
    least, most = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def contexts(model: LoadedModel, options: argparse.Namespace) -> Iterator[Context]:
    """Yield what is measured, one at a time: each holds its keys and values.

    Raises:
        ConfigError: There are fewer prompts, or a context is too short or too long.
    """
    num_beyond = options.tokens + SPARE_TOKENS
    twin = random_twin(model)
    for found, sizes in ((model, options.contexts), (twin, options.random_contexts)):
        for num_tokens in sizes:
            check_room(found, num_tokens, num_beyond)
    for num_tokens in options.contexts:
        yield real_context(model, num_tokens, options.prompts)
    for num_tokens in options.random_contexts:
        yield random_context(twin, num_tokens, options.prompts)


def report(model: LoadedModel, options: argparse.Namespace) -> Iterator[str]:
    """Yield the table, as it comes, and what is to be known of it."""
    is_equal: list[bool] = []
    for number, context in enumerate(contexts(model, options)):
        started = time.perf_counter()
        found = measure(context, options.tokens, partial(_tell, context, started))
        is_equal += [times.is_text_equal for prompt in found for times in prompt.values()]
        table = markdown_table(HEAD, rows_of(context.name, found)).splitlines(keepends=True)
        yield "".join(table[2:] if number else table)
    yield NOTES
    yield f"The texts of all sides were equal in {sum(is_equal)} of {len(is_equal)} cases.\n"


def _tell(context: Context, started: float, what: str) -> None:
    seconds = time.perf_counter() - started
    sys.stderr.write(f"context {context.name}: {what} ({seconds:.0f} s)\n")


def main() -> int:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--contexts", type=int, nargs="*", default=CONTEXTS)
    parser.add_argument("--random-contexts", type=int, nargs="*", default=RANDOM_CONTEXTS)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=16, help="at least so many a side")
    options = parser.parse_args()
    try:
        for part in report(load(options.model, drafter=options.drafter), options):
            sys.stdout.write(part)
            sys.stdout.flush()
    except ReDrafterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
