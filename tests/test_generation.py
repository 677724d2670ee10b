"""Tests of redrafter_mlx.generation: chunks, limits and stop strings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from itertools import islice, product
from types import SimpleNamespace
from typing import Any

import pytest

from redrafter_mlx.config import BeamShape, GenerationConfig
from redrafter_mlx.decoding.decode import OnPrefill
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import PromptError
from redrafter_mlx.generation import Answer, Chunk, chat_prompt, generate, stream_generate
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.text import REPLACEMENT, decode_tokens, encode
from tests.small_tokenizers import CHATML, byte_level, sentencepiece
from tests.toy import Oracle, toy_drafter, toy_model, toy_target

GENERATE = import_module("redrafter_mlx.generation")
CONTEXT = 40
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_level()


@pytest.fixture
def model(tokenizer: Any) -> LoadedModel:
    """Return a model whose target is never run: decode is scripted."""
    config = SimpleNamespace(max_positions=CONTEXT, vocab_size=1000)
    target: Any = SimpleNamespace(config=config, make_kv_cache=lambda: KVCache())
    eos_ids = frozenset([tokenizer.eos_token_id])
    return LoadedModel("fake", None, target, None, tokenizer, eos_ids)


Script = Callable[[Sequence[int]], None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return a function that sets the ids which decode yields, again and again."""

    def set_script(tokens: Sequence[int]) -> None:
        def decode(
            model: LoadedModel,
            kv_cache: KVCache,
            prompt: Sequence[int],
            config: GenerationConfig,
            stats: DecodeStats,
            on_prefill: OnPrefill | None,
        ) -> Generator[int, None, None]:
            """Keep the contract of the real one, and run ahead as it does."""
            limit = min(config.max_tokens, CONTEXT - len(prompt))
            if not prompt or limit <= 0:
                raise PromptError(f"{len(prompt)} tokens do not fit {CONTEXT}.")
            num_emitted = 0
            try:
                for num_emitted in range(1, limit + 1):
                    kv_cache.offset = len(prompt) + num_emitted + 3
                    token = tokens[(num_emitted - 1) % len(tokens)]
                    stats.record_token()
                    yield token
                    if token in model.eos_ids and not config.ignore_eos:
                        return
            finally:
                kv_cache.rewind(len(prompt) + max(num_emitted - 1, 0))

        monkeypatch.setattr(GENERATE, "decode", decode)

    return set_script


def ids(model: LoadedModel, text: str) -> list[int]:
    return encode(model.tokenizer, text, add_special_tokens=False)


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize("max_tokens", range(1, 13))
@pytest.mark.parametrize("end", [*range(1, 13), None])
def test_eos_and_max_tokens_end_the_answer_exactly(
    model: LoadedModel, script: Script, max_tokens: int, end: int | None
) -> None:
    """Law: min(max_tokens, place of EOS) tokens; "stop" if EOS is among them, even as the last."""
    (eos,) = model.eos_ids
    tokens = ids(model, "abcdefghijkl")
    assert len(tokens) == 12
    if end is not None:
        tokens[end - 1] = eos
    script(tokens)
    answer = generate(model, PROMPT, GenerationConfig(max_tokens=max_tokens))
    is_stopped = end is not None and end <= max_tokens
    assert list(answer.tokens) == tokens[: end if is_stopped else max_tokens]
    assert answer.finish_reason == ("stop" if is_stopped else "length")
    assert answer.stats.emitted_tokens == len(answer.tokens)
    assert answer.text == "abcdefghijkl"[: len(answer.tokens) - is_stopped]
    assert answer.prompt_tokens == tuple(PROMPT)


@pytest.mark.parametrize("start", range(8))
def test_a_stop_string_ends_the_answer_at_its_last_token(
    model: LoadedModel, script: Script, start: int
) -> None:
    """Law: over any tokens the stop string lies, the token that completes it is the last."""
    text = "abcdefgh"[:start] + "#END#" + "ijkl"
    tokens = ids(model, text)
    script(tokens)
    answer = generate(model, PROMPT, GenerationConfig(max_tokens=30, stop=("#END#", "never")))
    assert answer.text == text[:start]
    assert answer.finish_reason == "stop"
    assert decode_tokens(model.tokenizer, answer.tokens).endswith("#END#")
    assert answer.stats.emitted_tokens == len(answer.tokens) < len(tokens)


