"""Answers to a prompt, whole or streamed as text."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.decoding.decode import OnPrefill, decode, most_tokens
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import PromptError
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.text import Message, StopMatcher, TextStream, encode, render_chat

_DEFAULTS = GenerationConfig()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One emitted token and the text that became certain with it.

    Attributes:
        text: May be empty; never holds an end-of-sequence token or a stop string.
        token: The token's id.
        stats: The running statistics: one object for the whole answer.
        finish_reason: ``stop`` (end of sequence or stop string), ``length`` (max_tokens
            or the end of the context), ``None`` before the last chunk.
    """

    text: str
    token: int
    stats: DecodeStats
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        text: Without the end-of-sequence token and the stop string.
        tokens: Every emitted id, these included.
        prompt_tokens: The ids that were answered.
        stats: Counts and times.
        finish_reason: As in ``Chunk``.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    stats: DecodeStats
    finish_reason: str

    @classmethod
    def of(cls, chunks: Sequence[Chunk], prompt_tokens: Sequence[int]) -> Answer:
        """Put the chunks of a finished answer together."""
        last = chunks[-1]
        assert last.finish_reason is not None
        return cls(
            text="".join(chunk.text for chunk in chunks),
            tokens=tuple(chunk.token for chunk in chunks),
            prompt_tokens=tuple(prompt_tokens),
            stats=last.stats,
            finish_reason=last.finish_reason,
        )


def generate(
    model: LoadedModel, prompt: str | Sequence[int], config: GenerationConfig = _DEFAULTS
) -> Answer:
    """Return the answer to a prompt; arguments and errors as ``stream_generate``."""
    tokens = _prompt_tokens(model, prompt)
    return Answer.of(list(stream_generate(model, tokens, config)), tokens)


def stream_generate(
    model: LoadedModel,
    prompt: str | Sequence[int],
    config: GenerationConfig = _DEFAULTS,
    *,
    kv_cache: KVCache | None = None,
    on_prefill: OnPrefill | None = None,
) -> Generator[Chunk, None, None]:
    """Yield a chunk for each emitted token; the last one has the finish reason.

    Closed at any point, or at the last chunk, it leaves ``kv_cache`` holding the prompt
    and every yielded token but the last.

    Args:
        model: The target, with or without a drafter.
        prompt: Token ids, or a text that is taken as it is, with the special tokens that
            the tokenizer adds.
        config: Limits, stop strings, sampling and the draft's shape.
        kv_cache: Holds ``prompt[: kv_cache.offset]``; by default an empty one.
        on_prefill: Called between the chunks of a long prompt with the tokens read and to
            be read; where it returns False nothing is yielded and ``kv_cache`` holds the
            chunks read.

    Raises:
        PromptError: The prompt is empty, does not fit the context, or has an id that the
            model does not know.
    """
    tokens = _prompt_tokens(model, prompt)
    cache = model.target.make_kv_cache() if kv_cache is None else kv_cache
    stats = DecodeStats()
    writer = _Writer(model, config, len(tokens), stats)
    with closing(decode(model, cache, tokens, config, stats, on_prefill)) as decoded:
        for token in decoded:
            chunk = writer.write(token)
            if chunk.finish_reason is not None:
                # Before the yield, for a reader who never asks for more.
                decoded.close()
            yield chunk


def chat_prompt(
    model: LoadedModel,
    user_text: str,
    system: str | None = None,
    *,
    thinking: bool | None = None,
) -> list[int]:
    """Return the ids of one user turn, through the chat template if there is one.

    Args:
        model: Its tokenizer brings the template.
        user_text: The turn.
        system: System prompt; ``None`` leaves it to the template.
        thinking: Whether the model thinks first; ``None`` leaves it to the template.

    Raises:
        PromptError: The template refuses it, has no switch for thinking, or there is none
            to hold a system prompt.
    """
    messages: list[Message] = [{"role": "user", "content": user_text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return render_chat(model.tokenizer, messages, thinking)


def _prompt_tokens(model: LoadedModel, prompt: str | Sequence[int]) -> list[int]:
    if isinstance(prompt, str):
        tokens = encode(model.tokenizer, prompt, add_special_tokens=True)
    else:
        tokens = [int(token) for token in prompt]
    vocab_size = model.target.config.vocab_size
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise PromptError(
                f"The prompt has the token id {token}, but the model knows ids up to "
                f"{vocab_size - 1}; use the model's own tokenizer."
            )
    return tokens


class _Writer:
    """Makes the chunk of each token and knows which one is the last."""

    def __init__(
        self, model: LoadedModel, config: GenerationConfig, prompt_size: int, stats: DecodeStats
    ) -> None:
        self._stream = TextStream(model.tokenizer)
        self._matcher = StopMatcher(config.stop)
        self._eos_ids = frozenset() if config.ignore_eos else model.eos_ids
        max_positions = model.target.config.max_positions
        self._num_left = most_tokens(config.max_tokens, prompt_size, max_positions)
        self._stats = stats

    def write(self, token: int) -> Chunk:
        self._num_left -= 1
        is_eos = token in self._eos_ids
        text = "" if is_eos else self._matcher.push(self._stream.push(token))
        if not (is_eos or self._matcher.matched or self._num_left == 0):
            return Chunk(text, token, self._stats, None)
        text += self._matcher.push(self._stream.finish()) + self._matcher.finish()
        is_stopped = is_eos or self._matcher.matched is not None
        return Chunk(text, token, self._stats, "stop" if is_stopped else "length")
