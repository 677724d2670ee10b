"""Texts by others, and answers in an ``.npz``, as samples for a target to read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from redrafter_mlx.errors import PromptError
from redrafter_mlx.text import encode_continuation, render_chat
from redrafter_mlx.training.corpus import READ, Sample, read_shard, shard_path, write_shard
from redrafter_mlx.training.texts import Exchange, read_exchanges

SHARD_SAMPLES = 64


def read_samples(
    source: Path, encode: Callable[[Exchange], Sample | None], vocab_size: int
) -> list[Sample]:
    """Return a file's prompts with their answers.

    Args:
        source: What ``read_exchanges`` reads, with answers; or an ``.npz`` of answers that
            the target gave, which keep their temperatures.
        encode: Turns an exchange into a sample, ``None`` for one to leave out.
        vocab_size: Ids are smaller than this.

    Raises:
        PromptError: The file cannot be read, or no line of it has an answer.
    """
    if source.suffix == ".npz":
        samples = read_shard(source, vocab_size)
    else:
        samples = [sample for sample in map(encode, read_exchanges(source)) if sample is not None]
    if not samples:
        raise PromptError(f"{source} has no line with an answer to read; choose another file.")
    return samples


def add_samples(folder: Path, digest: str, samples: Sequence[Sample]) -> None:
    """Add a file's samples to a corpus, to be read by the target.

    Args:
        folder: The corpus.
        digest: The file's; what an earlier call wrote of it is kept.
        samples: All of its samples.
    """
    part = f"read-{digest[:8]}"
    for number, start in enumerate(range(0, len(samples), SHARD_SAMPLES)):
        path = shard_path(folder, part, number)
        if not path.exists():
            write_shard(path, samples[start : start + SHARD_SAMPLES])


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


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        PromptError: It cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PromptError(f"{path} cannot be read ({error.strerror}); check the path.") from error
