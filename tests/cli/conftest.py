"""The commands run in process, on a library of fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from redrafter_mlx.cli.main import PROGRAM_NAME, app
from tests.cli.fakes import CONVERSATIONS, FakeConversation, FakeLibrary

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Return a function that runs a command line and gives exit code, stdout and stderr."""

    def run(*args: str, stdin: str | bytes = "") -> Result:
        return CliRunner().invoke(app, args, input=stdin, prog_name=PROGRAM_NAME)

    return run


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLibrary:
    """Put fakes in the place of the library, and the cache into a folder of the test."""
    fake = FakeLibrary()
    # Imported before anything is replaced: what it imports by name must be the real thing.
    conversation = import_module("redrafter_mlx.conversation")
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("redrafter_mlx.loading.model.load", fake.load)
    # Not by a dotted name: the package has a function that is called generate, too.
    generate = import_module("redrafter_mlx.generation")
    monkeypatch.setattr(generate, "stream_generate", fake.stream_generate)
    monkeypatch.setattr(generate, "chat_prompt", fake.chat_prompt)
    monkeypatch.setattr("redrafter_mlx.text.encode", fake.encode)
    monkeypatch.setattr(conversation, "Conversation", FakeConversation)
    monkeypatch.setattr("redrafter_mlx.decoding.margin.choice_margin", lambda *_: 0.125)
    return fake


@pytest.fixture
def conversations() -> Iterator[list[FakeConversation]]:
    """Return the conversations that the test begins."""
    CONVERSATIONS.clear()
    yield CONVERSATIONS
    CONVERSATIONS.clear()
