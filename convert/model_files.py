"""The files that lie beside a model's weights."""

from __future__ import annotations

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
)  # fmt: skip
# Each of them is enough for a tokenizer.
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
CHAT_TEMPLATE_FILE = "chat_template.jinja"
CHAT_TEMPLATE_FILES = (CHAT_TEMPLATE_FILE, "chat_template.json")
OTHER_FILES = (*CHAT_TEMPLATE_FILES, "generation_config.json")
