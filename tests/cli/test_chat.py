"""``redrafter-mlx chat`` from a pipe, on fakes; test_terminal.py has the real terminal."""

from __future__ import annotations

import signal
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from redrafter_mlx.cli import chat, progress
from redrafter_mlx.cli.interrupt import Interrupt
from redrafter_mlx.config import GenerationConfig, SamplingConfig
from redrafter_mlx.decoding.decode import OnPrefill
from redrafter_mlx.errors import PromptError
from redrafter_mlx.generation import Chunk
from tests.cli.conftest import Run
from tests.cli.fakes import FakeConversation, FakeLibrary

Conversations = list[FakeConversation]
STATS = "4 tokens · 3.0 tokens/s · 1.50 tokens/round · first after 0.25 s\n"


def test_each_line_of_a_pipe_is_a_turn(
    run: Run, library: FakeLibrary, conversations: Conversations
) -> None:
    result = run("chat", stdin="one\n\n  \ntwo")
    assert result.exit_code == 0
    assert result.stdout == "Hello there!\nHello there!\n"
    assert result.stderr == STATS * 2
    assert [conversation.questions for conversation in conversations] == [["one", "two"]]


def test_pipe_gets_no_escape_codes(
    run: Run, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run("chat", stdin="one\n/help\n/stats\n/nope\n")
    assert "\x1b" not in result.output
    assert ">>>" not in result.output


def test_options_reach_the_conversation(
    run: Run, library: FakeLibrary, conversations: Conversations
) -> None:
    run("chat", "--model", "m", "--system", "Be brief", "--temp", "0.5", "--max-tokens", "3")
    assert library.loads[0]["name"] == "m"
    [conversation] = conversations
    assert conversation.system == "Be brief"
    assert conversation.config == GenerationConfig(
        max_tokens=3, sampling=SamplingConfig(temperature=0.5)
    )


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("a\\\nb\\\nc\n", "a\nb\nc"),
        ("a\\\n", "a\n"),
        ('"""\na\n\n/b\\\n"""\n', "a\n\n/b\\"),
        ('  """ \na\n """\n', "a"),
        ('"""\na', "a"),
        ("//help\n", "/help"),
        ("a /help\n", "a /help"),
        ("\ta\n", "\ta"),
        ("[bold]é語[/bold]\n", "[bold]é語[/bold]"),
    ],
)
def test_message_of_several_lines(
    run: Run, library: FakeLibrary, conversations: Conversations, typed: str, message: str
) -> None:
    run("chat", stdin=typed)
    assert conversations[0].questions == [message]


def test_commands(run: Run, library: FakeLibrary, conversations: Conversations) -> None:
    typed = "/system Be  brief\none\n/stats\n/reset\n/stats\n/system\n/exit\nnever\n"
    result = run("chat", "--system", "first", stdin=typed)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "The system prompt is set",
        STATS.strip(),
        "5 tokens in the conversation",
        "1 answer · 4 tokens · 3.0 tokens/s · 1.50 tokens/round · 0 of 3 prompt tokens cached",
        "A new conversation begins",
        "0 tokens in the conversation",
        "1 answer · 4 tokens · 3.0 tokens/s · 1.50 tokens/round · 0 of 3 prompt tokens cached",
        "The system prompt is the model's",
    ]
    assert conversations[0].questions == []
    assert conversations[0].system is None


def test_system_keeps_the_text_as_it_is(
    run: Run, library: FakeLibrary, conversations: Conversations
) -> None:
    run("chat", stdin="/system  Be  [b]brief[/b] \n")
    assert conversations[0].system == "Be  [b]brief[/b]"


def test_help_lists_every_command(run: Run, library: FakeLibrary) -> None:
    shown = run("chat", stdin="/help\n").stderr
    assert all(name in shown for name in chat.COMMANDS)
    assert '""' not in shown


