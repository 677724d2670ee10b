"""Tests of redrafter_mlx.text: streaming, stop strings, chat templates."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from redrafter_mlx.errors import PromptError
from redrafter_mlx.text import (
    REPLACEMENT,
    StopMatcher,
    TextStream,
    cut_to_text,
    decode_tokens,
    encode,
    encode_continuation,
    has_chat_template,
    render_chat,
    render_text,
)
from tests.small_tokenizers import (
    CHATML,
    SWITCHED_THINKING,
    THINKING,
    byte_level,
    metaspace,
    sentencepiece,
)

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two leading spaces, a tab\t and\n\n\n   indented\r\nlines  ",
    "naïve café \N{EN DASH} “quotes” … €5",
    "e\N{COMBINING ACUTE ACCENT} is not é, and क\N{DEVANAGARI SIGN NUKTA} is not क",
    "日本語のテキスト、中文字符",
    "नमस्ते दुनिया, हिन्दी में",
    "ไม่มีช่องว่างระหว่างคำในภาษาไทย",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈👍🏽 emoji",
    "literal \N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}",
    "a ▁ b",
)

# Both write no BOS, or one, before the same text.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
BOS_TEMPLATE = "{{ bos_token }}" + PLAIN_TEMPLATE
NO_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role\nnot supported.') }}{% endif %}" + PLAIN_TEMPLATE
)


BUILDERS = (byte_level, sentencepiece, metaspace)


@pytest.fixture(scope="module", params=BUILDERS, ids=lambda builder: builder.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(scope="module")
def byte_tokenizer() -> Any:
    return byte_level()


@pytest.fixture(scope="module")
def space_tokenizer() -> Any:
    return sentencepiece()


def stream(tokenizer: Any, tokens: Iterable[int]) -> str:
    text = TextStream(tokenizer)
    return "".join([text.push(token) for token in tokens]) + text.finish()


def byte_ids(tokenizer: Any) -> list[int]:
    """Return the id of each byte from 0 to 255."""
    if tokenizer.convert_tokens_to_ids("<0x00>") is not None and tokenizer.unk_token:
        return [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256)]
    letters = [chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))]
    values = [ord(letter) for letter in letters]
    rest = [byte for byte in range(256) if byte not in values]
    names = dict(zip(values, letters, strict=True)) | {
        byte: chr(256 + place) for place, byte in enumerate(rest)
    }
    return [tokenizer.convert_tokens_to_ids(names[byte]) for byte in range(256)]


def random_tokens(tokenizer: Any, seed: int) -> list[int]:
    """Return up to 60 ids of the vocabulary, and of beyond it."""
    draw = random.Random(seed)
    return [draw.randrange(len(tokenizer) + 5) for _ in range(draw.randrange(1, 60))]


def test_a_stream_of_one_token_gives_its_text(tokenizer: Any) -> None:
    """Law: for each id of the vocabulary and some beyond, push + finish == decode."""
    for token in range(len(tokenizer) + 5):
        assert stream(tokenizer, [token]) == decode_tokens(tokenizer, [token])


def test_a_stream_of_the_whole_vocabulary_gives_its_text(tokenizer: Any) -> None:
    """Law: all ids in random order, each once, stream to their one-shot text."""
    tokens = list(range(len(tokenizer) + 5))
    for seed in range(5):
        random.Random(seed).shuffle(tokens)
        assert stream(tokenizer, tokens) == decode_tokens(tokenizer, tokens)


@pytest.mark.parametrize("block", range(10))
def test_streams_of_random_ids_give_their_text(tokenizer: Any, block: int) -> None:
    """Law: pushes + finish == decode of all ids, whatever they are."""
    for seed in range(100 * block, 100 * (block + 1)):
        tokens = random_tokens(tokenizer, seed)
        assert stream(tokenizer, tokens) == decode_tokens(tokenizer, tokens), tokens


@pytest.mark.parametrize("text", TEXTS)
def test_streams_of_texts_give_their_text(tokenizer: Any, text: str) -> None:
    """Law: the same for texts, begun at any token and cut at any token.

    Cut inside a character, a SentencePiece decoder gives up the whole run of byte tokens;
    where that run is too long to be held back, its characters stay.
    """
    tokens = encode(tokenizer, text, add_special_tokens=True)
    for place in range(len(tokens)):
        assert stream(tokenizer, tokens[place:]) == decode_tokens(tokenizer, tokens[place:])
        streamed = stream(tokenizer, tokens[:place])
        decoded = decode_tokens(tokenizer, tokens[:place])
        if decoded.endswith(REPLACEMENT * TextStream.MAX_HELD):
            assert streamed.endswith(REPLACEMENT)
            assert text.startswith(streamed.rstrip(REPLACEMENT))
        else:
            assert streamed == decoded


@pytest.mark.parametrize("text", TEXTS)
def test_a_streamed_text_is_the_one_encoded(
    byte_tokenizer: Any, space_tokenizer: Any, text: str
) -> None:
    for tokenizer in (byte_tokenizer, space_tokenizer):
        if "▁" not in text or tokenizer is byte_tokenizer:
            tokens = encode(tokenizer, text, add_special_tokens=True)
            assert stream(tokenizer, tokens) == text


@pytest.mark.real_model
def test_the_vocabulary_of_smollm2_streams(smollm2_folder: Path) -> None:
    """Law: each id alone and all ids in one stream give their one-shot text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    tokens = list(range(len(tokenizer) + 5))
    assert [stream(tokenizer, [token]) for token in tokens] == [
        decode_tokens(tokenizer, [token]) for token in tokens
    ]
    random.Random(0).shuffle(tokens)
    assert stream(tokenizer, tokens) == decode_tokens(tokenizer, tokens)
    assert len(tokens) > 49000


