"""``redrafter-mlx chat`` in a process of its own, on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from redrafter_mlx.cli.prompt_input import HISTORY_LINES

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.cli.endless_model"
SECONDS = 60.0
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x10"
PROMPT = ">>> "
LEAVING = "Ctrl-D or /exit leaves"


class Terminal:
    """A program on a pseudo-terminal, and what it has shown.

    Attributes:
        process: The program.
        shown: All of its output.
    """

    def __init__(self, cache: Path, seconds_a_token: float = 0.0) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, "chat", "--max-tokens", "90000"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "REDRAFTER_CACHE": str(cache),
                "SECONDS_A_TOKEN": str(seconds_a_token),
                "TERM": "xterm",
                "INPUTRC": os.devnull,
                "LANG": "C.UTF-8",
            },
        )
        os.close(theirs)
        self.shown = ""
        self._read_to = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def send(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def expect(self, text: str, seconds: float = SECONDS) -> None:
        """Wait for a text behind the one that was expected before."""
        deadline = time.monotonic() + seconds
        while (place := self.shown.find(text, self._read_to)) < 0:
            self._read(deadline, f"{text!r} did not come")
        self._read_to = place + len(text)

    def drop_line(self) -> None:
        """Press Ctrl-C at a prompt, again if it is not noticed.

        Python looks for signals before it waits for a key; what comes in between waits for
        the next key. No hand is that quick.
        """
        self.send(CTRL_C)
        try:
            self.expect(LEAVING, seconds=2.0)
        except AssertionError:
            self.send(CTRL_C)
            self.expect(LEAVING)
        self.expect(PROMPT)

    def expect_more(self, size: int) -> None:
        """Wait for so many characters more."""
        deadline = time.monotonic() + SECONDS
        while len(self.shown) < self._read_to + size:
            self._read(deadline, f"{size} characters did not come")
        self._read_to = len(self.shown)

    def wait(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline, "the program did not end"):
            pass
        return self.process.wait(SECONDS)

    def _read(self, deadline: float, complaint: str) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{complaint}:\n{self.shown[-2000:]}"
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            data = b""
        self.shown += data.decode(errors="replace")
        assert data or complaint == "the program did not end", f"{complaint}:\n{self.shown[-2000:]}"
        return bool(data)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Return a chat that waits for its first message."""
    with Terminal(tmp_path / "cache") as terminal:
        terminal.expect(PROMPT)
        yield terminal


def stop_answer(terminal: Terminal, question: str) -> None:
    """Ask, see the answer begin, press Ctrl-C and see it stop."""
    terminal.send(f"{question}\n")
    terminal.expect(question)
    terminal.expect_more(40)
    terminal.send(CTRL_C)
    terminal.expect("first after")
    terminal.expect("stopped")
    terminal.expect(PROMPT)


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal, tmp_path: Path) -> None:
    """Two answers are stopped, then a half-typed line is dropped; Ctrl-D leaves."""
    stop_answer(terminal, "first question")
    stop_answer(terminal, "second question")
    terminal.send("half a mess")
    terminal.expect("half a mess")
    terminal.drop_line()
    terminal.send("/stats\n")
    terminal.expect("2 answers")
    terminal.expect(PROMPT)
    terminal.send(CTRL_D)
    assert terminal.wait() == 0
    assert "Traceback" not in terminal.shown


def test_second_ctrl_c_leaves_the_chat_alive(tmp_path: Path) -> None:
    """It comes in the midst of a token, while the answer ends, or at the prompt."""
    with Terminal(tmp_path, seconds_a_token=0.005) as terminal:
        terminal.expect(PROMPT)
        for pause in (0.0, 0.003, 0.03):
            terminal.send("a question\n")
            terminal.expect("a question")
            terminal.expect_more(40)
            terminal.send(CTRL_C)
            time.sleep(pause)
            terminal.send(CTRL_C)
            # What was on its way to the screen is lost with Ctrl-C, and one that came just
            # before the prompt waits for a key, see ``drop_line``.
            terminal.send("\n/nope\n")
            terminal.expect("/nope is no command")
            terminal.expect(PROMPT)
        stop_answer(terminal, "another question")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown


def test_ctrl_c_ends_a_chat_from_a_pipe() -> None:
    """The first one, in the midst of an answer."""
    with subprocess.Popen(
        [sys.executable, "-m", PROGRAM, "chat", "--max-tokens", "90000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"first\nsecond\n")
        process.stdin.flush()
        assert len(process.stdout.read(40)) == 40
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert complaint == b""


def test_history_outlives_the_chat_and_is_private(tmp_path: Path) -> None:
    pytest.importorskip("readline")
    cache = tmp_path / "cache"
    path = cache / "chat_history"
    cache.mkdir()
    path.touch(0o644)
    with Terminal(cache) as first:
        first.expect(PROMPT)
        first.send("/nope one\n")
        first.expect("/nope is no command")
        first.expect(PROMPT)
        first.send("/exit\n")
        assert first.wait() == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Terminal(cache) as second:
        second.expect(PROMPT)
        second.send(UP + UP + "\n")
        second.expect("/nope is no command")
        second.expect(PROMPT)
        second.send(CTRL_D)
        assert second.wait() == 0
    # libedit writes a space as an escape.
    history = path.read_text().replace("\\040", " ").splitlines()
    assert history[-3:] == ["/nope one", "/exit", "/nope one"]


def test_chats_at_once_both_keep_their_lines(tmp_path: Path) -> None:
    readline = pytest.importorskip("readline")
    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit does not append")
    path = tmp_path / "chat_history"
    path.write_text("".join(f"/old {number}\n" for number in range(HISTORY_LINES)))
    with Terminal(tmp_path) as first, Terminal(tmp_path) as second:
        for chat, message in ((first, "/nope one"), (second, "/nope two")):
            chat.expect(PROMPT)
            chat.send(f"{message}\n")
            chat.expect("/nope is no command")
            chat.expect(PROMPT)
        for chat in (first, second):
            chat.send(CTRL_D)
            assert chat.wait() == 0
    lines = path.read_text().splitlines()
    assert len(lines) == HISTORY_LINES
    assert lines[-3:] == [f"/old {HISTORY_LINES - 1}", "/nope one", "/nope two"]
    # Past its limit the file is written anew.
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_message_of_several_lines_has_its_own_prompt(terminal: Terminal) -> None:
    terminal.send("/nope\\\n")
    terminal.expect("... ")
    terminal.send("more\n")
    terminal.expect("/nope is no command")
    terminal.expect(PROMPT)
    terminal.send('"""\n')
    terminal.expect("... ")
    terminal.drop_line()


def test_pasted_lines_are_one_message(terminal: Terminal) -> None:
    readline = pytest.importorskip("readline")
    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit has no bracketed paste")
    assert "\x1b[?2004h" in terminal.shown  # asks the terminal to mark what is pasted
    terminal.send("\x1b[200~/nope one\n/nope two\x1b[201~")
    terminal.expect("/nope two")
    terminal.send("\n")
    terminal.expect("/nope is no command")
    terminal.expect(PROMPT)
    terminal.send(CTRL_D)
    assert terminal.wait() == 0
    assert terminal.shown.count("is no command") == 1