@pytest.mark.parametrize("typed", ["/nope", "/HELP", "/", "/etc/passwd is what?"])
def test_unknown_command_is_no_message(
    run: Run, library: FakeLibrary, conversations: Conversations, typed: str
) -> None:
    result = run("chat", stdin=typed)
    name = typed.split()[0]
    assert result.stderr.startswith(f"{name} is no command: /help lists them")
    assert result.stderr.count("\n") == 1
    assert conversations[0].questions == []


def test_cut_answer_says_so(run: Run, library: FakeLibrary) -> None:
    assert run("chat", "--max-tokens", "2", stdin="one\n").stderr.endswith(" · cut short\n")


def test_full_context_offers_reset(
    run: Run, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both behind the answer that fills it and behind a question that is refused."""
    monkeypatch.setattr(FakeConversation, "capacity", 1)
    result = run("chat", stdin="one\ntwo\n/reset\nthree\n")
    assert result.stderr.splitlines() == [
        STATS.strip(),
        "The context is full: /reset begins a new conversation",
        "redrafter-mlx: The context holds 99 tokens; start a new conversation.",
        "The context is full: /reset begins a new conversation",
        "A new conversation begins",
        STATS.strip(),
        "The context is full: /reset begins a new conversation",
    ]
    assert result.stdout == "Hello there!\nHello there!\n"
    assert result.exit_code == 1


def test_first_message_too_long_offers_no_reset(
    run: Run, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeConversation, "capacity", 0)
    result = run("chat", stdin="one\n")
    assert result.stderr == (
        "redrafter-mlx: The context holds 99 tokens; start a new conversation.\n"
    )


def test_error_ends_the_turn_and_not_the_chat(
    run: Run, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FakeConversation, text: str | None) -> None:
        raise PromptError("The model has no chat template; leave it out.")

    monkeypatch.setattr(FakeConversation, "set_system", refuse)
    result = run("chat", stdin="/system x\none\n")
    assert result.stderr.startswith("redrafter-mlx: The model has no chat template")
    assert result.stdout == "Hello there!\n"
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (b"one\n\xff\xfe\ntwo\n", 2),
        (b"one\n\n\ntwo\n/system \xe9\n", 5),
        (b"\xff", 1),
        (b'one\n"""\na\n\xff\nb\n"""\ntwo\n', 2),
        (b"a\xff\\\nb\none\ntwo\n", 1),
    ],
)
def test_message_that_is_not_utf_8_is_passed_over(
    run: Run, library: FakeLibrary, conversations: Conversations, typed: bytes, line: int
) -> None:
    """Whole, if it has several lines; the others are answered, and the exit code tells."""
    result = run("chat", stdin=typed)
    assert result.exit_code == 1
    [complaint] = [text for text in result.stderr.splitlines() if text != STATS.strip()]
    assert complaint.startswith(f"redrafter-mlx: The message of line {line} is not UTF-8")
    assert conversations[0].questions == (["one", "two"] if b"one" in typed else [])


@pytest.mark.parametrize(
    ("options", "thinking"), [([], None), (["--thinking"], True), (["--no-thinking"], False)]
)
def test_thinking_reaches_the_conversation(
    run: Run,
    library: FakeLibrary,
    conversations: Conversations,
    options: list[str],
    thinking: bool | None,
) -> None:
    assert run("chat", *options).exit_code == 0
    assert [conversation.thinking for conversation in conversations] == [thinking]


class Interrupted(FakeConversation):
    """Gets Ctrl-C for each "!" before an answer's second piece, for each "?" at its end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answers: list[Generator[Chunk, None, None]] = []
        self.closed: list[str] = []

    def ask(self, text: str, *, on_prefill: OnPrefill) -> Generator[Chunk, None, None]:
        # Kept, so that an answer is closed only where someone closes it.
        self.answers.append(self.stream(text, on_prefill))
        return self.answers[-1]

    def stream(self, text: str, on_prefill: OnPrefill) -> Generator[Chunk, None, None]:
        try:
            for index, chunk in enumerate(super().ask(text, on_prefill=on_prefill)):
                if index == 1:
                    self.interrupt(text.count("!"))
                yield chunk
        finally:
            self.closed.append(text)
            self.interrupt(text.count("?"))

    @staticmethod
    def interrupt(times: int) -> None:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)


