"""A library whose models say what a test wrote for them, by the contract of the real one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from redrafter_mlx.config import DrafterConfig, GenerationConfig
from redrafter_mlx.decoding.decode import OnPrefill
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import PromptError
from redrafter_mlx.generation import Chunk
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.loading.watch import SILENT, Watch

DRAFTER = DrafterConfig(hidden_size=8, vocab_size=100, exit_dim=16, num_draft_layers=2)
SECONDS_A_ROUND = 0.5


@dataclass
class FakeLibrary:
    """What ``load``, ``stream_generate`` and ``Conversation`` do, and what they were asked.

    Attributes:
        pieces: Text of each token of an answer; the token ids are 10, 11, ...
        plain_tokens: Ids that plain decoding gives instead.
        has_drafter: Whether one is found by itself.
        notices: What ``load`` has to say,
        loading_notes: and what it tells on the way.
        error: What ``stream_generate`` raises at once.
        chat_template: The tokenizer's.
        prefill: Tokens of a prompt of 100 that are read when ``on_prefill`` is called.
        loads: Arguments of each ``load``.
        runs: Prompt and configuration of each ``stream_generate``.
    """

    pieces: list[str] = field(default_factory=lambda: ["Hello", " ", "there", "!"])
    plain_tokens: list[int] | None = None
    has_drafter: bool = True
    notices: tuple[str, ...] = ()
    loading_notes: tuple[str, ...] = ()
    error: Exception | None = None
    chat_template: str = "{{ enable_thinking }}"
    prefill: Sequence[int] = ()
    loads: list[dict[str, Any]] = field(default_factory=list)
    runs: list[tuple[list[int], GenerationConfig]] = field(default_factory=list)

    def load(
        self,
        name: str,
        *,
        drafter: str | Path | None = "auto",
        dtype: str = "auto",
        watch: Watch = SILENT,
        **options: Any,
    ) -> LoadedModel:
        given = {key: value for key, value in options.items() if value is not None}
        self.loads.append({"name": name, "drafter": drafter, "dtype": dtype, **given})
        for line in self.loading_notes:
            watch.note(line)
        found = SimpleNamespace(config=DRAFTER) if self.has_drafter and drafter else None
        tokenizer = SimpleNamespace(chat_template=self.chat_template)
        target: Any = SimpleNamespace(config=SimpleNamespace(vocab_size=1000, max_positions=99))
        return LoadedModel(name, None, target, found, tokenizer, frozenset(), self.notices)  # type: ignore[arg-type]

    def stream_generate(
        self,
        model: LoadedModel,
        prompt: Sequence[int],
        config: GenerationConfig,
        **kwargs: Any,
    ) -> Generator[Chunk, None, None]:
        self.runs.append((list(prompt), config))
        if self.error is not None:
            raise self.error
        for num_read in self.prefill:
            if kwargs["on_prefill"](num_read, 100) is False:
                return
        is_plain = model.drafter is None or (config.beam and config.beam.beam_length == 1)
        tokens = list(range(10, 10 + len(self.pieces)))
        if is_plain and self.plain_tokens is not None:
            tokens = self.plain_tokens
        stats = DecodeStats(prompt_tokens=len(prompt), prefill_seconds=0.25)
        for index, token in enumerate(tokens[: config.max_tokens]):
            stats.emitted_tokens = index + 1
            stats.num_rounds = index if is_plain else (index + 1) // 2
            if not is_plain and stats.num_rounds:
                stats.drafted_by_depth = stats.accepted_by_depth = [stats.num_rounds]
                stats.accepted_by_source = {"drafter": stats.num_rounds}
            stats.num_timed_rounds = min(config.timed_every, 1)
            stats.part_seconds = {"draft": 0.125} if config.timed_every else {}
            stats.decode_seconds = stats.num_rounds * SECONDS_A_ROUND
            is_cut = index + 1 == config.max_tokens < len(tokens)
            is_last = index + 1 == len(tokens)
            reason = "length" if is_cut else "stop" if is_last else None
            yield Chunk(self.pieces[index % len(self.pieces)], token, stats, reason)

    @staticmethod
    def chat_prompt(
        model: LoadedModel, text: str, system: str | None = None, *, thinking: bool | None = None
    ) -> list[int]:
        switch = [] if thinking is None else [4 + thinking]
        return [1, *(system or "").encode(), 2, *text.encode(), 3, *switch]

    @staticmethod
    def encode(tokenizer: Any, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*([1] if add_special_tokens else []), *text.encode()]


class FakeConversation:
    """Answers by a FakeLibrary and fills up after ``capacity`` turns."""

    capacity = 100

    def __init__(
        self,
        model: LoadedModel,
        *,
        system: str | None = None,
        config: GenerationConfig,
        thinking: bool | None = None,
    ) -> None:
        self.model, self.system, self.config = model, system, config
        self.thinking = thinking
        self.questions: list[str] = []
        CONVERSATIONS.append(self)

    @property
    def num_tokens(self) -> int:
        return 5 * len(self.questions)

    @property
    def is_full(self) -> bool:
        return len(self.questions) >= self.capacity

    def ask(self, text: str, *, on_prefill: OnPrefill) -> Generator[Chunk, None, None]:
        if self.is_full:
            raise PromptError("The context holds 99 tokens; start a new conversation.")
        self.questions.append(text)
        # Looked up now, since the library's is replaced.
        from redrafter_mlx.generation import stream_generate

        prompt = list(text.encode())
        yield from stream_generate(self.model, prompt, self.config, on_prefill=on_prefill)

    def reset(self) -> None:
        self.questions.clear()

    def set_system(self, text: str | None) -> None:
        self.system = text


CONVERSATIONS: list[FakeConversation] = []