def test_a_stop_string_inside_a_token_cuts_its_text(model: LoadedModel, script: Script) -> None:
    tokens = ids(model, "a The fox")
    assert any("he" in decode_tokens(model.tokenizer, [token]).strip("h") for token in tokens)
    script(tokens)
    answer = generate(model, PROMPT, GenerationConfig(stop=("he",)))
    assert (answer.text, answer.finish_reason) == ("a T", "stop")


def test_a_stop_string_that_only_began_is_shown_at_the_end(
    model: LoadedModel, script: Script
) -> None:
    (eos,) = model.eos_ids
    script([*ids(model, "ab<sto"), eos])
    answer = generate(model, PROMPT, GenerationConfig(stop=("<stop>",)))
    assert (answer.text, answer.finish_reason) == ("ab<sto", "stop")
    answer = generate(model, PROMPT, GenerationConfig(stop=("<stop>",), max_tokens=4))
    assert (answer.text, answer.finish_reason) == ("ab<s", "length")


def test_a_stop_string_at_max_tokens_is_a_stop(model: LoadedModel, script: Script) -> None:
    script(ids(model, "ab#cd"))
    answer = generate(model, PROMPT, GenerationConfig(stop=("#",), max_tokens=3))
    assert (answer.text, answer.finish_reason) == ("ab", "stop")


def test_each_token_has_a_chunk_and_the_last_one_the_rest(
    model: LoadedModel, script: Script
) -> None:
    script(ids(model, "a🙂b🙂"))
    chunks = list(stream_generate(model, PROMPT, GenerationConfig(max_tokens=8)))
    assert [chunk.text for chunk in chunks] == ["a", "", "", "", "🙂", "b", "", "\ufffd"]
    assert [chunk.finish_reason for chunk in chunks] == [None] * 7 + ["length"]
    assert [chunk.token for chunk in chunks] == ids(model, "a🙂b🙂")[:8]
    assert all(chunk.stats is chunks[0].stats for chunk in chunks)
    assert chunks[0].stats.emitted_tokens == 8


def test_the_end_of_the_context_is_a_length(model: LoadedModel, script: Script) -> None:
    script(ids(model, "ab"))
    answer = generate(model, [5] * (CONTEXT - 4), GenerationConfig(max_tokens=30))
    assert (answer.text, answer.finish_reason) == ("abab", "length")


def test_ignore_eos_goes_on(model: LoadedModel, script: Script) -> None:
    (eos,) = model.eos_ids
    script([*ids(model, "ab"), eos])
    answer = generate(model, PROMPT, GenerationConfig(max_tokens=6, ignore_eos=True))
    assert (answer.text, answer.finish_reason) == ("abab", "length")
    assert len(answer.tokens) == 6


def test_an_eos_with_a_text_is_not_shown(model: LoadedModel, script: Script) -> None:
    (letter,) = ids(model, "b")
    model = LoadedModel("fake", None, model.target, None, model.tokenizer, frozenset([letter]))
    script(ids(model, "abc"))
    assert generate(model, PROMPT).text == "a"


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("stop", [(), ("#",)])
def test_closed_after_any_chunk_the_cache_fits(
    model: LoadedModel, script: Script, count: int, stop: tuple[str, ...]
) -> None:
    """Law: offset == prompt + yielded - 1, whoever closes it, with an end or without."""
    script(ids(model, "abcde#fghijk"))
    kv_cache = KVCache()
    config = GenerationConfig(stop=stop, max_tokens=12)
    chunks = stream_generate(model, PROMPT, config, kv_cache=kv_cache)
    read = list(islice(chunks, count))
    chunks.close()
    assert len(read) == (min(count, 6) if stop else count)
    assert kv_cache.offset == len(PROMPT) + len(read) - 1


