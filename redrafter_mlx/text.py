"""Tokens to text and back: streaming, stop strings and chat templates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from redrafter_mlx.errors import PromptError

Message = dict[str, str]

# What a decoder shows for bytes that are no character, or not one yet.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A token of a SentencePiece vocabulary that stands for one byte.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_MAX_CHARACTER_BYTES = 4
# What a template asks for, as Qwen3's and SmolLM3's do.
THINKING_SWITCH = "enable_thinking"


def encode(tokenizer: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return the ids of a text; one that already begins with the BOS text gets no second."""
    if tokenizer is None:
        raise PromptError("This model has no tokenizer; give the prompt as token ids.")
    if tokenizer.bos_token and text.startswith(tokenizer.bos_token):
        add_special_tokens = False
    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False)
    return [int(token) for token in ids]


def encode_continuation(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text that goes on from another one.

    SentencePiece tokenizers put a space before what they take for a beginning, so the
    text is encoded behind an anchor whose ids are then cut off.
    """
    for anchor in ("a", "\n"):
        head = encode(tokenizer, anchor, add_special_tokens=False)
        ids = encode(tokenizer, anchor + text, add_special_tokens=False)
        if ids[: len(head)] == head:
            return ids[len(head) :]
    return encode(tokenizer, text, add_special_tokens=False)


def decode_tokens(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Return the text of an answer's ids, without special tokens."""
    text: str = tokenizer.decode(
        list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def cut_to_text(tokenizer: Any, tokens: Sequence[int], text: str) -> list[int]:
    """Return the ids of ``text``, which begins their own text, keeping those that can stay.

    Where the text ends inside a token, its last characters are encoded anew.
    """
    for end in range(len(tokens), 0, -1):
        kept = decode_tokens(tokenizer, tokens[:end])
        if text.startswith(kept):
            return [*tokens[:end], *encode_continuation(tokenizer, text[len(kept) :])]
    return encode_continuation(tokenizer, text)


def has_chat_template(tokenizer: Any) -> bool:
    """Whether the tokenizer knows how its model was taught to converse."""
    return bool(getattr(tokenizer, "chat_template", None))


def require_thinking_switch(tokenizer: Any, thinking: bool) -> None:
    """Raise PromptError where the chat template does not ask whether to think."""
    template = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(template, Mapping):  # several by name; "default" is the one in use
        template = template.get("default", "")
    if THINKING_SWITCH not in template:
        raise PromptError(
            f"The model's chat template has no switch for thinking ({THINKING_SWITCH}); leave "
            f"out {'--thinking' if thinking else '--no-thinking'}."
        )


def render_chat(
    tokenizer: Any, messages: Sequence[Message], thinking: bool | None = None
) -> list[int]:
    """Return the ids of a conversation, ready for the model's next answer.

    Without a chat template a single user message is encoded as it is, with the special
    tokens that the tokenizer adds. ``thinking`` as in ``render_text``.

    Raises:
        PromptError: The template refuses the messages or has no switch for thinking, or
            there is no template and they are more than one user turn.
    """
    if thinking is not None:
        require_thinking_switch(tokenizer, thinking)
    if has_chat_template(tokenizer):
        return encode_chat(tokenizer, render_text(tokenizer, messages, thinking))
    if [message["role"] for message in messages] != ["user"]:
        raise PromptError(
            "The model has no chat template; give one prompt, without a system prompt."
        )
    return encode(tokenizer, messages[0]["content"], add_special_tokens=True)


def render_text(tokenizer: Any, messages: Sequence[Message], thinking: bool | None = None) -> str:
    """Return the template's text of a conversation, up to where the answer begins.

    ``thinking`` switches it on or off; ``None`` leaves it to the template.

    Raises:
        PromptError: The template refuses the messages.
    """
    switch = {} if thinking is None else {THINKING_SWITCH: thinking}
    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **switch
        )
    except MemoryError:
        raise
    except Exception as error:  # a template is a program and raises what it likes
        reason = " ".join((str(error) or type(error).__name__).split())[:200].rstrip(".")
        raise PromptError(
            f"The model's chat template refuses these messages ({reason}); "
            f"leave out the system prompt, or give the prompt raw."
        ) from error
    return text


def encode_chat(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a rendered conversation, with one BOS.

    Most templates write the BOS themselves. Where one does not, but the tokenizer puts it
    before plain texts, the model has always seen it: then it is added here.
    """
    ids = encode(tokenizer, text, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and encode(tokenizer, "", add_special_tokens=True)[:1] == [bos]
    return [bos, *ids] if adds_bos and ids[:1] != [bos] else ids


class TextStream:
    """Turns an answer's tokens into text as they come.

    What ``push`` and ``finish`` return adds up to ``decode_tokens`` of all the tokens.
    Only the last tokens are decoded each time: with the two releases before them, since a
    decoder strips the space of a first token, and with those held back, since they may be
    the beginning of a character. The one limit: SentencePiece decoders judge a run of byte
    tokens as a whole, and a run is not held back beyond ``MAX_HELD`` tokens; if a longer
    one turns out not to be UTF-8, the characters found in it stay shown.
    """

    MAX_HELD = 16

    def __init__(self, tokenizer: Any) -> None:
        """Begin an answer; without a tokenizer there is no text."""
        self._tokenizer = tokenizer
        self._special_ids = _special_ids(tokenizer)
        self._window: list[int] = []
        self._num_read = 0  # tokens of the window whose text is out,
        self._read_text = ""  # their text,
        self._last_read = 0  # and where the last release among them begins

    def push(self, token: int) -> str:
        """Take a token; return the text that is now certain."""
        name = self._name(token)
        if name is None:
            return ""
        self._window.append(token)
        # A run of byte tokens is decoded as a whole: one wrong byte changes all of it.
        if not _BYTE_TOKEN.fullmatch(name) and not self._is_open(self._window):
            return self._release(len(self._window))
        if len(self._window) - self._num_read < self.MAX_HELD:
            return ""
        return self._release(self._last_boundary())

    def finish(self) -> str:
        """Return the text that was held back, whole character or not."""
        return self._release(len(self._window))

    def _name(self, token: int) -> str | None:
        """Return the vocabulary's entry, ``None`` for one that never has a text."""
        if self._tokenizer is None or token in self._special_ids:
            return None
        name: str | None = self._tokenizer.convert_ids_to_tokens(token)
        return name

    def _is_open(self, tokens: Sequence[int]) -> bool:
        return decode_tokens(self._tokenizer, tokens).endswith(REPLACEMENT)

    def _release(self, end: int) -> str:
        """Return the text of the window up to ``end`` that is not out yet, and move on."""
        if end == self._num_read:
            return ""
        text = decode_tokens(self._tokenizer, self._window[:end])
        if text.startswith(self._read_text):
            piece = text[len(self._read_text) :]
        else:
            piece = decode_tokens(self._tokenizer, self._window[self._num_read : end])
        self._window, self._last_read, self._num_read = (
            self._window[self._last_read :],
            self._num_read - self._last_read,
            end - self._last_read,
        )
        self._read_text = decode_tokens(self._tokenizer, self._window[: self._num_read])
        return piece

    def _last_boundary(self) -> int:
        """Return where to end a run that has been held back for too long.

        Behind the last whole character if there is one near the end; else, in bytes that
        are no characters, where cutting does not change the text.
        """
        end = len(self._window)
        cuts = range(end, end - _MAX_CHARACTER_BYTES, -1)
        for cut in cuts:
            if not self._is_open(self._window[:cut]):
                return cut
        text = decode_tokens(self._tokenizer, self._window)
        for cut in cuts[1:]:
            parts = (self._window[:cut], self._window[cut:])
            if "".join(decode_tokens(self._tokenizer, part) for part in parts) == text:
                return cut
        return end


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids that ``skip_special_tokens`` leaves out."""
    if tokenizer is None:
        return frozenset()
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(token for token, entry in added if entry.special)


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces of any size.

    The stop string that is complete first wins, and of two that end together the longer
    one, so how the text is cut makes no difference.

    Attributes:
        matched: The stop string that was found; what follows it is dropped.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Begin a text."""
        self._stop = tuple(stop)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take a piece; return what is certainly no part of a stop string."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [stop for stop in self._stop if stop in text]
        if found:
            self.matched = min(found, key=lambda stop: (text.find(stop) + len(stop), -len(stop)))
            self._held = ""
            return text[: text.find(self.matched)]
        num_safe = len(text) - self._num_held(text)
        self._held = text[num_safe:]
        return text[:num_safe]

    def finish(self) -> str:
        """Return what was held back and became no stop string."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        """Return the length of the longest end of the text that may become a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
