"""Questions of a benchmark, read from a file that the user names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """Read JSON lines: ``turns`` or ``prompt``, and where there are, an id and a category.

    So have it FastChat's MT-Bench ``question.jsonl`` (``question_id``, ``turns``) and the
    Hub's copy of it (``prompt``, a list). A line without an id has its number.

    Raises:
        PromptError: The file cannot be read, a line is no question, or two have one id.
    """
    try:
        # Not splitlines: a text may hold a line separator that ends no line of JSON.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PromptError(f"{path} cannot be read ({reason}); check the file.") from error
    found = [_question(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise PromptError(f"{path} has no question; give JSON lines with turns.")
    (question_id, count), *_ = Counter(one.question_id for one in found).most_common(1)
    if count > 1:
        raise PromptError(f"{path} has question_id {question_id} twice; number them anew.")
    return found


def _question(path: Path, number: int, line: str) -> Question:
    try:
        values = json.loads(line)
        turns = _turns(values)
        question_id = values.get("question_id", values.get("prompt_id", number))
        return Question(int(question_id), str(values.get("category", "")), turns)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PromptError(
            f"Line {number} of {path} is no question: it needs turns, a list of texts."
        ) from error


def _turns(values: Mapping[str, Any]) -> tuple[str, ...]:
    turns = values["turns"] if "turns" in values else values["prompt"]
    if isinstance(turns, str) and "turns" not in values:
        turns = [turns]
    if not isinstance(turns, list) or not turns:
        raise TypeError("no list")
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError("no text")
    "".join(turns).encode()  # refuses half a surrogate pair, which no tokenizer takes
    return tuple(turns)