def test_whole_characters_are_not_held_back(byte_tokenizer: Any) -> None:
    text = TextStream(byte_tokenizer)
    ids = byte_ids(byte_tokenizer)
    assert [text.push(ids[byte]) for byte in "aé🙂b".encode()] == [
        *("a", "", "é", "", "", "", "🙂", "b")
    ]
    assert text.finish() == ""


def test_a_word_keeps_the_space_before_it(space_tokenizer: Any) -> None:
    text = TextStream(space_tokenizer)
    tokens = encode(space_tokenizer, "The fox jumps", add_special_tokens=False)
    shown = [text.push(token) for token in tokens]
    assert "".join(shown) == "The fox jumps"
    assert not shown[0].startswith(" ")


def test_special_tokens_are_not_shown(tokenizer: Any) -> None:
    tokens = encode(tokenizer, "fox", add_special_tokens=True)
    eos = tokenizer.eos_token_id
    assert stream(tokenizer, [eos, *tokens, eos, *tokens[1:], eos]).startswith("fox")
    assert tokenizer.eos_token not in stream(tokenizer, [*tokens, eos])


def test_a_character_split_by_special_tokens_is_whole(byte_tokenizer: Any) -> None:
    first, *rest = (byte_ids(byte_tokenizer)[byte] for byte in "🙂".encode())
    eos = byte_tokenizer.eos_token_id
    assert stream(byte_tokenizer, [eos, first, eos, 9999, *rest]) == "🙂"


@pytest.mark.parametrize("seed", range(30))
def test_bytes_that_are_no_characters_are_exact(byte_tokenizer: Any, seed: int) -> None:
    """Law: 200 random bytes, mostly invalid UTF-8, stream to their one-shot text."""
    draw = random.Random(seed)
    pool = draw.choice([range(256), range(128, 256), [0x80, 0xE4, 0xBD], [0xF0, 0x9F], [0xFF]])
    ids = byte_ids(byte_tokenizer)
    tokens = [ids[draw.choice(pool)] for _ in range(200)]
    assert stream(byte_tokenizer, tokens) == decode_tokens(byte_tokenizer, tokens)


def test_held_back_text_is_bounded(tokenizer: Any) -> None:
    """Law: at most MAX_HELD tokens are held back, even where no character ever ends."""
    tokens = [byte_ids(tokenizer)[0x80]] * 100
    text, shown = TextStream(tokenizer), ""
    for count, token in enumerate(tokens, start=1):
        shown += text.push(token)
        assert count - len(shown) <= TextStream.MAX_HELD
    assert shown + text.finish() == decode_tokens(tokenizer, tokens)


def test_a_long_run_of_byte_tokens_streams(space_tokenizer: Any) -> None:
    """Thai is all byte tokens here: shown in parts, whole characters, nothing lost."""
    thai = "ไม่มีช่องว่างระหว่างคำ" * 3
    ids = byte_ids(space_tokenizer)
    tokens = [ids[byte] for byte in thai.encode()]
    text = TextStream(space_tokenizer)
    pieces = [text.push(token) for token in tokens]
    assert sum(map(bool, pieces)) >= len(tokens) // TextStream.MAX_HELD
    assert REPLACEMENT not in "".join(pieces)
    assert "".join(pieces) + text.finish() == thai


def test_what_was_shown_of_a_long_run_stays(space_tokenizer: Any) -> None:
    """Cut inside a character, the decoder would call the whole run invalid."""
    thai = "ไม่มีช่องว่างระหว่างคำ"
    ids = byte_ids(space_tokenizer)
    tokens = [ids[byte] for byte in thai.encode()[:-1]]
    assert stream(space_tokenizer, tokens).startswith(thai[:-6])


