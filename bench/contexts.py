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


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


# What each column shows, and how its values over the prompts are told.
COLUMNS = {
    "plain tokens/s": ("plain_speed", _spread),
    "speculative tokens/s": ("speed", _spread),
    "speedup": ("speedup", _spread),
    "tokens/round": ("tokens_per_round", _spread),
    "round": ("round_steps", _spread),
    "draft": ("draft_steps", _median),
    "verify": ("verify_steps", _median),
    "rest": ("rest_steps", _median),
    "speedup by verify alone": ("verify_speedup", _median),
    "attention in a step": ("plain_attention_steps", _median),
    "attention in a round": ("attention_steps", _median),
    "ms a step without attention": ("plain_milliseconds_left", _spread),
    "ms a round without attention": ("milliseconds_left", _spread),
}
HEAD = ("context", "shape", *COLUMNS)
NOTES = """
Medians over the prompts, some with the least and the most. From "round" to "rest" (accept, host,
commit) all is in plain steps of the same context, and so is attention; the parts are of rounds
that are evaluated between them, which takes a little longer. "Speedup by verify alone" is tokens
a round over verify. "Attention" is scaled_dot_product_attention alone, in all layers on the same
cache; where nothing else takes the speedup, what it leaves of a step and of a round, in
milliseconds, stays as it is from context to context.
"""


def rows_of(name: str, found: Sequence[dict[BeamShape, ShapeTimes]]) -> Iterator[list[str]]:
    """Yield a row of the table a shape: medians over the prompts, the least and the most."""
    for shape in SHAPES:
        cells = (
            tell([getattr(times[shape], attribute) for times in found])
            for attribute, tell in COLUMNS.values()
        )
        yield [name, f"({shape.beam_width}, {shape.beam_length})", *cells]


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
        # Its rounds bring one token each, real ones about two.
        num_tokens = max(options.tokens // 2, 1) if context.is_random else options.tokens
        found = measure(context, num_tokens, partial(_tell, context, started))
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
