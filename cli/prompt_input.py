"""What the user types or pipes in: prompts, and the messages of a chat."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self

from redrafter_mlx.cli import render
from redrafter_mlx.errors import PromptError

PROMPT = ">>> "
CONTINUATION = "... "
BLOCK_MARK = '"""'
HISTORY_LINES = 1000


def require_utf8(text: str, name: str) -> str:
    """Return the text, or raise PromptError where its bytes were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        position = len(text[: error.start].encode())
        raise PromptError(f"{name} is not UTF-8 at byte {position}; convert it.") from error
    return text


def read_stdin() -> str:
    """Return all of standard input; a person at a terminal is told how to end it.

    Raises:
        PromptError: It is not UTF-8.
    """
    if sys.stdin.isatty():
        render.note("Type the prompt; Ctrl-D ends it")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise PromptError(
            f"Standard input is not UTF-8 at byte {error.start}; convert it."
        ) from error


class MessageReader:
    r"""Reads messages: one a line, of several lines by ``\`` or between ``\"\"\"``.

    On a terminal with a prompt, line editing and a history, where Python has readline; from
    a pipe without.

    Attributes:
        is_interactive: Whether a person types and sees the answers.
    """

    def __init__(self, history: Path) -> None:
        """Prepare to read; ``history`` is the file of earlier lines."""
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            # A message with a wrong byte is read to its end, and then refused alone.
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        self._num_lines = 0
        self._history = History(history) if self.is_interactive else None

    def __enter__(self) -> Self:
        """Load the history."""
        if self._history:
            self._history.load()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Save the history."""
        if self._history:
            self._history.save()

    def read(self) -> str | None:
        """Return the next message, or None at the end of the input.

        Raises:
            PromptError: The message is not UTF-8; the next one can be read.
            KeyboardInterrupt: Ctrl-C; what was typed of the message is dropped.
        """
        line = self._read_line(PROMPT)
        if line is None:
            return None
        name = "The message" if self.is_interactive else f"The message of line {self._num_lines}"
        return require_utf8(self._read_rest(line), name)

    def _read_rest(self, line: str | None) -> str:
        if line is not None and line.strip() == BLOCK_MARK:
            return self._read_block()
        parts = []
        while line is not None and line.endswith("\\"):
            parts.append(line[:-1])
            line = self._read_line(CONTINUATION)
        return "\n".join([*parts, line or ""])

    def _read_block(self) -> str:
        lines: list[str] = []
        while (line := self._read_line(CONTINUATION)) is not None and line.strip() != BLOCK_MARK:
            lines.append(line)
        return "\n".join(lines)

    def _read_line(self, prompt: str) -> str | None:
        try:
            if self.is_interactive:
                return input(prompt)
            line = sys.stdin.readline()
            self._num_lines += 1
        except EOFError:
            return None
        return line.removesuffix("\n") if line else None


class History:
    """Lines typed in earlier chats, kept by readline in a file that only its owner reads.

    Where Python has no readline, or the file cannot be used, the chat goes on without.
    """

    def __init__(self, path: Path) -> None:
        """Name the file."""
        self._path = path
        self._readline: ModuleType | None = None
        self._num_loaded = 0

    def load(self) -> None:
        """Turn line editing on and read the file, if there is one."""
        try:
            import readline
        except ImportError:
            return
        self._readline = readline
        if not _is_libedit(readline):
            # A pasted text of several lines is one message, not one message a line.
            readline.parse_and_bind("set enable-bracketed-paste on")
        readline.set_history_length(HISTORY_LINES)
        with suppress(OSError, ValueError):
            readline.read_history_file(self._path)
        self._num_loaded = readline.get_current_history_length()

    def save(self) -> None:
        """Add the lines of this chat; the oldest beyond ``HISTORY_LINES`` go."""
        if self._readline is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Made and closed first, so that not even for a moment can others read it.
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
            self._path.chmod(0o600)
            self._write(self._readline)

    def _write(self, readline: ModuleType) -> None:
        """Append, for the sake of another chat that ended meanwhile, where readline can."""
        if hasattr(readline, "append_history_file") and not _is_libedit(readline):
            num_new = readline.get_current_history_length() - self._num_loaded
            readline.append_history_file(num_new, self._path)
        else:
            readline.write_history_file(self._path)


def _is_libedit(readline: ModuleType) -> bool:
    return "libedit" in (readline.__doc__ or "")