class CountingTokenizer:
    """A tokenizer that notes how many ids each call decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        self.sizes.append(len(tokens))
        text: str = self._tokenizer.decode(tokens, **options)
        return text


@pytest.mark.parametrize("kind", ["text", "eos", "unknown", "space", "byte", "invalid"])
def test_a_token_costs_the_same_at_any_length(tokenizer: Any, kind: str) -> None:
    """Law: no call decodes more than a few tokens, after 600 as after 6."""
    counting = CountingTokenizer(tokenizer)
    token = {
        "eos": tokenizer.eos_token_id,
        "unknown": len(tokenizer) + 3,
        "space": encode(tokenizer, "a b", add_special_tokens=False)[-2],
        "byte": byte_ids(tokenizer)[0x41],
        "invalid": byte_ids(tokenizer)[0x9F],
    }
    tokens = encode(tokenizer, " ".join(TEXTS), add_special_tokens=False) * 3
    if kind != "text":
        tokens = [token[kind]] * 600
    stream(counting, tokens)
    assert max(counting.sizes, default=0) <= 4 * TextStream.MAX_HELD


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert stream(None, [1, 2, 3]) == ""


def first_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text before the stop string that is complete first, by trying each end."""
    for end in range(len(text) + 1):
        ending = [string for string in stop if text[:end].endswith(string)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@pytest.mark.parametrize("seed", range(300))
def test_the_first_stop_string_ends_the_text(seed: int) -> None:
    """Law: any text, any stop strings, cut in any way: the same text before the first stop.

    And no more is held back than must be: the longest end that begins a stop string.
    """
    draw = random.Random(seed)
    letters = draw.choice(["ab", "abc"])
    stop = ["".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(draw.randint(1, 3))]
    text = "".join(draw.choices("abcd", k=draw.randint(0, 20)))
    matcher, shown, taken = StopMatcher(stop), "", ""
    while len(taken) < len(text):
        piece = text[len(taken) : len(taken) + draw.randint(0, 6)]
        taken += piece
        shown += matcher.push(piece)
        if matcher.matched is None:
            held = taken[len(shown) :]
            starts = {string[:n] for string in stop for n in range(len(string))}
            assert held == max((s for s in starts if taken.endswith(s)), key=len)
    assert shown + matcher.finish() == first_stop(text, stop)
    assert (matcher.matched is not None) == any(string in text for string in stop)


@pytest.mark.parametrize(
    ("stop", "pieces", "shown", "matched"),
    [
        (["END"], ["one EN", "D two"], ["one ", ""], "END"),
        (["END"], ["one END two", "three"], ["one ", ""], "END"),
        (["END"], ["one EN", "TER"], ["one ", "ENTER"], None),
        (["\n\n", "\nUser:"], ["a\n", "Us", "er: b"], ["a", "", ""], "\nUser:"),
        (["aab"], ["aa", "ab"], ["", "a"], "aab"),
        (["abcd", "c"], ["xabcd"], ["xab"], "c"),
        (["abc", "c"], ["xabc"], ["x"], "abc"),
        ([], ["END"], ["END"], None),
    ],
)
def test_stop_strings(
    stop: list[str], pieces: list[str], shown: list[str], matched: str | None
) -> None:
    matcher = StopMatcher(stop)
    assert [matcher.push(piece) for piece in pieces] == shown
    assert matcher.matched == matched
    assert matcher.finish() == ""


def test_what_a_stop_string_only_began_comes_at_the_end() -> None:
    matcher = StopMatcher(["<stop>"])
    assert matcher.push("text <sto") == "text "
    assert matcher.finish() == "<sto"
    assert matcher.finish() == ""


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("template", [PLAIN_TEMPLATE, BOS_TEMPLATE, None])
def test_a_rendered_chat_has_one_bos(space_tokenizer: Any, template: str | None) -> None:
    """Written by the template, by the tokenizer, or without a template: one."""
    space_tokenizer.chat_template = template
    tokens = render_chat(space_tokenizer, user("The fox"))
    assert tokens == encode(space_tokenizer, "The fox", add_special_tokens=True)
    assert tokens.count(space_tokenizer.bos_token_id) == 1
    assert has_chat_template(space_tokenizer) == (template is not None)


def test_no_bos_where_nobody_writes_one(byte_tokenizer: Any) -> None:
    byte_tokenizer.chat_template = PLAIN_TEMPLATE
    assert render_chat(byte_tokenizer, user("fox")) == encode(
        byte_tokenizer, "fox", add_special_tokens=False
    )


def test_a_text_with_a_bos_gets_no_second(space_tokenizer: Any) -> None:
    tokens = encode(space_tokenizer, "<s>The fox", add_special_tokens=True)
    assert tokens.count(space_tokenizer.bos_token_id) == 1


def test_chatml_renders_special_tokens(byte_tokenizer: Any) -> None:
    byte_tokenizer.chat_template = CHATML
    start, end = byte_tokenizer.bos_token_id, byte_tokenizer.eos_token_id
    tokens = render_chat(byte_tokenizer, user("Hi"))
    assert [token for token in tokens if token in (start, end)] == [start, end, start, end, start]
    rendered = byte_tokenizer.decode(tokens)
    assert rendered == render_text(byte_tokenizer, user("Hi"))
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_refuses_is_one_line(byte_tokenizer: Any) -> None:
    byte_tokenizer.chat_template = NO_SYSTEM_TEMPLATE
    system = {"role": "system", "content": "Be brief."}
    with pytest.raises(PromptError, match=r"System role not supported\);.*system prompt") as error:
        render_chat(byte_tokenizer, [system, *user("Hi")])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 // 0 }}",
        "{{ messages[9]['content']['x'] }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% if %}",
        "{{ raise_exception('a\nb' * 9999) }}",
        "{{ raise_exception('') }}",
    ],
)
def test_a_template_that_breaks_off_is_one_line(byte_tokenizer: Any, template: str) -> None:
    """Law: a template is a program of the model's, and may end in any way."""
    byte_tokenizer.chat_template = template
    with pytest.raises(PromptError, match=r"refuses these messages \(.+\); ") as error:
        render_chat(byte_tokenizer, user("Hi"))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("thinking", [None, True, False])
