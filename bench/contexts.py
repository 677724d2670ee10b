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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from redrafter_mlx.bench.context_prompts import (
    RANDOM_POSITIONS,
    Context,
    check_room,
    random_context,
    random_twin,
    real_context,
    require_drafter,
)
from redrafter_mlx.bench.context_times import SHAPES, SPARE_TOKENS, ShapeTimes, measure
from redrafter_mlx.bench.report import markdown_table
from redrafter_mlx.config import DEFAULT_MODEL, BeamShape, check_range
from redrafter_mlx.errors import ReDrafterError
from redrafter_mlx.loading.model import LoadedModel, load

CONTEXTS, RANDOM_CONTEXTS = (200, 2_000, 7_500), (16_000,)
MAX_COUNT = 10_000
INTERRUPTED = 130

# By context, the times of each prompt.
Found = Mapping[str, Sequence[Mapping[BeamShape, ShapeTimes]]]
Tell = Callable[[Sequence[float]], str]


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


# What each column shows, and how its values over the prompts are told.
TABLES: dict[str, dict[str, tuple[str, Tell]]] = {
    "Speed": {
        "plain tokens/s": ("plain_speed", _spread),
        "drafting tokens/s": ("speed", _spread),
        "times plain": ("speedup", _spread),
        "tokens a round": ("tokens_per_round", _spread),
    },
    "A round, in plain steps of the same context": {
        "round": ("round_steps", _spread),
        "draft": ("draft_steps", _median),
        "verify": ("verify_steps", _median),
        "rest": ("rest_steps", _median),
        "times plain by verify alone": ("verify_speedup", _median),
    },
    "Attention, in plain steps, and the milliseconds that it leaves": {
        "in a step": ("plain_attention_steps", _median),
        "in a round": ("attention_steps", _median),
        "ms left of a step": ("plain_milliseconds_left", _spread),
        "ms left of a round": ("milliseconds_left", _spread),
    },
}
NOTES = """\
Medians over the prompts, some with the least and the most. Of a random context only the times say
something: no draft is right there, so no round repays its cost.

The rest is accept, host and commit; the parts are of rounds that are evaluated between them, which
takes a little longer. "Times plain by verify alone" is tokens a round over verify. Attention is
scaled_dot_product_attention alone, in all layers on the same cache; where nothing else takes the
speedup, what it leaves of a step and of a round stays as it is from context to context.
"""


def report(found: Found) -> str:
    """Return the tables, a row a context and shape, and what is to be known of them."""
    parts = [f"## {title}\n\n{_table(found, columns)}" for title, columns in TABLES.items()]
    is_equal = [
        times.is_text_equal
        for prompts in found.values()
        for prompt in prompts
        for times in prompt.values()
    ]
    equal = f"The texts of all sides were equal in {sum(is_equal)} of {len(is_equal)} cases.\n"
    return "\n".join([*parts, NOTES, equal])


def _table(found: Found, columns: Mapping[str, tuple[str, Tell]]) -> str:
    rows = [
        [
            name,
            f"({shape.beam_width}, {shape.beam_length})",
            *(
                tell([getattr(prompt[shape], attribute) for prompt in prompts])
                for attribute, tell in columns.values()
            ),
        ]
        for name, prompts in found.items()
        for shape in SHAPES
    ]
    return markdown_table(("context", "shape", *columns), rows)


def contexts(model: LoadedModel, options: argparse.Namespace) -> Iterator[Context]:
    """Yield what is measured, one at a time: each holds its keys and values.

    Raises:
        ConfigError: There is no drafter, there are fewer prompts, or a context is too short or
            too long.
    """
    require_drafter(model)
    for name in ("prompts", "tokens"):
        check_range(name, getattr(options, name), 1, MAX_COUNT)
    for max_positions, sizes in (
        (model.target.config.max_positions, options.contexts),
        (RANDOM_POSITIONS, options.random_contexts),
    ):
        for num_tokens in sizes:
            check_room(num_tokens, options.tokens + SPARE_TOKENS, max_positions)
    for num_tokens in options.contexts:
        yield real_context(model, num_tokens, options.prompts)
    if options.random_contexts:
        twin = random_twin(model)
        for num_tokens in options.random_contexts:
            yield random_context(twin, num_tokens, options.prompts)


def measure_all(
    model: LoadedModel,
    options: argparse.Namespace,
    found: dict[str, list[dict[BeamShape, ShapeTimes]]],
) -> None:
    """Measure each context; what is done is in ``found`` even where it is broken off."""
    for context in contexts(model, options):
        started = time.perf_counter()
        # Its rounds bring one token each, real ones about two.
        num_tokens = max(options.tokens // 2, 1) if context.is_random else options.tokens
        found[context.name] = measure(context, num_tokens, partial(_tell, context, started))


def _tell(context: Context, started: float, what: str) -> None:
    seconds = time.perf_counter() - started
    sys.stderr.write(f"context {context.name}: {what} ({seconds:.0f} s)\n")


def main() -> int:
    """Measure from the command line; Ctrl-C leaves the contexts that are done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--contexts", type=int, nargs="*", default=CONTEXTS)
    parser.add_argument("--random-contexts", type=int, nargs="*", default=RANDOM_CONTEXTS)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=16, help="at least so many a side")
    options = parser.parse_args()
    found: dict[str, list[dict[BeamShape, ShapeTimes]]] = {}
    status = 0
    try:
        measure_all(load(options.model, drafter=options.drafter), options, found)
    except ReDrafterError as error:
        sys.stderr.write(f"{error}\n")
        status = 1
    except KeyboardInterrupt:
        status = INTERRUPTED
    if found:
        sys.stdout.write(report(found))
    return status


if __name__ == "__main__":
    sys.exit(main())
