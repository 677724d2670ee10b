"""Multi-turn chat on one KV cache."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.decoding.decode import OnPrefill
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import PromptError
from redrafter_mlx.generation import Chunk, stream_generate
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.segments import (
    common_prefix_length,
    interleave,
    opening_of,
    split_at,
    with_opening,
)
from redrafter_mlx.text import (
    Message,
    cut_to_text,
    decode_tokens,
    encode,
    encode_chat,
    encode_continuation,
    has_chat_template,
    render_text,
    require_thinking_switch,
)


@dataclass(frozen=True, slots=True)
class _Prompt:
    """Ids of the conversation up to a new answer.

    Attributes:
        tokens: The ids.
        opening: Last word of the rendered text and the white space behind it, where the
            answer begins.
    """

    tokens: list[int]
    opening: str = ""


@dataclass(slots=True)
class _Turn:
    """A question and its answer as far as it has come.

    Attributes:
        question: What the user wrote.
        opening: As in ``_Prompt``.
        num_tokens: Ids of the conversation up to the answer's latest token.
        shown: The answer's text so far, but for what is held back.
        tokens: The generated ids, in the end without what is not shown of them: an
            end-of-sequence token, a stop string.
    """

    question: str
    opening: str
    num_tokens: int
    shown: str = ""
    tokens: list[int] = field(default_factory=list)


class Conversation:
    """Questions and answers, where each turn reuses the KV cache of the turns before.

    The history keeps the generated ids: encoding an answer's text again may give others,
    which the model did not write. Where the chat template writes a past answer otherwise
    than it was (some leave out the thinking), the template is followed.

    Attributes:
        config: Settings of the next answers.
        stats: Statistics of the latest answer.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        system: str | None = None,
        config: GenerationConfig | None = None,
        thinking: bool | None = None,
    ) -> None:
        """Begin a conversation.

        Args:
            model: What answers.
            system: See ``set_system``.
            config: Settings of the answers.
            thinking: Whether the model thinks first; ``None`` leaves it to the template.

        Raises:
            PromptError: There is a system prompt, but no chat template to hold it, or the
                template has no switch for thinking.
        """
        if thinking is not None:
            require_thinking_switch(model.tokenizer, thinking)
        self._thinking = thinking
        self.config = config or GenerationConfig()
        self.stats: DecodeStats | None = None
        self._model = model
        self._start_cache()
        self._turns: list[_Turn] = []
        self._running: Generator[Chunk, None, None] | None = None
        self._was_refused = False
        self._system: str | None = None
        self.set_system(system)

    @property
    def system(self) -> str | None:
        """The system prompt; ``None`` leaves it to the chat template."""
        return self._system

    @property
    def messages(self) -> list[Message]:
        """The conversation as it stands, an unfinished answer included."""
        return self._messages(self._answers())

    @property
    def num_tokens(self) -> int:
        """Ids of the conversation as of the latest answer."""
        return self._turns[-1].num_tokens if self._turns else 0

    @property
    def is_full(self) -> bool:
        """Whether the context ended the latest answer or had no room for a question."""
        return self._was_refused or self.num_tokens >= self._max_positions

    def ask(
        self, user_text: str, *, on_prefill: OnPrefill | None = None
    ) -> Generator[Chunk, None, None]:
        """Yield the answer's chunks.

        The history follows the chunks: closed or interrupted at any point, the turn holds
        the ids yielded so far, and without any the question is forgotten. Asking again, or
        changing the conversation, closes an answer that is still open. ``on_prefill`` as in
        ``stream_generate``.

        Raises:
            PromptError: The question does not fit, or the chat template refuses it.
        """
        self._close_running()
        self._running = self._answer(user_text, on_prefill)
        return self._running

    def reset(self) -> None:
        """Forget all turns and keep the system prompt."""
        self._close_running()
        self._turns.clear()

    def undo_last(self) -> str | None:
        """Forget the latest turn; return its question, ``None`` if there is no turn."""
        self._close_running()
        return self._turns.pop().question if self._turns else None

    def set_system(self, text: str | None) -> None:
        """Change the system prompt, from the next answer on, for the whole conversation.

        Raises:
            PromptError: There is no chat template to hold it.
        """
        if text is not None and not has_chat_template(self._model.tokenizer):
            raise PromptError(
                "The model has no chat template, so there is no place for a system prompt; "
                "leave it out."
            )
        self._close_running()
        self._system = text

    @property
    def _max_positions(self) -> int:
        return self._model.target.config.max_positions

    def _close_running(self) -> None:
        if self._running is not None:
            self._running.close()
        self._running = None
        self._was_refused = False

    def _answer(self, question: str, on_prefill: OnPrefill | None) -> Generator[Chunk, None, None]:
        prompt = self._prompt(question)
        self._check_room(len(prompt.tokens))
        self._keep_common_prefix(prompt.tokens)
        turn = _Turn(question, prompt.opening, len(prompt.tokens))
        stream = stream_generate(
            self._model,
            prompt.tokens,
            self.config,
            kv_cache=self._kv_cache,
            on_prefill=on_prefill,
        )
        try:
            with closing(stream) as chunks:
                for chunk in chunks:
                    if not turn.tokens:
                        self._turns.append(turn)
                    self._record(turn, chunk)
                    yield chunk
        except (Exception, KeyboardInterrupt):
            # Raised in the midst of a pass, nobody knows what the device had done by then.
            self._start_cache()
            raise

    def _start_cache(self) -> None:
        self._kv_cache = self._model.target.make_kv_cache()
        # What the cache holds is the beginning of these ids, up to its offset.
        self._cached: list[int] = []

    def _record(self, turn: _Turn, chunk: Chunk) -> None:
        """Bring the history up to a chunk before anyone sees it."""
        self.stats = chunk.stats
        self._cached.append(chunk.token)
        turn.num_tokens += 1
        turn.tokens.append(chunk.token)
        turn.shown += chunk.text
        if chunk.finish_reason == "stop":
            self._drop_ending(turn)

    def _drop_ending(self, turn: _Turn) -> None:
        """Take the end-of-sequence token or the stop string out of the answer's ids."""
        if turn.tokens[-1] in self._model.eos_ids:
            turn.tokens.pop()
        else:
            turn.tokens = cut_to_text(self._model.tokenizer, turn.tokens, turn.shown)

    def _answers(self) -> list[str]:
        """Return the texts of the answers, with what an interrupted one held back."""
        return [decode_tokens(self._model.tokenizer, turn.tokens) for turn in self._turns]

    def _check_room(self, num_tokens: int) -> None:
        if num_tokens < self._max_positions:
            return
        self._was_refused = True
        remedy = "start a new conversation" if self._turns else "shorten it"
        raise PromptError(
            f"With this question the conversation has {num_tokens} tokens, but the model's "
            f"context holds {self._max_positions}; {remedy}."
        )

    def _keep_common_prefix(self, tokens: list[int]) -> None:
        """Rewind the cache to what it shares with a new prompt; one id at least is run."""
        self._kv_cache.rewind(common_prefix_length(self._cached, tokens[:-1]))
        self._cached = list(tokens)

    def _messages(self, answers: Sequence[str], question: str | None = None) -> list[Message]:
        messages: list[Message] = []
        if self._system is not None:
            messages.append({"role": "system", "content": self._system})
        for turn, answer in zip(self._turns, answers, strict=True):
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": answer})
        if question is not None:
            messages.append({"role": "user", "content": question})
        return messages

    def _prompt(self, question: str) -> _Prompt:
        """Return the ids of the whole conversation, each answer by its generated ids."""
        tokenizer = self._model.tokenizer
        if not has_chat_template(tokenizer):
            first, *rest = [*(turn.question for turn in self._turns), question]
            return _Prompt(self._join(encode(tokenizer, first, add_special_tokens=True), rest))
        answers = self._answers()
        text = self._rendered(answers, question)
        first, *rest = self._segments(text, answers, question)
        return _Prompt(self._join(encode_chat(tokenizer, first), rest), opening_of(text))

    def _segments(self, text: str, answers: list[str], question: str) -> list[str]:
        """Return what the template writes around the answers; all of ``text`` if it alters one."""
        marks = [secrets.token_hex(16) for _ in answers]
        segments = split_at(self._rendered(marks, question), marks)
        as_they_are = interleave(segments, answers)
        trimmed = interleave(segments, [answer.strip() for answer in answers])
        if text not in (as_they_are, trimmed):
            return [text]
        # The model answered behind the opening, wherever the template writes past answers.
        for place, turn in enumerate(self._turns):
            segments[place] = with_opening(segments[place], turn.opening)
        return segments

    def _rendered(self, answers: Sequence[str], question: str) -> str:
        messages = self._messages(answers, question)
        return render_text(self._model.tokenizer, messages, self._thinking)

    def _join(self, tokens: list[int], segments: Sequence[str]) -> list[int]:
        """Append the generated ids of each answer and the segment behind it."""
        for turn, segment in zip(self._turns, segments, strict=False):
            tokens += turn.tokens
            tokens += encode_continuation(self._model.tokenizer, segment)
        return tokens
