"""Counts and times of a decode, and the figures made of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class DecodeStats:
    """Running statistics of one answer.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them that the KV cache already held.
        emitted_tokens: Tokens of the answer so far; the first is prefill's.
        num_rounds: Target passes after prefill.
        verified_rows: Tree rows that those passes ran, row 0 included.
        drafted_by_depth: Rounds that offered a draft token at depth 1, 2, ...
        accepted_by_depth: Rounds that kept one at that depth.
        accepted_by_source: Draft tokens kept, by who drafted them: ``drafter``, ``lookup``.
        num_plain_steps: Passes over ``next_token`` alone.
        part_seconds: Time of the rounds that were timed in parts, by part: ``draft``,
            ``verify``, ``accept``, ``commit``, ``host``.
        num_timed_rounds: How many those were.
        prefill_seconds: From the call to the first token.
        decode_seconds: From the first token to the latest.
        started_at: ``time.perf_counter`` at the call.
        first_token_at: The same at the first token.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    emitted_tokens: int = 0
    num_rounds: int = 0
    verified_rows: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    num_plain_steps: int = 0
    part_seconds: dict[str, float] = field(default_factory=dict)
    num_timed_rounds: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    started_at: float = field(default_factory=time.perf_counter)
    first_token_at: float | None = None

    def record_round(self, rows: int, depth: int) -> None:
        """Count one target pass over ``rows`` rows that offered ``depth`` draft tokens."""
        self.num_rounds += 1
        self.verified_rows += rows
        self.num_plain_steps += rows == 1
        missing = depth - len(self.drafted_by_depth)
        self.drafted_by_depth += [0] * missing
        self.accepted_by_depth += [0] * missing
        for level in range(depth):
            self.drafted_by_depth[level] += 1

    def record_part(self, part: str, seconds: float) -> None:
        """Count the time of a part of a timed round."""
        self.part_seconds[part] = self.part_seconds.get(part, 0.0) + seconds

    def record_token(self, depth: int = 1, source: str | None = None) -> None:
        """Count one emitted token and note the time.

        Args:
            depth: Its place in what the pass brought, from 1.
            source: What drafted it; ``None`` for the target's own.
        """
        now = time.perf_counter()
        self.emitted_tokens += 1
        if source is not None:
            self.accepted_by_depth[depth - 1] += 1
            self.accepted_by_source[source] = self.accepted_by_source.get(source, 0) + 1
        if self.first_token_at is None:
            self.first_token_at = now
            self.prefill_seconds = now - self.started_at
        self.decode_seconds = now - self.first_token_at

    @property
    def tokens_per_round(self) -> float:
        """``(emitted - 1) / rounds``: the first token is prefill's."""
        return (self.emitted_tokens - 1) / self.num_rounds if self.num_rounds else 0.0

    @property
    def seconds_per_round(self) -> float:
        """Time from the first token to the latest, a round; 0 before any has ended."""
        return self.decode_seconds / self.num_rounds if self.num_rounds else 0.0

    @property
    def accepted_per_round(self) -> float:
        """Draft tokens kept a round; the target's own token is not among them."""
        return sum(self.accepted_by_depth) / self.num_rounds if self.num_rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed without prefill."""
        if self.decode_seconds <= 0.0:
            return 0.0
        return (self.emitted_tokens - 1) / self.decode_seconds

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prefill speed over the tokens that were not cached."""
        if self.prefill_seconds <= 0.0:
            return 0.0
        return (self.prompt_tokens - self.cached_tokens) / self.prefill_seconds

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Share of the rounds with a draft that deep which kept its token there."""
        pairs = zip(self.accepted_by_depth, self.drafted_by_depth, strict=True)
        return [accepted / drafted for accepted, drafted in pairs]

    @property
    def part_milliseconds(self) -> dict[str, float]:
        """Mean time of each part of a round, over the rounds that were timed."""
        rounds = max(self.num_timed_rounds, 1)
        return {part: 1e3 * seconds / rounds for part, seconds in self.part_seconds.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a JSON object, times in seconds."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "emitted_tokens": self.emitted_tokens,
            "num_rounds": self.num_rounds,
            "verified_rows": self.verified_rows,
            "tokens_per_round": self.tokens_per_round,
            "accepted_per_round": self.accepted_per_round,
            "tokens_per_second": self.tokens_per_second,
            "prompt_tokens_per_second": self.prompt_tokens_per_second,
            "time_to_first_token_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "acceptance_by_depth": self.acceptance_by_depth,
            "accepted_by_source": self.accepted_by_source,
            "num_plain_steps": self.num_plain_steps,
            "part_milliseconds": self.part_milliseconds,
        }
