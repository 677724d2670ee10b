"""What is asked: the suites of questions, and the protocol of each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from redrafter_mlx.bench.questions import Question, read_questions
from redrafter_mlx.errors import PromptError
from redrafter_mlx.loading.dataset_file import fetch_dataset_file
from redrafter_mlx.prompts import bench_prompts

QUICK, PAPER, MT_BENCH = "quick", "paper", "mt-bench"
SUITES = (QUICK, PAPER, MT_BENCH)
MT_BENCH_REPOSITORY, MT_BENCH_FILE = "HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl"
# Apple's benchmark ran it alone: ml-recurrent-drafter bd8586b, benchmark_recurrent_drafting.py.
_QUESTION_81 = Path(__file__).resolve().parent / "data" / "mt_bench_81.jsonl"
_QUICK_STEP = 6  # of three prompts a category: the first of every second one


@dataclass(frozen=True, slots=True)
class Suite:
    """Questions, and how they are asked where nobody says otherwise.

    Attributes:
        name: quick, paper, mt-bench, or the file's name.
        questions: In their order.
        max_tokens: Most tokens of an answer.
        num_trials: Passes over the questions.
        num_turns: Turns of each question that are answered.
        ignores_eos: Whether answers go on behind an end-of-sequence token.
        widths: Of the grid of fixed shapes; empty where none is asked for.
        lengths: Likewise.
    """

    name: str
    questions: tuple[Question, ...]
    max_tokens: int
    num_trials: int
    num_turns: int = 1
    ignores_eos: bool = False
    widths: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """What tells these questions and turns from others."""
        asked = [(one.question_id, one.turns[: self.num_turns]) for one in self.questions]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    def limited(self, limit: int) -> Suite:
        """Return the suite with so many questions, evenly spread over it."""
        count = len(self.questions)
        limit = min(limit, count)
        kept = tuple(self.questions[place * count // limit] for place in range(limit))
        return replace(self, questions=kept)


def find_suite(name: str, questions: Path | None = None) -> Suite:
    """Return a suite by its name, or that of a file of questions.

    Args:
        name: quick, paper, mt-bench, or a file.
        questions: File with the questions of mt-bench; else they come from the Hub.

    Raises:
        PromptError: There is no such suite or file, or the file has no questions.
        CheckpointError: The Hub does not give them.
    """
    if name == QUICK:
        return Suite(QUICK, _quick_questions(), max_tokens=32, num_trials=3)
    if name == PAPER:
        return Suite(
            PAPER,
            tuple(read_questions(_QUESTION_81)),
            max_tokens=200,
            num_trials=3,
            ignores_eos=True,
            widths=(1, 2, 3, 4),
            lengths=(2, 3, 4, 5),
        )
    if name == MT_BENCH:
        path = questions or fetch_dataset_file(MT_BENCH_REPOSITORY, MT_BENCH_FILE)
        return Suite(MT_BENCH, tuple(read_questions(path)), max_tokens=128, num_trials=1)
    file = Path(name)
    if not file.is_file():
        raise PromptError(f"There is no suite or file {name!r}; choose {', '.join(SUITES)}.")
    # A file called as a suite is would be taken for that suite.
    label = name if file.name in SUITES else file.name
    return Suite(label, tuple(read_questions(file)), max_tokens=128, num_trials=1)


def _quick_questions() -> tuple[Question, ...]:
    prompts = bench_prompts()[::_QUICK_STEP]
    return tuple(
        Question(number, prompt.category, (prompt.text,))
        for number, prompt in enumerate(prompts, 1)
    )
