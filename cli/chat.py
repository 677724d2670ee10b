"""``redrafter-mlx chat``: a conversation on the terminal, or a pipe with a turn a line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from redrafter_mlx.cli import progress, render
from redrafter_mlx.cli.answer_options import AnswerOptions
from redrafter_mlx.cli.interrupt import Interrupt
from redrafter_mlx.cli.options import ModelOptions, ProgramOptions
from redrafter_mlx.cli.prompt_input import MessageReader
from redrafter_mlx.errors import PromptError, ReDrafterError

if TYPE_CHECKING:
    from redrafter_mlx.conversation import Conversation
    from redrafter_mlx.decoding.stats import DecodeStats
    from redrafter_mlx.generation import Chunk

HELP = r"""/help           this list
/reset          begin a new conversation
/system TEXT    set the system prompt; without TEXT, go back to the model's own
/stats          figures of all answers so far
/exit           leave, as Ctrl-D does
//TEXT          send a text that begins with a slash
A line that ends in \ goes on in the next one. A line of three double quotes
begins a text of several lines, another ends it. Ctrl-C stops an answer."""


def chat(model: ModelOptions, answer: AnswerOptions, program: ProgramOptions) -> None:
    """Talk with a model; each line is a turn."""
    from redrafter_mlx.conversation import Conversation
    from redrafter_mlx.loading.hub import cache_folder

    config = answer.generation_config()
    loaded = model.load(answer.thinking, is_shape_chosen=answer.is_shape_chosen)
    conversation = Conversation(
        loaded, system=answer.system, config=config, thinking=answer.thinking
    )
    with MessageReader(cache_folder() / "chat_history") as reader:
        if reader.is_interactive:
            drafter = "with a drafter" if loaded.drafter else "without a drafter"
            render.note(f"{loaded.name} {drafter}; /help lists the commands, Ctrl-D leaves")
        session = Session(conversation, reader)
        session.run()
    if session.has_failed and not reader.is_interactive:
        raise typer.Exit(1)


@dataclass(slots=True)
class Session:
    """A conversation and those who hold it.

    Attributes:
        conversation: Keeps the messages and the KV cache.
        reader: Where the messages come from.
        interrupt: What Ctrl-C does on a terminal.
        answers: Statistics of every answer so far.
        is_over: Whether the user wants to leave.
        has_failed: Whether a message got no answer.
    """

    conversation: Conversation
    reader: MessageReader
    interrupt: Interrupt = field(default_factory=Interrupt)
    answers: list[DecodeStats] = field(default_factory=list)
    is_over: bool = False
    has_failed: bool = False

    def run(self) -> None:
        """Read messages and answer them until the user leaves."""
        if not self.reader.is_interactive:
            self.take_turns()
            return
        with self.interrupt.installed():
            self.take_turns()
        if not self.is_over:
            render.line("")

    def take_turns(self) -> None:
        """Go on until the user leaves; Ctrl-C ends it only where the messages are piped in."""
        while not self.is_over:
            try:
                with self.interrupt.raising_at(1):
                    text = self.reader.read()
            except PromptError as error:
                self.fail(error)
                continue
            except KeyboardInterrupt:
                if not self.reader.is_interactive:
                    raise
                render.note("\nCtrl-D or /exit leaves")
                continue
            if text is None:
                break
            self.handle(text)

    def handle(self, text: str) -> None:
        """Run a command or answer a message; an error ends the turn and not the chat."""
        try:
            if text.startswith("//"):
                self.answer(text[1:])
            elif text.startswith("/"):
                self.run_command(text)
            elif text.strip():
                self.answer(text)
        except ReDrafterError as error:
            self.fail(error)
            self.offer_reset()

    def fail(self, error: ReDrafterError) -> None:
        """Say what was wrong with a message; the chat goes on."""
        self.has_failed = True
        render.error(str(error))

    def answer(self, text: str) -> None:
        """Show the model's answer and its figures; the second Ctrl-C stops it at once."""
        try:
            with self.interrupt.raising_at(2):
                last = self.stream(text)
                if last is None:
                    render.note("stopped")
                else:
                    self.show_ending(last)
        except KeyboardInterrupt:
            if not self.reader.is_interactive:
                raise
            # Before any text, the terminal's ^C still stands alone on the line.
            render.note("\nstopped" if self.interrupt.is_waiting else "stopped")

    def stream(self, text: str) -> Chunk | None:
        """Show the pieces as they come, until the end or Ctrl-C; return the last one."""
        last = None
        self.interrupt.is_waiting = True
        with render.AnswerWriter() as writer, progress.PromptProgress() as reading:

            def on_prefill(num_read: int, num_tokens: int) -> bool:
                if self.interrupt.is_requested:
                    return False
                reading.show(num_read, num_tokens)
                return True

            with closing(self.conversation.ask(text, on_prefill=on_prefill)) as chunks:
                for last in chunks:
                    self.interrupt.is_waiting = False
                    reading.clear()
                    writer.write(last.text)
                    if self.interrupt.is_requested:
                        break
        return last

    def show_ending(self, last: Chunk) -> None:
        """Show the figures of an answer, and why it ended where it was cut."""
        self.answers.append(last.stats)
        ending = None
        if last.finish_reason == "length":
            ending = render.CUT
        elif last.finish_reason is None and self.interrupt.is_requested:
            ending = "stopped"
        render.stats_line(last.stats, ending)
        if self.conversation.config.timed_every:
            render.stats_details(last.stats)
        self.offer_reset()

    def offer_reset(self) -> None:
        """Say what helps when the context is full; nothing does with a first message too long."""
        if self.conversation.is_full and self.conversation.num_tokens:
            render.note("The context is full: /reset begins a new conversation")

    def run_command(self, text: str) -> None:
        """Run a line that begins with a slash."""
        name, *argument = text.split(maxsplit=1)
        command = COMMANDS.get(name)
        if command is None:
            render.note(f"{name} is no command: /help lists them, // begins a text with a slash")
        else:
            command(self, "".join(argument).strip())

    def show_help(self, argument: str) -> None:
        """List the commands."""
        render.note(HELP)

    def reset(self, argument: str) -> None:
        """Forget every message but the system prompt."""
        self.conversation.reset()
        render.note("A new conversation begins")

    def set_system(self, argument: str) -> None:
        """Change the system prompt; the messages stay."""
        self.conversation.set_system(argument or None)
        render.note("The system prompt is set" if argument else "The system prompt is the model's")

    def show_stats(self, argument: str) -> None:
        """Show the figures of all answers."""
        render.note(f"{render.counted(self.conversation.num_tokens, 'token')} in the conversation")
        if self.answers:
            render.note(_summary(self.answers))

    def leave(self, argument: str) -> None:
        """End the chat."""
        self.is_over = True


COMMANDS: dict[str, Callable[[Session, str], None]] = {
    "/help": Session.show_help,
    "/reset": Session.reset,
    "/system": Session.set_system,
    "/stats": Session.show_stats,
    "/exit": Session.leave,
}


def _summary(answers: list[DecodeStats]) -> str:
    """Return the figures of several answers in one line, a token counting as any other."""
    num_tokens = sum(stats.emitted_tokens for stats in answers)
    # Each answer's first token is prefill's, of no round and no decoding time.
    num_decoded = num_tokens - len(answers)
    num_rounds = sum(stats.num_rounds for stats in answers)
    seconds = sum(stats.decode_seconds for stats in answers)
    cached = sum(stats.cached_tokens for stats in answers)
    prompt = sum(stats.prompt_tokens for stats in answers)
    return " · ".join(
        (
            render.counted(len(answers), "answer"),
            render.counted(num_tokens, "token"),
            f"{num_decoded / seconds if seconds else 0.0:.1f} tokens/s",
            f"{num_decoded / num_rounds if num_rounds else 0.0:.2f} tokens/round",
            f"{cached} of {prompt} prompt tokens cached",
        )
    )