@pytest.mark.parametrize("stop", [(), ("l",)])
def test_at_the_last_chunk_the_cache_fits_without_closing(
    model: LoadedModel, script: Script, stop: tuple[str, ...]
) -> None:
    script(ids(model, "abcdefghijkl"))
    kv_cache = KVCache()
    config = GenerationConfig(stop=stop, max_tokens=12)
    chunks = stream_generate(model, PROMPT, config, kv_cache=kv_cache)
    for _ in range(12):
        chunk = next(chunks)
    assert chunk.finish_reason is not None
    assert kv_cache.offset == len(PROMPT) + 12 - 1


def test_closed_before_it_began_nothing_happens(model: LoadedModel, script: Script) -> None:
    script([1])
    kv_cache = KVCache()
    stream_generate(model, PROMPT, kv_cache=kv_cache).close()
    assert kv_cache.offset == 0


@pytest.mark.parametrize("text", ["The fox", "<s>The fox"])
def test_a_text_is_encoded_with_one_bos(model: LoadedModel, script: Script, text: str) -> None:
    tokenizer = sentencepiece()
    model = LoadedModel("fake", None, model.target, None, tokenizer, frozenset())
    script([5])
    answer = generate(model, text, GenerationConfig(max_tokens=1))
    assert tokenizer.decode(answer.prompt_tokens).replace("> ", ">") == "<s>The fox"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "0 tokens"),
        ("", "0 tokens"),
        ([5] * CONTEXT, f"{CONTEXT} tokens do not fit {CONTEXT}"),
        ([5, 9999], "token id 9999.*own tokenizer"),
        ([-1], "token id -1"),
    ],
)
def test_prompts_that_cannot_be_answered(
    model: LoadedModel, script: Script, prompt: str | list[int], message: str
) -> None:
    script([1])
    with pytest.raises(PromptError, match=message):
        generate(model, prompt)


def test_a_chat_prompt_is_one_turn_of_the_template(model: LoadedModel) -> None:
    model.tokenizer.chat_template = CHATML
    rendered = model.tokenizer.decode(chat_prompt(model, "Hi"))
    assert rendered.count("<|im_start|>system\n") == 1
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    rendered = model.tokenizer.decode(chat_prompt(model, "Hi", "Be brief."))
    assert rendered.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    model.tokenizer.chat_template = None
    assert chat_prompt(model, "Hi") == ids(model, "Hi")
    with pytest.raises(PromptError, match="no chat template"):
        chat_prompt(model, "Hi", "Be brief.")


@pytest.fixture(scope="module")
def toy(tokenizer: Any) -> LoadedModel:
    """Return a random model that is really run, with a drafter, and this tokenizer."""
    target = toy_target(vocab_size=len(tokenizer), max_positions=64)
    drafter = toy_drafter(target)
    return LoadedModel("toy", None, target, drafter, tokenizer, frozenset([3]))


PLAIN = BeamShape(beam_width=1, beam_length=1)
SHAPES = (PLAIN, BeamShape(beam_width=2, beam_length=4))


def test_streaming_adds_up_to_the_text_of_the_tokens(toy: LoadedModel) -> None:
    """The real decode: pieces == text of the ids, the same plain and drafted."""
    answers = [
        generate(toy, [5, 9, seed], GenerationConfig(max_tokens=40, beam=beam, ignore_eos=True))
        for seed in range(4)
        for beam in SHAPES
    ]
    for plain, drafted in zip(answers[::2], answers[1::2], strict=True):
        assert plain.tokens == drafted.tokens
        assert plain.text == drafted.text == decode_tokens(toy.tokenizer, plain.tokens)
        assert plain.text


@pytest.fixture(scope="module")
def whole(toy: LoadedModel) -> tuple[int, ...]:
    config = GenerationConfig(max_tokens=14, beam=PLAIN, ignore_eos=True)
    return generate(toy, [5, 9, 1], config).tokens


