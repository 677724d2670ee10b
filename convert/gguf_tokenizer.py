"""The byte-level BPE tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrafter_mlx.convert.cursor import shown
from redrafter_mlx.convert.gguf import GgufFile
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONTROL = 3
_USER_DEFINED = 4
_SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_END_TOKENS = ("eos", "eot", "eom")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before the merges apply.

    Attributes:
        pattern: Regular expression of the pieces; ``None`` for the one of GPT-2.
        splits_digits: Whether each digit is first cut off on its own.
        ignores_merges: Whether a piece that is a token is taken whole.
        adds_bos: Whether a text begins with the BOS token unless the file says otherwise.
        normalizes: Whether the text is brought to Unicode's form C first.
    """

    pattern: str | None = None
    splits_digits: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False
    normalizes: bool = False


_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_3 = PreTokenizer(_WORDS % "{1,3}", ignores_merges=True, adds_bos=True)

# Source: llama.cpp, src/llama-vocab.cpp (names, regular expressions, ignore_merges and
# add_bos), which quotes the patterns of the models' own tokenizer.json; form C is Qwen2's.
_PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(splits_digits=True),
    "llama-bpe": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "llama3": _LLAMA_3,
    "qwen2": PreTokenizer(_WORDS % "", normalizes=True),
}


def write_tokenizer(gguf: GgufFile, folder: Path, context_length: int) -> None:
    """Write the tokenizer and its settings, the chat template among them, into a folder.

    Raises:
        CheckpointError: The tokenizer is of another kind than byte-level BPE, unknown or
            damaged.
    """
    write_json(folder / "tokenizer_config.json", _tokenizer_config(gguf, context_length))
    write_json(folder / "tokenizer.json", json.loads(build_tokenizer(gguf).to_str()))


def build_tokenizer(gguf: GgufFile) -> Tokenizer:
    """Return the tokenizer of a GGUF file.

    Raises:
        CheckpointError: See ``write_tokenizer``.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    rules = _pre_tokenizer_rules(gguf)
    vocab = _read_vocab(gguf)
    merges = _read_merges(gguf, vocab)
    bpe = models.BPE(vocab=vocab, merges=merges, ignore_merges=rules.ignores_merges)
    tokenizer = Tokenizer(bpe)
    if rules.normalizes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _make_pre_tokenizer(rules)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, gguf, list(vocab))
    if _adds_bos(gguf):
        _prepend_bos(tokenizer, gguf)
    return tokenizer


def special_token_ids(gguf: GgufFile) -> dict[str, int]:
    """Return the ids of ``bos``, ``eos``, ``unk`` and ``pad``, of those that the file names."""
    ids = {name: _token_id(gguf, word) for name, word in _SPECIAL_TOKENS.items()}
    return {name: token for name, token in ids.items() if token is not None}


def end_token_ids(gguf: GgufFile) -> list[int]:
    """Return the ids that end an answer: end of sequence, of turn and of message."""
    ids = {_token_id(gguf, word) for word in _END_TOKENS}
    return sorted(token for token in ids if token is not None)


def _token_id(gguf: GgufFile, word: str) -> int | None:
    key = f"tokenizer.ggml.{word}_token_id"
    if key not in gguf.metadata:
        return None
    token = gguf.metadata[key]
    num_tokens = len(gguf.strings("tokenizer.ggml.tokens"))
    if type(token) is not int or not 0 <= token < num_tokens:
        raise _damaged(gguf, f"{key} is {shown(token)} and there are {num_tokens} tokens")
    return token


def _pre_tokenizer_rules(gguf: GgufFile) -> PreTokenizer:
    model = gguf.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(
            f"{gguf.path} has a tokenizer of the kind {model!r:.40}; only byte-level BPE (gpt2) "
            "can be converted, so use the model's original repository."
        )
    name = gguf.text("tokenizer.ggml.pre", "default")
    if name not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{gguf.path} has the pre-tokenizer {name!r:.40}, not one of "
            f"{', '.join(_PRE_TOKENIZERS)}; use the model's original repository."
        )
    return _PRE_TOKENIZERS[name]


def _adds_bos(gguf: GgufFile) -> bool:
    return gguf.flag("tokenizer.ggml.add_bos_token", _pre_tokenizer_rules(gguf).adds_bos)


def _read_vocab(gguf: GgufFile) -> dict[str, int]:
    tokens = gguf.strings("tokenizer.ggml.tokens")
    vocab = {text: token for token, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise _damaged(gguf, "two tokens have the same text")
    return vocab


def _read_merges(gguf: GgufFile, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Split the merges ``left right`` and check that their tokens are there."""
    merges = []
    for line in gguf.strings("tokenizer.ggml.merges"):
        left, _, right = line.partition(" ")
        if not (left in vocab and right in vocab and left + right in vocab):
            raise _damaged(gguf, f"the merge {line!r:.80} makes no token")
        merges.append((left, right))
    return merges


def _make_pre_tokenizer(rules: PreTokenizer) -> Any:
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = []
    if rules.splits_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rules.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(rules.pattern), behavior="isolated"))
    is_gpt2 = rules.pattern is None
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=is_gpt2))
    return pre_tokenizers.Sequence(steps)


def _add_tokens(tokenizer: Tokenizer, gguf: GgufFile, tokens: list[str]) -> None:
    """Make the control and the user-defined tokens match before all text."""
    from tokenizers import AddedToken

    kinds = gguf.whole_numbers("tokenizer.ggml.token_type").tolist()
    for text, kind in zip(tokens, kinds, strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            token = AddedToken(text, normalized=False, special=kind == _CONTROL)
            tokenizer.add_tokens([token])


def _prepend_bos(tokenizer: Tokenizer, gguf: GgufFile) -> None:
    from tokenizers import processors

    token = _token_id(gguf, "bos")
    if token is None:
        raise _damaged(gguf, "a text begins with a BOS token and it names none")
    text = gguf.strings("tokenizer.ggml.tokens")[token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[text, "$A"], pair=[text, "$A", "$B"], special_tokens=[(text, token)]
    )


def _tokenizer_config(gguf: GgufFile, context_length: int) -> dict[str, Any]:
    tokens = gguf.strings("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "add_bos_token": _adds_bos(gguf),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for name, token in special_token_ids(gguf).items():
        config[f"{name}_token"] = tokens[token]
    if "tokenizer.chat_template" in gguf.metadata:
        config["chat_template"] = gguf.text("tokenizer.chat_template")
    return dict(sorted(config.items()))


def _damaged(gguf: GgufFile, what: str) -> CheckpointError:
    return CheckpointError(f"The tokenizer of {gguf.path} is damaged: {what}; get another file.")
