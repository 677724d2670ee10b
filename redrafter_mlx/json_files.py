"""JSON objects from files that nobody vouches for."""

from __future__ import annotations

import json
from typing import Any

from redrafter_mlx.errors import CheckpointError

MAX_JSON_BYTES = 64 << 20
# Python reads deeper ones and then cannot write or show them: both recurse.
MAX_JSON_DEPTH = 100
GET_AGAIN = "get the file again"


def parse_object(data: bytes, where: str, advice: str = GET_AGAIN) -> dict[str, Any]:
    """Return the object that a JSON text holds.

    Args:
        data: The text.
        where: Where it is from, to begin a message with.
        advice: What to do where it is broken, to end one with.

    Raises:
        CheckpointError: It is not JSON, nested too deep, or something other than an object.
    """
    try:
        values = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON ({error}); {advice}.") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{where} is not a JSON object; check that it is the right file.")
    _refuse_depth(values, where, advice)
    return values


def _refuse_depth(values: dict[str, Any], where: str, advice: str) -> None:
    level: list[Any] = [values]
    for _ in range(MAX_JSON_DEPTH):
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [value for part in inner for value in part if isinstance(value, dict | list)]
        if not level:
            return
    raise CheckpointError(
        f"{where} is nested too deep, more than {MAX_JSON_DEPTH} levels; {advice}."
    )
