"""A program: the command line on a tiny random model that answers until it is stopped.

The library is the real one; only the weights and the tokenizer are made up. With a terminal
as standard input it becomes the one that gets Ctrl-C. SECONDS_A_TOKEN slows it down.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlx.core as mx

import redrafter_mlx.loading.model
from redrafter_mlx.cli.main import main
from redrafter_mlx.loading.model import LoadedModel
from tests.toy import toy_drafter, toy_model, toy_target

FIRST = 32  # the code of the space, token 0
NUM_TOKENS = 127 - FIRST
SECONDS_A_TOKEN = float(os.environ.get("SECONDS_A_TOKEN", "0"))


class LetterTokenizer:
    """One token a printable ASCII character; what else there is becomes a space."""

    bos_token = bos_token_id = None
    chat_template = "yes"
    added_tokens_decoder: Mapping[int, Any] = MappingProxyType({})
    all_special_ids = ()

    def encode(self, text: str, **options: Any) -> list[int]:
        return [max(ord(letter) - FIRST, 0) % NUM_TOKENS for letter in text]

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        time.sleep(SECONDS_A_TOKEN)
        return "".join(chr(token + FIRST) for token in tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.decode([token])

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"<{entry['role']}>{entry['content']}" for entry in messages) + "<answer>"


def load(name_or_path: str | Path, **options: Any) -> LoadedModel:
    """Return the tiny model, whatever was asked for."""
    target = toy_target(vocab_size=NUM_TOKENS, max_positions=100_000)
    model = toy_model(target, toy_drafter(target))
    return replace(model, tokenizer=LetterTokenizer())


if __name__ == "__main__":
    if sys.stdin.isatty():
        fcntl.ioctl(sys.stdin, termios.TIOCSCTTY, 0)
    mx.disable_compile()
    redrafter_mlx.loading.model.load = load
    main()
