"""JSON to and from frozen dataclasses, with nothing unknown, missing or of another type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from redrafter_mlx.errors import CheckpointError

_T = TypeVar("_T")

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def dump_strictly(value: Any) -> str:
    """Return a dataclass as indented JSON.

    Raises:
        CheckpointError: A number is not finite, which JSON cannot hold.
    """
    try:
        return json.dumps(asdict(value), indent=1, allow_nan=False) + "\n"
    except ValueError as error:
        raise CheckpointError(
            f"The results cannot be written ({error}); run the bench again."
        ) from error


def load_strictly(kind: type[_T], text: str) -> _T:
    """Return the dataclass that ``dump_strictly`` wrote.

    Raises:
        CheckpointError: It is no JSON, or not of this shape; the place is named, as
            ``trials[2].decode_seconds``. What to do is the caller's to say.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise CheckpointError(f"it is no JSON ({error})") from error
    return cast(_T, _read(kind, value, ""))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _read(hint: Any, value: Any, place: str) -> Any:
    if get_origin(hint) is UnionType:
        (inner,) = (kind for kind in get_args(hint) if kind is not type(None))
        return None if value is None else _read(inner, value, place)
    if is_dataclass(hint):
        return _read_dataclass(cast(type, hint), value, place)
    if get_origin(hint) is tuple:
        entries = _checked(list, value, place)
        kind = get_args(hint)[0]
        return tuple(_read(kind, entry, f"{place}[{i}]") for i, entry in enumerate(entries))
    if get_origin(hint) is dict:
        entries = _checked(dict, value, place)
        kind = get_args(hint)[1]
        return {key: _read(kind, entry, _inside(place, key)) for key, entry in entries.items()}
    if hint is float and type(value) is int:
        return float(value)
    return _checked(hint, value, place)


def _read_dataclass(kind: type, value: Any, place: str) -> Any:
    values: Mapping[str, Any] = _checked(dict, value, place)
    names = [entry.name for entry in fields(kind)]
    for name in sorted(values.keys() ^ set(names)):
        problem = "an unknown key" if name in values else "no"
        raise CheckpointError(f"{place or 'it'} has {problem} {name!r:.60}")
    hints = get_type_hints(kind)
    return kind(**{name: _read(hints[name], values[name], _inside(place, name)) for name in names})


def _checked(kind: type, value: Any, place: str) -> Any:
    if type(value) is not kind:
        shown = json.dumps(value, ensure_ascii=False)
        raise CheckpointError(f"{place or 'it'} is {shown:.60} and not {_WORDS[kind]}")
    return value


def _inside(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