@pytest.mark.parametrize("beam", SHAPES)
@pytest.mark.parametrize("count", range(1, 11))
def test_closing_leaves_a_cache_to_go_on_with(
    toy: LoadedModel, whole: tuple[int, ...], beam: BeamShape, count: int
) -> None:
    """The real decode: closed anywhere, the cache and the ids so far continue the answer."""
    config = GenerationConfig(max_tokens=14, beam=beam, ignore_eos=True)
    kv_cache = toy.target.make_kv_cache()
    chunks = stream_generate(toy, [5, 9, 1], config, kv_cache=kv_cache)
    tokens = [next(chunks).token for _ in range(count)]
    chunks.close()
    assert kv_cache.offset == 3 + count - 1
    rest = stream_generate(toy, [5, 9, 1, *tokens], config, kv_cache=kv_cache)
    assert (*tokens, *(chunk.token for chunk in rest))[:14] == whole


def test_it_works_on_a_worker_thread(toy: LoadedModel) -> None:
    config = GenerationConfig(max_tokens=8, ignore_eos=True)
    answers = []
    worker = threading.Thread(target=lambda: answers.append(generate(toy, [5, 9, 1], config)))
    worker.start()
    worker.join()
    assert answers[0].tokens == generate(toy, [5, 9, 1], config).tokens


def test_without_a_tokenizer_there_are_ids_and_no_text() -> None:
    model = toy_model(toy_target())
    answer = generate(model, [5, 9, 1], GenerationConfig(max_tokens=5))
    assert (len(answer.tokens), answer.text) == (5, "")
    with pytest.raises(PromptError, match="no tokenizer"):
        generate(model, "text")


@pytest.fixture(scope="module")
def plain(toy: LoadedModel) -> LoadedModel:
    return toy_model(toy.target, tokenizer=toy.tokenizer)


@pytest.fixture(scope="module")
def plain_tokens(plain: LoadedModel) -> tuple[int, ...]:
    return generate(plain, PROMPT, GenerationConfig(max_tokens=16)).tokens


@pytest.fixture(scope="module")
def stopped(
    plain: LoadedModel, plain_tokens: tuple[int, ...]
) -> dict[int, list[tuple[str, Answer]]]:
    """Return stop strings of one, two and three tokens, and what plain decoding makes of each."""
    found: dict[int, list[tuple[str, Answer]]] = {size: [] for size in (1, 2, 3)}
    for size, start in product(found, range(12)):
        stop = decode_tokens(plain.tokenizer, plain_tokens[start : start + size])
        if stop and stop.isprintable():
            config = GenerationConfig(max_tokens=16, stop=(stop,), use_lookup=False)
            found[size].append((stop, generate(plain, PROMPT, config)))
    return found


@pytest.mark.parametrize("num_tokens", [1, 2, 3])
@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_a_stop_string_ends_the_answer_at_every_depth_of_an_accepted_run(
    plain: LoadedModel,
    plain_tokens: tuple[int, ...],
    stopped: dict[int, list[tuple[str, Answer]]],
    length: int,
    num_tokens: int,
) -> None:
    """Law: text, ids, counts and cache are those of plain decoding with that stop string."""
    drafter = Oracle(plain.target, PROMPT, list(plain_tokens))
    for stop, expected in stopped[num_tokens]:
        config = GenerationConfig(max_tokens=16, stop=(stop,), beam=BeamShape(2, length))
        model = toy_model(plain.target, drafter, tokenizer=plain.tokenizer)
        kv_cache = plain.target.make_kv_cache()
        chunks = list(stream_generate(model, PROMPT, config, kv_cache=kv_cache))
        answer = Answer.of(chunks, PROMPT)
        assert (answer.text, answer.tokens) == (expected.text, expected.tokens)
        assert answer.finish_reason == "stop"
        assert stop not in answer.text
        if REPLACEMENT not in stop:  # else what looks like it may yet be a character
            assert stop in decode_tokens(plain.tokenizer, answer.tokens)
            assert stop not in decode_tokens(plain.tokenizer, answer.tokens[:-1])
        assert kv_cache.offset == len(PROMPT) + len(answer.tokens) - 1
        assert answer.stats.emitted_tokens == len(answer.tokens)
        assert sum(answer.stats.accepted_by_depth) < len(answer.tokens)
    assert len(stopped[num_tokens]) >= 4