def talk(library: FakeLibrary, *messages: str) -> Interrupted:
    """Have a chat as on a terminal."""
    conversation = Interrupted(library.load("m"), config=GenerationConfig())
    typed = iter([*messages, None])
    reader = SimpleNamespace(is_interactive=True, read=lambda: next(typed))
    parts: tuple[Any, Any] = conversation, reader
    try:
        chat.Session(*parts).run()
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C ended the chat")
    return conversation


def test_ctrl_c_stops_the_answer_between_tokens(
    library: FakeLibrary, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = talk(library, "stop!", "and")
    shown = capsys.readouterr()
    assert shown.out == "Hello \nHello there!\n\n"
    first, second = shown.err.splitlines()
    assert first.startswith("2 tokens")
    assert first.endswith(" · stopped")
    assert second == STATS.strip()
    assert conversation.closed == ["stop!", "and"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_stops_the_reading_of_a_prompt(
    library: FakeLibrary, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a chunk; the next one is not begun."""
    library.prefill = (30, 60, 90)
    asked: list[int] = []

    def show(progress: progress.PromptProgress, num_read: int, num_tokens: int) -> None:
        asked.append(num_read)
        if len(asked) == 2:
            Interrupted.interrupt(1)

    monkeypatch.setattr(progress.PromptProgress, "show", show)
    talk(library, "stop", "and")
    shown = capsys.readouterr()
    assert asked == [30, 60, 30, 60, 90]
    assert shown.out == "\nHello there!\n\n"
    assert shown.err == f"stopped\n{STATS}"


@pytest.mark.parametrize("message", ["stop!!", "stop!!????"])
def test_second_ctrl_c_stops_the_answer_at_once(
    library: FakeLibrary, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    """It stops in the midst of a token; the chat goes on, however often the key is pressed."""
    conversation = talk(library, message, "and")
    shown = capsys.readouterr()
    assert shown.out == "Hello\nHello there!\n\n"
    assert shown.err == f"stopped\n{STATS}"
    assert conversation.closed == [message, "and"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_outside_an_answer_is_ignored(
    library: FakeLibrary,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(session: chat.Session, argument: str) -> None:
        Interrupted.interrupt(3)

    monkeypatch.setitem(chat.COMMANDS, "/help", interrupt)
    talk(library, "/help", "and")
    assert capsys.readouterr().err == STATS


def test_ctrl_c_ends_a_chat_from_a_pipe(
    run: Run,
    library: FakeLibrary,
    conversations: Conversations,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one does: nobody is there to go on."""
    monkeypatch.setattr("redrafter_mlx.conversation.Conversation", Interrupted)
    result = run("chat", stdin="stop!\nand\n")
    assert result.exit_code == 130
    assert result.stdout == "Hello\n"
    assert result.stderr == ""
    [conversation] = conversations
    assert isinstance(conversation, Interrupted)
    assert conversation.closed == ["stop!"]


@pytest.mark.parametrize("press", [1, 2])
def test_ctrl_c_raises_once_and_only_where_it_is_awaited(press: int) -> None:
    interrupt = Interrupt()
    arguments: Any = (2, None)
    interrupt.handle(*arguments)
    assert not interrupt.is_requested
    with interrupt.raising_at(press):
        for _ in range(press - 1):
            interrupt.handle(*arguments)
        assert interrupt.is_requested == (press > 1)
        with pytest.raises(KeyboardInterrupt):
            interrupt.handle(*arguments)
        interrupt.handle(*arguments)
    interrupt.handle(*arguments)
