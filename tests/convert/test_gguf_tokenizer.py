"""The tokenizer that a GGUF file's metadata describe."""

import json
from pathlib import Path
from typing import Any

import pytest

from redrafter_mlx.convert.gguf import GgufFile, read_gguf
from redrafter_mlx.convert.gguf_tokenizer import (
    build_tokenizer,
    end_token_ids,
    special_token_ids,
    write_tokenizer,
)
from redrafter_mlx.errors import CheckpointError
from tests.convert.tiny_gguf import tiny_tokens, wheel_gguf, write_tiny

TOKENS = tiny_tokens()
BOS, END, NOTE = 0, 1, 2


def tiny(tmp_path: Path, **changes: Any) -> GgufFile:
    changes = {f"tokenizer.{key}": item for key, item in changes.items()}
    return read_gguf(write_tiny(tmp_path / "x.gguf", **changes))


def ids(*texts: str) -> list[int]:
    return [TOKENS.index(text) for text in texts]


@pytest.mark.real_model
def test_ids_are_those_of_llama_cpp(tmp_path: Path, shared: Path) -> None:
    """All 18 texts, through the tokenizer as transformers loads it from the folder."""
    from transformers import AutoTokenizer

    write_tokenizer(read_gguf(wheel_gguf()), tmp_path, 8192)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    cases = json.loads((shared / "data/tokenizer/smollm2_llama_cpp.json").read_text())
    assert len(cases) == 18
    for case in cases:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]


@pytest.mark.real_model
def test_chat_template_and_special_tokens_survive(tmp_path: Path, shared: Path) -> None:
    from transformers import AutoTokenizer

    gguf = read_gguf(wheel_gguf())
    write_tokenizer(gguf, tmp_path, 8192)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    golden = json.loads((shared / "data/golden/smollm2_greedy.json").read_text())["cases"]
    for case in [case for case in golden if case["source"] == "mt_bench"][:5]:
        turn = [{"role": "user", "content": case["prompt"]}]
        rendered = tokenizer.apply_chat_template(
            turn, add_generation_prompt=True, return_dict=False
        )
        assert rendered == case["prompt_ids"]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.unk_token, tokenizer.pad_token) == ("<|endoftext|>", "<|im_end|>")
    assert tokenizer.decode([1, 2, 0, 905], skip_special_tokens=True) == " world"
    assert end_token_ids(gguf) == [2]


def test_control_and_user_defined_tokens_match_before_text(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tiny(tmp_path))
    encoded = tokenizer.encode("<|end|>ab<note> ab<|begin|>")
    assert encoded.ids == [END, *ids("ab"), NOTE, *ids("Ġab"), BOS]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "ab<note> ab"
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == "<|end|>ab<note> ab<|begin|>"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["Ab", "'s", "Ġ1234", "Ġ", "Ġ..", "Ċ", "Ċ", "x"]),
        ("smollm", ["Ab", "'s", "Ġ", "1", "2", "3", "4", "Ġ", "Ġ..", "Ċ", "Ċ", "x"]),
        ("llama-bpe", ["Ab", "'s", "Ġ", "123", "4", "Ġ", "Ġ..ĊĊ", "x"]),
        ("qwen2", ["Ab", "'s", "Ġ", "1", "2", "3", "4", "Ġ", "Ġ..ĊĊ", "x"]),
    ],
)
def test_text_is_cut_as_llama_cpp_cuts_it(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    cutter = build_tokenizer(tiny(tmp_path, ggml__pre=pre)).pre_tokenizer
    assert cutter is not None
    assert [piece for piece, _ in cutter.pre_tokenize_str("Ab's 1234  ..\n\nx")] == pieces


@pytest.mark.parametrize(
    ("pre", "flag", "starts"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos_is_added_where_the_file_says_so(
    tmp_path: Path, pre: str, flag: bool | None, starts: bool
) -> None:
    from transformers import AutoTokenizer

    gguf = tiny(tmp_path, ggml__pre=pre, ggml__add_bos_token=flag)
    write_tokenizer(gguf, tmp_path, 128)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode("ab") == [BOS] * starts + ids("ab")
    assert tokenizer.encode("ab", add_special_tokens=False) == ids("ab")


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_a_piece_that_is_a_token_is_taken_whole_by_llama_3(
    tmp_path: Path, pre: str, whole: bool
) -> None:
    """No merge makes xy; the others know a token only through its merges."""
    gguf = tiny(tmp_path, ggml__pre=pre, ggml__tokens=[*TOKENS, "xy"], ggml__add_bos_token=False)
    wanted = [len(TOKENS)] if whole else ids("x", "y")
    assert build_tokenizer(gguf).encode("xy").ids == wanted


@pytest.mark.parametrize(("pre", "same"), [("qwen2", True), ("smollm", False)])
def test_qwen2_brings_text_to_form_c(tmp_path: Path, pre: str, same: bool) -> None:
    tokenizer = build_tokenizer(tiny(tmp_path, ggml__pre=pre))
    assert (tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids) is same


def test_every_text_survives_a_round_trip(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tiny(tmp_path))
    text = "".join(map(chr, range(1, 0x250))) + "日本語 🙂\u200d e\u0301 ab 1212\r\n\t"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_all_tokens_that_end_an_answer_are_found(tmp_path: Path) -> None:
    gguf = tiny(tmp_path, ggml__eot_token_id=7, ggml__eom_token_id=1, ggml__padding_token_id=5)
    assert end_token_ids(gguf) == [1, 7]
    assert special_token_ids(gguf) == {"bos": 0, "eos": 1, "pad": 5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml__model": "llama"}, "kind 'llama'; only byte-level BPE .* original repository"),
        ({"ggml__model": None}, "tokenizer.ggml.model is missing"),
        ({"ggml__pre": "tekken"}, "pre-tokenizer 'tekken', not one of gpt-2, smollm,"),
        ({"ggml__pre": None}, "pre-tokenizer 'default', not one of"),
        ({"ggml__tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"ggml__tokens": [*TOKENS[:-1], "ab"]}, "two tokens have the same text"),
        ({"ggml__merges": ["a b", "zz top"]}, "the merge 'zz top' makes no token"),
        ({"ggml__merges": ["ab"]}, "the merge 'ab' makes no token"),
        ({"ggml__merges": [1, 2]}, "merges is .*, not a list of strings"),
        ({"ggml__eos_token_id": 4000}, "eos_token_id is 4000 and there are 262 tokens"),
        ({"ggml__add_bos_token": True, "ggml__bos_token_id": None}, "BOS token and it names none"),
        ({"ggml__add_bos_token": 1}, "add_bos_token is 1, not true or false"),
        ({"chat_template": 3}, "chat_template is 3, not a string"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as refused:
        write_tokenizer(tiny(tmp_path, **changes), tmp_path, 128)
    assert "\n" not in str(refused.value)
