"""How many tokens a round would a drafter bring? Its beams walked along texts of its target.

Run it as ``python -m redrafter_mlx.bench.walk --corpus CORPUS --shapes 1,4 2,4 4,5``, with
greedy answers that ``redrafter-mlx distill`` collected. The target runs no more, so a walk is
much quicker than decoding; it differs from it where half precision moves a close call.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from redrafter_mlx.bench.equality import parse_shape
from redrafter_mlx.config import DEFAULT_MODEL, BeamShape, check_range
from redrafter_mlx.errors import ConfigError, ReDrafterError
from redrafter_mlx.loading.model import LoadedModel, load
from redrafter_mlx.loading.target import identify
from redrafter_mlx.training.batches import SampleSet
from redrafter_mlx.training.corpus import open_corpus, require_target
from redrafter_mlx.training.evaluate import Walk, walk_text
from redrafter_mlx.training.features import prepare_features
from redrafter_mlx.training.settings import MAX_HIDDEN_BYTES


def walk_corpus(
    model: LoadedModel, folder: Path, shapes: Sequence[BeamShape], limit: int | None = None
) -> dict[BeamShape, Walk]:
    """Walk along every greedy answer of a corpus, or the first ``limit`` of them.

    Raises:
        CheckpointError: The corpus is another target's.
        ConfigError: The model has no drafter, or the corpus no greedy answer; or ``limit``
            is less than 1.
    """
    if model.drafter is None:
        raise ConfigError(f"No drafter was found for {model.name}; name one with --drafter.")
    if limit is not None:
        check_range("limit", limit, 1, 2**31)
    corpus = open_corpus(folder)
    require_target(corpus, identify(model.name, model.target))
    shards = prepare_features(model.target, corpus, MAX_HIDDEN_BYTES, lambda _: None)
    samples = SampleSet(model.target, shards)
    greedy = [index for index in range(len(samples)) if samples.sample(index).is_greedy][:limit]
    if not greedy:
        raise ConfigError(f"{folder} has no greedy answer to walk along; distill with --temp 0.")
    walks = dict.fromkeys(shapes, Walk(0, 0))
    for index in greedy:
        hidden, tokens = samples.hidden(index), samples.sample(index).answer
        for shape in shapes:
            walks[shape] += walk_text(model.drafter, hidden, tokens, shape)
    return walks


def main() -> int:
    """Run the walk from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="first answers only")
    parser.add_argument("--shapes", type=parse_shape, nargs="+", default=[BeamShape(2, 4)])
    options = parser.parse_args()
    try:
        model = load(options.model, drafter=options.drafter, dtype="float32")
        walks = walk_corpus(model, options.corpus, options.shapes, options.limit)
    except ReDrafterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.writelines(
        f"({shape.beam_width},{shape.beam_length}): {walk.num_emitted} tokens in "
        f"{walk.num_rounds} rounds, {walk.tokens_per_round:.4f} tokens a round\n"
        for shape, walk in walks.items()
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
