"""The command group that turns every failure into one line and an exit code."""

from __future__ import annotations

import errno
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from redrafter_mlx.cli import render
from redrafter_mlx.errors import ReDrafterError

HINTS = {
    errno.ENOENT: "check the path",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What the user is told, and the exit code of the process."""

    message: str
    exit_code: int = 1


class Program(TyperGroup):
    """Typer's command group; the exit codes are 0, 1 (error), 2 (usage) and 130 (Ctrl-C)."""

    shows_traceback = False

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run a command and leave the process."""
        kwargs["standalone_mode"] = False
        sys.exit(self._run(*args, **kwargs))

    def _run(self, *args: Any, **kwargs: Any) -> int:
        try:
            return super().main(*args, **kwargs) or 0
        except Exception as error:
            failure = explain(error)
            if self.shows_traceback:
                render.traceback(error)
            render.error(failure.message)
            return failure.exit_code


def explain(error: Exception) -> Failure:
    """Say in one line what went wrong and what to do."""
    if isinstance(error, ReDrafterError):
        return Failure(str(error))
    if isinstance(error, typer.TyperException):
        return Failure(_usage_message(error), error.exit_code)
    if _is_out_of_memory(error):
        return Failure("The memory is full; choose a smaller model, or one of fewer bits a weight.")
    if isinstance(error, OSError):
        return Failure(_os_message(error))
    kind = type(error).__name__
    return Failure(f"Internal error: {kind}: {error}; run with --debug for the traceback.")


def _usage_message(error: typer.TyperException) -> str:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message.rstrip('.')}; see {context.command_path} --help."


def _os_message(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename else ""
    hint = HINTS.get(error.errno or 0)
    return f"{where}{what}; {hint}." if hint else f"{where}{what}."


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python or MLX (which raises a RuntimeError) found no memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "malloc" in str(error)
    )
