"""Prompts and texts from files of the usual shapes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from redrafter_mlx.errors import PromptError
from redrafter_mlx.text import Message

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_ROLES |= {"chatgpt": "assistant", "bing": "assistant", "system": "system"}
_ANSWER_KEYS = ("response", "answer", "completion", "output", "chosen")
_PROMPT_KEYS = ("prompt", "instruction", "question")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is asked, and what somebody answered where the file says so.

    Attributes:
        messages: Up to the turn that is to be answered.
        answer: ``None`` where the file has none.
    """

    messages: tuple[Message, ...]
    answer: str | None = None


def read_exchanges(path: Path) -> Iterator[Exchange]:
    """Yield what a file asks, line by line.

    Args:
        path: A text file with a prompt a line; or JSON lines (a file whose first line is
            a JSON object), each with ``prompt`` (``instruction``, ``question``), with
            ``messages``, with ShareGPT's ``conversations`` or with MT-Bench's ``turns``.
            ``response`` (``answer``, ``completion``, ``output``) is an answer. A name that
            ends in ``.gz`` is unpacked.

    Raises:
        PromptError: The file cannot be read, or a line has none of these.
    """
    try:
        with _open(path) as file:
            is_json: bool | None = None
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                is_json = line.lstrip().startswith("{") if is_json is None else is_json
                yield _parse(line, f"Line {number} of {path}") if is_json else _asked(line.strip())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise PromptError(f"{path} cannot be read ({error}); check the file.") from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _asked(prompt: str, answer: str | None = None) -> Exchange:
    return Exchange(({"role": "user", "content": prompt},), answer)


def _parse(line: str, where: str) -> Exchange:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{where} is no JSON object ({error}); correct it.") from error
    exchange = _exchange(values) if isinstance(values, dict) else None
    if exchange is None or not any(message["content"].strip() for message in exchange.messages):
        raise PromptError(
            f"{where} asks nothing; it needs prompt, messages, conversations or turns."
        )
    return exchange


def _exchange(values: Mapping[str, Any]) -> Exchange | None:
    turns = values.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return _asked(turns[0])
    for key, role, content in (("messages", "role", "content"), ("conversations", "from", "value")):
        if isinstance(values.get(key), list):
            return _conversation(values[key], role, content)
    prompt = _first_text(values, _PROMPT_KEYS)
    extra = values.get("input")
    if prompt and isinstance(extra, str) and extra.strip():
        prompt += f"\n{extra}"
    return _asked(prompt, _first_text(values, _ANSWER_KEYS)) if prompt else None


def _first_text(values: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    texts = (values[key] for key in keys if isinstance(values.get(key), str))
    return next((text for text in texts if text.strip()), None)


def _conversation(turns: list[Any], role: str, content: str) -> Exchange | None:
    """Take the turns up to the first answer, and that answer."""
    messages: list[Message] = []
    for turn in turns:
        entry = turn if isinstance(turn, dict) else {}
        name, text = _ROLES.get(str(entry.get(role))), entry.get(content)
        if name is None or not isinstance(text, str):
            return None
        if name == "assistant":
            return Exchange(tuple(messages), text) if messages else None
        messages.append({"role": name, "content": text})
    return Exchange(tuple(messages)) if messages else None
