"""Is the text the model's own? Speculative answers against plain ones, question by question.

Run it as ``python -m redrafter_mlx.bench.equality --questions FILE --out RESULTS.jsonl``.

Each line of the results is one question; a rerun goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from redrafter_mlx.bench.questions import Question, read_questions
from redrafter_mlx.config import (
    DEFAULT_MODEL,
    PLAIN_BEAM_SHAPE,
    BeamShape,
    GenerationConfig,
    SamplingConfig,
)
from redrafter_mlx.decoding.margin import choice_margin
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.generation import Answer, chat_prompt, generate
from redrafter_mlx.loading.model import LoadedModel, load

# Options that say where, not what.
PLACES = ("questions", "out", "limit")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a speculative answer leaves the plain one.

    Attributes:
        place: Index of the first token that differs.
        margin: Gap there between the two best scores of a fresh pass, ``None`` where the
            filters leave one token.
    """

    place: int
    margin: float | None


def first_difference(
    model: LoadedModel, plain: Answer, tokens: Sequence[int], sampling: SamplingConfig
) -> Difference | None:
    """Return where token ids part from plain decoding's, ``None`` where they are equal."""
    if plain.tokens == tuple(tokens):
        return None
    pairs = zip(plain.tokens, tokens, strict=False)
    shorter = min(len(plain.tokens), len(tokens))
    place = next((i for i, (one, two) in enumerate(pairs) if one != two), shorter)
    prefix = [*plain.prompt_tokens, *plain.tokens[:place]]
    return Difference(place, choice_margin(model.target, prefix, sampling))


def check_question(
    model: LoadedModel, question: Question, shapes: Sequence[BeamShape], config: GenerationConfig
) -> dict[str, Any]:
    """Answer one question plainly and with each shape; return what goes into the results."""
    prompt = chat_prompt(model, question.turns[0])
    plain = generate(model, prompt, replace(config, beam=PLAIN_BEAM_SHAPE))
    record: dict[str, Any] = {
        "question_id": question.question_id,
        "plain": {"emitted": len(plain.tokens), "seconds": plain.stats.decode_seconds},
    }
    for shape in shapes:
        answer = generate(model, prompt, replace(config, beam=shape))
        difference = first_difference(model, plain, answer.tokens, config.sampling)
        record[f"{shape.beam_width},{shape.beam_length}"] = {
            "emitted": len(answer.tokens),
            "rounds": answer.stats.num_rounds,
            "seconds": answer.stats.decode_seconds,
            "difference": asdict(difference) if difference else None,
        }
    return record


def summarize(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each shape: equal texts, tokens per round, differences with margins."""
    lines = []
    for shape in [key for key in records[0] if "," in key]:
        runs = [record[shape] for record in records]
        emitted = sum(run["emitted"] - 1 for run in runs)
        rounds = sum(run["rounds"] for run in runs)
        differing = [(r["question_id"], r[shape]["difference"]) for r in records]
        parted = [f"{number} {place}" for number, place in differing if place]
        lines.append(
            f"({shape}): {len(runs) - len(parted)} of {len(runs)} texts equal, "
            f"{emitted / rounds:.4f} tokens a round; differences: {', '.join(parted) or 'none'}"
        )
    return lines


def parse_shape(text: str) -> BeamShape:
    """Read "width,length"."""
    width, length = text.split(",")
    return BeamShape(int(width), int(length))


def main() -> None:
    """Run the check from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="first questions only")
    parser.add_argument("--shapes", type=parse_shape, nargs="+", default=[BeamShape(2, 4)])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sampling = SamplingConfig(temperature=options.temp, top_p=options.top_p, seed=options.seed)
    config = GenerationConfig(max_tokens=options.max_tokens, sampling=sampling)
    model = load(options.model, drafter=options.drafter, dtype="float32")
    questions = read_questions(options.questions)[: options.limit]
    settings = {key: str(value) for key, value in vars(options).items() if key not in PLACES}
    records = read_records(options.out, settings)
    done = {record["question_id"] for record in records}
    for question in questions:
        if question.question_id not in done:
            record = check_question(model, question, options.shapes, config)
            records.append(record | {"settings": settings})
            with options.out.open("a", encoding="utf-8") as results:
                results.write(json.dumps(records[-1]) + "\n")
    sys.stdout.writelines(f"{line}\n" for line in summarize(records))


def read_records(path: Path, settings: dict[str, str]) -> list[dict[str, Any]]:
    """Return what an earlier run with the same settings has done.

    Raises:
        CheckpointError: The file is of a run with other settings.
    """
    if not path.is_file():
        return []
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if any(record["settings"] != settings for record in records):
        raise CheckpointError(f"{path} is of a run with other settings; choose another file.")
    return records


if __name__ == "__main__":
    main()
