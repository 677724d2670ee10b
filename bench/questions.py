"""Questions of a benchmark, read from a file that the user names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from redrafter_mlx.errors import PromptError


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        question_id: Its number in the file.
        category: Such as "writing" or "math"; empty where the file has none.
        turns: What the user says, turn by turn.
    """

    question_id: int
    category: str
    turns: tuple[str, ...]


def read_questions(path: Path) -> list[Question]:
    """Read JSON lines as FastChat's MT-Bench ``question.jsonl`` has them.

    Raises:
        PromptError: The file cannot be read, or a line has no ``turns``.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path} cannot be read: {error}.") from error
    return [_question(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _question(path: Path, number: int, line: str) -> Question:
    try:
        values = json.loads(line)
        turns = tuple(str(turn) for turn in values["turns"])
        return Question(int(values["question_id"]), str(values.get("category", "")), turns)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PromptError(
            f"Line {number} of {path} is no question: it needs question_id and turns."
        ) from error
