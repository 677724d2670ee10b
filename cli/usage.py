"""What can be seen to be wrong from the command line alone: exit code 2, by the option's name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from redrafter_mlx.errors import ConfigError, PromptError

# How the options are called whose settings have other names.
OPTIONS = {
    "temperature": "temp",
    "num_tokens": "tokens",
    "num_draft_layers": "layers",
    "draft_vocab_size": "draft-vocab",
}
_SETTING = re.compile(r"[a-z][a-z_]*(?= is )")


class UsageError(typer.TyperException):
    """A usage error whose message names the option itself."""

    exit_code = 2


@contextmanager
def from_options(options: Mapping[str, str] = OPTIONS) -> Iterator[None]:
    """Turn what the library says of settings made of options alone into a usage error.

    Args:
        options: Names of options, without dashes, by settings that are called otherwise.
    """
    try:
        yield
    except (ConfigError, PromptError) as error:
        raise UsageError(_by_option(str(error), options)) from error


def _by_option(message: str, options: Mapping[str, str]) -> str:
    """Put the option that the user typed in the place of the setting that begins a message."""

    def option(found: re.Match[str]) -> str:
        return f"--{options.get(found[0], found[0].replace('_', '-'))}"

    return _SETTING.sub(option, message, count=1) if _SETTING.match(message) else message


def named(text: str) -> str:
    """Refuse a name that is empty."""
    if not text.strip():
        raise typer.BadParameter("it is empty; give a name.")
    return text


def named_path(text: str | Path) -> Path:
    """Return the path; an empty one would be the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("it is empty; name a file or a folder.")
    return Path(text)


def refuse_idle(mode: str, effective: Collection[str], groups: Iterable[Any]) -> None:
    """Refuse an option that does nothing beside another one.

    Args:
        mode: That other one.
        effective: Names of those that have an effect beside it.
        groups: Dataclasses of options by their names.
    """
    for group in groups:
        for entry in fields(group):
            if entry.name not in effective and getattr(group, entry.name) != entry.default:
                raise typer.BadParameter(
                    f"it has no effect with {mode}; leave it out.",
                    param_hint=f"--{entry.name.replace('_', '-')}",
                )
