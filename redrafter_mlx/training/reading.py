"""Texts by others, and answers in an ``.npz``, as samples for a target to read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from redrafter_mlx.errors import PromptError
from redrafter_mlx.text import encode_continuation, render_chat
from redrafter_mlx.training.corpus import READ, Sample, read_shard, shard_path, write_shard
from redrafter_mlx.training.texts import Exchange, read_exchanges

SHARD_SAMPLES = 64


def add_texts(
    folder: Path, source: Path, encode: Callable[[Exchange], Sample | None], vocab_size: int
) -> int:
    """Add a file's prompts with their answers to a corpus, to be read by the target.

    Args:
        folder: The corpus.
        source: What ``read_exchanges`` reads, with answers; or an ``.npz`` of answers that
            the target gave, which keep their temperatures.
        encode: Turns an exchange into a sample, ``None`` for one to leave out.
        vocab_size: Ids are smaller than this.

    Returns:
        The number of samples; what an earlier call of the same file wrote is kept.

    Raises:
        PromptError: The file cannot be read, or no line of it has an answer.
    """
    if source.suffix == ".npz":
        samples: Iterable[Sample] = read_shard(source, vocab_size)
    else:
        samples = _encoded(source, encode)
    part, total = f"read-{_digest(source)}", 0
    remaining = iter(samples)
    for number, group in enumerate(iter(lambda: list(islice(remaining, SHARD_SAMPLES)), [])):
        total += len(group)
        path = shard_path(folder, part, number)
        if not path.exists():
            write_shard(path, group)
    if total == 0:
        raise PromptError(f"{source} has no line with an answer to read; choose another file.")
    return total


def text_encoder(
    tokenizer: Any, eos_token: int | None, max_tokens: int
) -> Callable[[Exchange], Sample | None]:
    """Return what turns an exchange into a sample, rendered as a chat with this model is.

    Args:
        tokenizer: The target's.
        eos_token: Put behind an answer that is not cut; ``None`` puts nothing.
        max_tokens: Most tokens of prompt and answer; a longer prompt is left out, a longer
            answer cut.
    """

    def encode(exchange: Exchange) -> Sample | None:
        if exchange.answer is None:
            return None
        prompt = render_chat(tokenizer, exchange.messages)
        answer = encode_continuation(tokenizer, exchange.answer.strip())
        if eos_token is not None:
            answer.append(eos_token)
        tokens = np.array([*prompt, *answer][:max_tokens], np.int32)
        return Sample(tokens, len(prompt), READ) if len(tokens) > len(prompt) + 1 else None

    return encode


def _encoded(source: Path, encode: Callable[[Exchange], Sample | None]) -> Iterator[Sample]:
    for exchange in read_exchanges(source):
        sample = encode(exchange)
        if sample is not None:
            yield sample


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    except OSError as error:
        raise PromptError(f"{path} cannot be read ({error.strerror}); check the path.") from error
