"""Groups of options: a dataclass whose fields are options of a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of the option groups that a command takes, one option each.

    Args:
        function: A command whose parameters are all dataclasses; the options of the help
            stand in their order.
    """
    groups = {
        name: hint
        for name, hint in get_type_hints(function).items()
        if is_dataclass(hint) and isinstance(hint, type)
    }

    @functools.wraps(function)
    def command(**values: Any) -> None:
        built = {
            name: group(**{entry.name: values[entry.name] for entry in fields(group)})
            for name, group in groups.items()
        }
        function(**built)

    parameters = [parameter for group in groups.values() for parameter in _parameters_of(group)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {entry.name: entry.annotation for entry in parameters}
    return command


def _parameters_of(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default_of(entry),
            annotation=hints[entry.name],
        )
        for entry in fields(group)
    ]


def _default_of(entry: Field[Any]) -> Any:
    return inspect.Parameter.empty if entry.default is MISSING else entry.default
