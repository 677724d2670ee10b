"""Prompts and texts from files of the usual shapes."""

from __future__ import annotations

import gzip
import json
import zlib
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
            ``response`` (``answer``, ``completion``, ``output``) is an answer. In a file
            whose name ends in ``.json`` they may be one list. A name that ends in ``.gz`` is
            unpacked.

    Raises:
        PromptError: The file cannot be read, or a line has none of these.
    """
    try:
        with _open(path) as file:
            yield from _read_list(file, path) if _is_list(file, path) else _read_lines(file, path)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise PromptError(f"{path} cannot be read ({error}); check the file.") from error


def _open(path: Path) -> TextIO:
    # A byte order mark, which some editors write, is no part of the first line.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _is_list(file: TextIO, path: Path) -> bool:
    if not path.name.removesuffix(".gz").endswith(".json"):
        return False
    first = next((line for line in file if line.strip()), "")
    file.seek(0)
    return first.lstrip().startswith("[")


def _read_list(file: TextIO, path: Path) -> Iterator[Exchange]:
    for number, values in enumerate(_load(file.read(), str(path)), 1):
        yield _checked(values, f"Entry {number} of {path}")


def _read_lines(file: TextIO, path: Path) -> Iterator[Exchange]:
    is_json: bool | None = None
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        is_json = line.lstrip().startswith("{") if is_json is None else is_json
        where = f"Line {number} of {path}"
        yield _checked(_load(line, where), where) if is_json else _asked(line.strip())


def _load(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{where} is no JSON ({error}); correct it.") from error


def _checked(values: Any, where: str) -> Exchange:
    exchange = _exchange(values) if isinstance(values, dict) else None
    if exchange is None or not any(message["content"].strip() for message in exchange.messages):
        raise PromptError(
            f"{where} asks nothing; it needs prompt, messages, conversations or turns."
        )
    texts = [message["content"] for message in exchange.messages] + [exchange.answer or ""]
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise PromptError(f"{where} holds half of a surrogate pair; correct or remove it.")
    return exchange


def _asked(prompt: str, answer: str | None = None) -> Exchange:
    return Exchange(({"role": "user", "content": prompt},), answer)


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