def test_thinking_is_switched_where_the_template_asks(
    byte_tokenizer: Any, thinking: bool | None
) -> None:
    """Law: without a choice the template's own rule holds, and a choice without effect is none."""
    byte_tokenizer.chat_template = SWITCHED_THINKING
    text = byte_tokenizer.decode(render_chat(byte_tokenizer, user("Hi"), thinking))
    assert text.endswith("assistant\n<think>\n\n</think>\n\n") is (thinking is False)
    for template in (CHATML, THINKING, None, {"default": CHATML, "other": SWITCHED_THINKING}):
        byte_tokenizer.chat_template = template
        if thinking is None:
            render_chat(byte_tokenizer, user("Hi"), thinking)
            continue
        with pytest.raises(PromptError, match="no switch for thinking"):
            render_chat(byte_tokenizer, user("Hi"), thinking)


def test_without_a_template_there_is_one_prompt(byte_tokenizer: Any) -> None:
    byte_tokenizer.chat_template = None
    system = {"role": "system", "content": "Be brief."}
    for messages in ([system, *user("Hi")], [*user("Hi"), *user("Hi")]):
        with pytest.raises(PromptError, match="no chat template"):
            render_chat(byte_tokenizer, messages)


def test_a_text_needs_a_tokenizer() -> None:
    with pytest.raises(PromptError, match="token ids"):
        encode(None, "text", add_special_tokens=True)


@pytest.mark.parametrize("text", ["", " fox", "\nfox", "</s>\n<s>fox", " </s><s>fox", "<pad> a"])
def test_a_continuation_has_the_ids_of_the_whole(tokenizer: Any, text: str) -> None:
    """Law: behind a word, the ids are those that the whole text has there."""
    before = encode(tokenizer, "The dog", add_special_tokens=False)
    whole = encode(tokenizer, "The dog" + text, add_special_tokens=False)
    assert before + encode_continuation(tokenizer, text) == whole


@pytest.mark.parametrize("text", ["fox", "The", "é"])
def test_a_continuation_begins_without_a_space(tokenizer: Any, text: str) -> None:
    before = encode(tokenizer, "dog\n", add_special_tokens=False)
    tokens = before + encode_continuation(tokenizer, text)
    assert decode_tokens(tokenizer, tokens) == "dog\n" + text


@pytest.mark.parametrize("size", range(len("The fox jumps 🙂")))
def test_ids_can_be_cut_to_any_part_of_their_text(tokenizer: Any, size: int) -> None:
    tokens = encode(tokenizer, "The fox jumps 🙂", add_special_tokens=False)
    text = "The fox jumps 🙂"[:size]
    cut = cut_to_text(tokenizer, tokens, text)
    assert decode_tokens(tokenizer, cut) == text
    kept = [end for end in range(len(tokens)) if decode_tokens(tokenizer, tokens[:end]) == text]
    if kept:
        assert cut[: kept[0]] == tokens[: kept[0]]
