"""Tests of redrafter_mlx.conversation: history, reuse of the KV cache, interruption."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from typing import Any

import mlx.core as mx
import pytest

from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.conversation import Conversation
from redrafter_mlx.decoding.decode import OnPrefill
from redrafter_mlx.decoding.stats import DecodeStats
from redrafter_mlx.errors import PromptError
from redrafter_mlx.generation import Chunk, generate, stream_generate
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.models.kv_cache import KVCache
from redrafter_mlx.text import decode_tokens, encode, encode_continuation, render_chat
from tests.small_tokenizers import (
    CHATML,
    INST,
    SWITCHED_THINKING,
    THINKING,
    byte_level,
    metaspace,
    sentencepiece,
)
from tests.toy import toy_drafter, toy_target

GENERATE = import_module("redrafter_mlx.generation")
CONVERSATION = import_module("redrafter_mlx.conversation")
CONTEXT = 1024
PLAIN = "{% for message in messages %}{{ message['content'] }}|{% endfor %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No') }}{% endif %}" + PLAIN


@dataclass
class Script:
    """A decode whose answers are written down; it notes what it is asked.

    Attributes:
        answers: Ids of the next answers.
        prompts: The prompts so far.
        offsets: What the cache held of each of them.
        error: Raised instead of the token at this place of the answer.
    """

    answers: list[list[int]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    error: tuple[int, BaseException] | None = None

    def decode(
        self,
        model: LoadedModel,
        kv_cache: KVCache,
        prompt: Sequence[int],
        config: GenerationConfig,
        stats: DecodeStats,
        on_prefill: OnPrefill | None,
    ) -> Generator[int, None, None]:
        assert 0 <= kv_cache.offset < len(prompt)
        self.prompts.append(list(prompt))
        self.offsets.append(kv_cache.offset)
        limit = min(config.max_tokens, model.target.config.max_positions - len(prompt))
        num_emitted = 0
        try:
            for token in self.answers.pop(0)[:limit]:
                if self.error is not None and num_emitted == self.error[0]:
                    raise self.error[1]
                num_emitted += 1
                kv_cache.offset = len(prompt) + num_emitted + 3
                stats.record_token()
                yield token
        finally:
            if num_emitted == 0:
                kv_cache.offset += 1
            kv_cache.rewind(len(prompt) + max(num_emitted - 1, 0))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    monkeypatch.setattr(GENERATE, "decode", script.decode)
    return script


Builder = Callable[[], Any]


def make_model(build: Builder, template: str | None) -> LoadedModel:
    """Return a random model with this kind of tokenizer and this template."""
    tokenizer = build()
    tokenizer.chat_template = template
    target = toy_target(vocab_size=len(tokenizer), max_positions=CONTEXT)
    eos_ids = frozenset([tokenizer.eos_token_id])
    return LoadedModel("toy", None, target, toy_drafter(target), tokenizer, eos_ids)


@pytest.fixture
def model() -> LoadedModel:
    return make_model(byte_level, CHATML)


def ids(model: LoadedModel, text: str) -> list[int]:
    return encode(model.tokenizer, text, add_special_tokens=False)


def eos(model: LoadedModel) -> int:
    (token,) = model.eos_ids
    return token


def ask(conversation: Conversation, question: str) -> str:
    return "".join(chunk.text for chunk in conversation.ask(question))


KINDS = [
    pytest.param(byte_level, CHATML, id="chatml"),
    pytest.param(byte_level, THINKING, id="thinking"),
    pytest.param(sentencepiece, INST, id="inst"),
    pytest.param(metaspace, INST, id="inst-metaspace"),
    pytest.param(sentencepiece, PLAIN, id="no bos in the template"),
    pytest.param(byte_level, None, id="no template"),
    pytest.param(sentencepiece, None, id="no template, bos"),
]


@pytest.mark.parametrize(("build", "template"), KINDS)
def test_the_history_keeps_the_generated_ids(
    script: Script, build: Builder, template: str | None
) -> None:
    """Law: each prompt begins with the last one and the ids generated for it.

    The answers are spelt byte by byte, as their texts would not be encoded again.
    """
    model = make_model(build, template)
    spelt = [token for letter in "The fox" for token in ids(model, letter)]
    assert spelt != ids(model, "The fox")
    script.answers = [[*spelt, eos(model)], [*spelt[::-1], eos(model)], [*spelt, eos(model)]]
    conversation = Conversation(model)
    for question in ("The dog?", "And the lazy dog?", "Well?"):
        ask(conversation, question)
    for answer, before, after in zip(
        (spelt, spelt[::-1]), script.prompts[:-1], script.prompts[1:], strict=True
    ):
        assert after[: len(before) + len(answer)] == before + answer
    assert script.offsets[0] == 0
    held = [len(prompt) + len(spelt) for prompt in script.prompts[:-1]]
    assert script.offsets[1:] == held


@pytest.mark.parametrize(("build", "template"), KINDS)
def test_the_history_reads_as_the_template_writes_it(
    script: Script, build: Builder, template: str | None
) -> None:
    """Law: where answers are encoded as their texts are, a prompt is the template's own."""
    model = make_model(build, template)
    before = " " if template == INST else ""
    answer = encode_continuation(model.tokenizer, before + "The fox jumps")
    script.answers = [[*answer, eos(model)], [*answer, eos(model)]]
    conversation = Conversation(model)
    ask(conversation, "The dog?")
    ask(conversation, "Well?")
    if template is not None:
        messages = [*conversation.messages[:2], {"role": "user", "content": "Well?"}]
        assert script.prompts[-1] == render_chat(model.tokenizer, messages)
    else:
        # No template has a say: the texts follow each other.
        assert script.prompts[-1] == [
            *encode(model.tokenizer, "The dog?", add_special_tokens=True),
            *answer,
            *encode_continuation(model.tokenizer, "Well?"),
        ]


@pytest.mark.parametrize("template", [PLAIN, None])
def test_there_is_one_bos(script: Script, template: str | None) -> None:
    """Law: a tokenizer that adds a BOS adds it once, at the beginning of the conversation."""
    model = make_model(sentencepiece, template)
    script.answers = [[*ids(model, "one"), eos(model)] for _ in range(3)]
    conversation = Conversation(model)
    for question in ("a", "b", "c"):
        ask(conversation, question)
    bos = model.tokenizer.bos_token_id
    assert [prompt.count(bos) for prompt in script.prompts] == [1, 1, 1]
    assert {prompt[0] for prompt in script.prompts} == {bos}


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_there_is_one_system_block(script: Script, model: LoadedModel, system: str | None) -> None:
    script.answers = [[*ids(model, "one"), eos(model)] for _ in range(4)]
    conversation = Conversation(model, system=system)
    for question in ("a", "b", "c", "d"):
        ask(conversation, question)
    text = model.tokenizer.decode(script.prompts[-1])
    assert text.count("<|im_start|>system\n") == 1
    assert text.startswith(f"<|im_start|>system\n{system or 'You are a helpful'}")
    assert text.count("<|im_start|>user\n") == 4
    assert text.count("<|im_start|>assistant\none<|im_end|>\n") == 3


def test_a_template_that_drops_thinking_is_followed(script: Script) -> None:
    """The past thinking is not in the prompt; what came before it is reused."""
    model = make_model(byte_level, THINKING)
    answer = ids(model, "<think>\nhm\n</think>\n\nyes")
    script.answers = [[*answer, eos(model)], [*answer, eos(model)], [eos(model)]]
    conversation = Conversation(model)
    for question in ("a", "b", "c"):
        ask(conversation, question)
    assert model.tokenizer.decode(script.prompts[-1]) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    assert script.offsets == [0, len(script.prompts[0]), len(script.prompts[1])]
    assert "hm" in conversation.messages[1]["content"]


NO_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("thinking", [None, True, False])
def test_thinking_is_switched_by_the_template_and_left_out_of_the_past(
    script: Script, thinking: bool | None
) -> None:
    """Law: each prompt is the template's own, whose past answers have no empty thought."""
    model = make_model(byte_level, SWITCHED_THINKING)
    answer = ids(model, "yes")
    script.answers = [[*answer, eos(model)] for _ in range(3)]
    conversation = Conversation(model, thinking=thinking)
    for question in ("a", "b", "c"):
        ask(conversation, question)
    past = "".join(
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        for question in "ab"
    )
    ending = NO_THOUGHT if thinking is False else ""
    assert model.tokenizer.decode(script.prompts[-1]) == (
        f"{past}<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n{ending}"
    )
    # All but the latest answer is reused, which moves up to where the thought was.
    thought = len(ids(model, ending))
    held = [len(prompt) - thought + (0 if thought else 3) for prompt in script.prompts[:-1]]
    assert script.offsets == [0, *held]


def test_a_switch_that_the_template_lacks_is_refused() -> None:
    for template in (THINKING, None):
        model = make_model(byte_level, template)
        for thinking in (True, False):
            with pytest.raises(
                PromptError, match=r"no switch .*; leave out --(no-)?thinking\.$"
            ) as refused:
                Conversation(model, thinking=thinking)
            assert "\n" not in str(refused.value)
        Conversation(model)


def test_reading_that_is_stopped_forgets_the_question_and_keeps_what_was_read(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real decode: the same question is then read from where it was stopped."""
    monkeypatch.setattr("redrafter_mlx.decoding.prefill.prefill_step", lambda: 16)
    config = GenerationConfig(max_tokens=6)
    conversation, other = (Conversation(model, config=config) for _ in range(2))
    for each in (conversation, other):
        ask(each, "The dog?")
    held = conversation.num_tokens
    calls = []

    def stop(done: int, total: int) -> bool:
        calls.append((done, total))
        return done < 48

    question = "fox " * 60
    assert list(conversation.ask(question, on_prefill=stop)) == []
    assert [done for done, _ in calls] == [16, 32, 48]
    assert conversation.num_tokens == held
    assert ask(conversation, question) == ask(other, question)
    assert conversation.stats is not None and other.stats is not None
    assert conversation.stats.cached_tokens == other.stats.cached_tokens + 48
    assert calls[0][1] == other.stats.prompt_tokens - other.stats.cached_tokens


def test_an_answer_that_the_template_trims_keeps_its_ids(script: Script) -> None:
    model = make_model(sentencepiece, INST)
    answer = [*ids(model, "fox"), *ids(model, "a\n")[-1:]]
    script.answers = [[*answer, eos(model)], [eos(model)]]
    conversation = Conversation(model)
    assert ask(conversation, "a") == "fox\n"
    ask(conversation, "b")
    assert script.prompts[1][: script.offsets[1]] == script.prompts[0] + answer


@pytest.mark.parametrize("count", range(1, 8))
def test_an_interrupted_answer_stays(script: Script, model: LoadedModel, count: int) -> None:
    """Law: closed after any chunk, the history has exactly the ids yielded, and goes on."""
    answer = [token for letter in "a🙂bc" for token in ids(model, letter)]
    script.answers = [answer, [eos(model)]]
    conversation = Conversation(model, config=GenerationConfig(stop=("bcd",), max_tokens=7))
    chunks = conversation.ask("one")
    assert len(list(islice(chunks, count))) == count
    chunks.close()
    assert conversation.messages[-1]["content"] == decode_tokens(model.tokenizer, answer[:count])
    assert conversation.num_tokens == len(script.prompts[0]) + count
    ask(conversation, "two")
    assert script.offsets[1] == len(script.prompts[0]) + count - 1
    held = script.prompts[0] + answer[:count]
    assert script.prompts[1][: len(held)] == held


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_inside_the_decode_keeps_what_was_yielded(
    script: Script, model: LoadedModel, place: int, kind: type[BaseException]
) -> None:
    """Before the first token the question is forgotten, too; the cache begins anew."""
    answer = ids(model, "abcd")
    script.answers = [[*answer, eos(model)], [*answer, eos(model)], [eos(model)]]
    conversation = Conversation(model)
    ask(conversation, "one")
    script.error = (place, kind())
    with pytest.raises(kind):
        ask(conversation, "two")
    script.error = None
    contents = [message["content"] for message in conversation.messages]
    assert contents == ["one", "abcd", "two", "abcd"[:place]][: 4 if place else 2]
    ask(conversation, "three")
    assert script.offsets[2] == 0
    if place:
        held = script.prompts[1] + answer[:place]
        assert script.prompts[2][: len(held)] == held


@pytest.mark.parametrize("layer", range(2))
def test_an_interrupt_inside_a_pass_leaves_a_usable_conversation(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    """The real decode, interrupted while the cache's buffers grow; then a further turn."""
    config = GenerationConfig(max_tokens=6)
    conversation, other = (Conversation(model, config=config) for _ in range(2))
    for each in (conversation, other):
        ask(each, "The dog?")

    calls = []

    def concatenate(*arguments: Any, **options: Any) -> mx.array:
        calls.append(arguments)
        if len(calls) > layer:
            raise KeyboardInterrupt
        return mx.concatenate(*arguments, **options)

    with monkeypatch.context() as patch:
        kv_cache_module = import_module("redrafter_mlx.models.kv_cache")
        patch.setattr(kv_cache_module, "mx", _Patched(mx, concatenate))
        with pytest.raises(KeyboardInterrupt):
            ask(conversation, "fox " * 200)
    assert len(calls) == layer + 1
    assert ask(conversation, "fox " * 200) == ask(other, "fox " * 200)
    assert conversation.messages == other.messages


class _Patched:
    """A module with another ``concatenate``."""

    def __init__(self, module: Any, concatenate: Any) -> None:
        self._module = module
        self.concatenate = concatenate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def test_closing_an_answer_closes_its_stream(
    script: Script, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not when nothing refers to it any more."""
    streams = []

    def stream(*arguments: Any, **options: Any) -> Generator[Chunk, None, None]:
        streams.append(stream_generate(*arguments, **options))
        return streams[-1]

    monkeypatch.setattr(CONVERSATION, "stream_generate", stream)
    script.answers = [ids(model, "abcd")]
    chunks = Conversation(model).ask("one")
    next(chunks)
    chunks.close()
    assert list(streams[0]) == []


def test_asking_again_closes_an_open_answer(script: Script, model: LoadedModel) -> None:
    script.answers = [ids(model, "abcd"), [*ids(model, "x"), eos(model)]]
    conversation = Conversation(model)
    first = conversation.ask("one")
    next(first)
    assert ask(conversation, "two") == "x"
    assert list(first) == []
    assert [message["content"] for message in conversation.messages] == ["one", "a", "two", "x"]


def test_the_history_has_no_stop_string(script: Script, model: LoadedModel) -> None:
    """The ids before it stay as generated, also where it begins inside a token."""
    spelt = [token for letter in "The fo" for token in ids(model, letter)]
    script.answers = [[*spelt, *ids(model, "xy#")], [eos(model)]]
    conversation = Conversation(model, config=GenerationConfig(stop=("y#",)))
    assert ask(conversation, "one") == "The fox"
    ask(conversation, "two")
    held = [*script.prompts[0], *spelt, *ids(model, "x"), eos(model)]
    assert script.prompts[1][: len(held)] == held
    assert conversation.messages[1]["content"] == "The fox"


def test_an_empty_answer_is_an_answer(script: Script, model: LoadedModel) -> None:
    script.answers = [[eos(model)], [*ids(model, "x"), eos(model)]]
    conversation = Conversation(model)
    assert ask(conversation, "one") == ""
    assert ask(conversation, "two") == "x"
    assert len(conversation.messages) == 4


def test_reset_keeps_the_system_prompt_and_reuses_it(script: Script, model: LoadedModel) -> None:
    script.answers = [[*ids(model, "x"), eos(model)] for _ in range(3)]
    conversation = Conversation(model, system="Be brief.")
    ask(conversation, "a")
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]
    assert (conversation.num_tokens, conversation.is_full) == (0, False)
    ask(conversation, "b")
    assert script.prompts[1] == render_chat(
        model.tokenizer, [*conversation.messages[:1], {"role": "user", "content": "b"}]
    )
    # All but the question and what follows it.
    assert script.offsets[1] >= len(ids(model, "<|im_start|>system\nBe brief.<|im_end|>\n"))


def test_the_system_prompt_can_change(script: Script, model: LoadedModel) -> None:
    spelt = [token for letter in "The fox" for token in ids(model, letter)]
    script.answers = [[*spelt, eos(model)], [eos(model)], [eos(model)]]
    conversation = Conversation(model, system="Be brief.")
    ask(conversation, "a")
    conversation.set_system("Be long.")
    assert conversation.system == "Be long."
    ask(conversation, "b")
    text = model.tokenizer.decode(script.prompts[1])
    assert text.startswith("<|im_start|>system\nBe long.<|im_end|>\n<|im_start|>user\na<|im_end|>")
    assert text.count("<|im_start|>system\n") == 1
    assert script.offsets[1] == len(ids(model, "<|im_start|>system\nBe "))
    joined = ",".join(map(str, script.prompts[1]))
    assert ",".join(map(str, spelt)) in joined
    conversation.set_system(None)
    ask(conversation, "c")
    assert "named SmolLM" in model.tokenizer.decode(script.prompts[2])


def test_the_last_turn_can_be_undone(script: Script, model: LoadedModel) -> None:
    """A question is edited by undoing it and asking anew."""
    script.answers = [[*ids(model, "x"), eos(model)] for _ in range(3)]
    conversation = Conversation(model)
    assert conversation.undo_last() is None
    ask(conversation, "one")
    ask(conversation, "two")
    assert conversation.undo_last() == "two"
    assert [message["content"] for message in conversation.messages] == ["one", "x"]
    ask(conversation, "too")
    shared = script.offsets[2]
    assert script.prompts[2][:shared] == script.prompts[1][:shared]
    assert model.tokenizer.decode(script.prompts[2][shared:]).startswith("oo<|im_end|>")
    assert script.offsets[2] > script.offsets[1]


def test_a_question_that_does_not_fit_changes_nothing(script: Script, model: LoadedModel) -> None:
    script.answers = [[*ids(model, "x"), eos(model)], [*ids(model, "y"), eos(model)]]
    conversation = Conversation(model)
    with pytest.raises(PromptError, match=rf"\d{{4}} tokens.*{CONTEXT}; shorten") as error:
        ask(conversation, "🙂" * 300)
    assert "\n" not in str(error.value)
    ask(conversation, "one")
    before = (conversation.messages, conversation.num_tokens)
    assert not conversation.is_full
    with pytest.raises(PromptError, match=rf"\d{{4}} tokens.*{CONTEXT}; .*new conversation"):
        ask(conversation, "🙂" * 300)
    assert (conversation.messages, conversation.num_tokens) == before
    assert conversation.is_full
    ask(conversation, "two")
    assert not conversation.is_full
    assert script.offsets[1] == len(script.prompts[0]) + 1


@pytest.mark.parametrize("num_left", [0, 1])
def test_a_prompt_leaves_room_for_a_token(
    script: Script, model: LoadedModel, num_left: int
) -> None:
    template = [{"role": "user", "content": ""}]
    question = "x" * (CONTEXT - num_left - len(render_chat(model.tokenizer, template)))
    script.answers = [ids(model, "abc")]
    conversation = Conversation(model)
    if num_left:
        assert ask(conversation, question) == "a"
    else:
        with pytest.raises(PromptError, match=f"{CONTEXT} tokens.*{CONTEXT}; shorten"):
            ask(conversation, question)
    assert conversation.is_full


def test_an_answer_that_the_context_ends_fills_it(script: Script, model: LoadedModel) -> None:
    conversation = Conversation(model, config=GenerationConfig(max_tokens=4))
    script.answers = [ids(model, "abcdef"), ids(model, "ab" * CONTEXT)]
    ask(conversation, "one")
    assert not conversation.is_full
    conversation.config = GenerationConfig(max_tokens=CONTEXT)
    last = list(conversation.ask("two"))[-1]
    assert last.finish_reason == "length"
    assert conversation.num_tokens == CONTEXT
    assert conversation.is_full
    with pytest.raises(PromptError, match="new conversation"):
        ask(conversation, "three")
    conversation.reset()
    assert not conversation.is_full


def test_a_refused_system_prompt_is_an_error(script: Script) -> None:
    model = make_model(byte_level, NO_SYSTEM)
    conversation = Conversation(model, system="Be brief.")
    with pytest.raises(PromptError, match="chat template refuses"):
        ask(conversation, "one")
    conversation.set_system(None)
    script.answers = [[eos(model)]]
    assert ask(conversation, "one") == ""
    with pytest.raises(PromptError, match="no place for a system prompt"):
        Conversation(make_model(byte_level, None), system="Be brief.")


def test_the_statistics_are_the_latest_answers(script: Script, model: LoadedModel) -> None:
    script.answers = [[*ids(model, "abc"), eos(model)], [eos(model)]]
    conversation = Conversation(model)
    assert conversation.stats is None
    ask(conversation, "one")
    assert conversation.stats is not None
    assert conversation.stats.emitted_tokens == 4
    ask(conversation, "two")
    assert conversation.stats.emitted_tokens == 1


@pytest.mark.parametrize(("build", "template"), KINDS)
def test_a_later_turn_equals_a_fresh_prefill(build: Builder, template: str | None) -> None:
    """Law, on the real decode: what the cache held makes no difference to any answer."""
    model = make_model(build, template)
    config = GenerationConfig(max_tokens=12)
    conversation = Conversation(model, config=config)
    for turn, question in enumerate(("The dog?", "And then?", "Why, fox?")):
        chunks = conversation.ask(question)
        answer = list(islice(chunks, 5 if turn == 1 else None))
        chunks.close()
        prompt = conversation._cached[: conversation.num_tokens - len(answer)]
        fresh = generate(model, prompt, config)
        assert [chunk.token for chunk in answer] == list(fresh.tokens[: len(answer)])
        assert turn == 0 or answer[0].stats.cached_tokens > 5


def test_what_is_cached_is_what_was_run(model: LoadedModel) -> None:
    """After a reset, a new system prompt and an undone turn the cache still tells the truth."""
    config = GenerationConfig(max_tokens=6)
    conversation = Conversation(model, config=config)
    ask(conversation, "The dog?")
    ask(conversation, "And then?")
    conversation.set_system("Be brief.")
    ask(conversation, "Why?")
    conversation.undo_last()
    ask(conversation, "Who?")
    conversation.reset()
    ask(conversation, "The dog?")
    kv_cache, cached = conversation._kv_cache, conversation._cached
    assert kv_cache.offset == conversation.num_tokens - 1 == len(cached) - 1
    held = [chunk.token for chunk in stream_generate(model, cached, config, kv_cache=kv_cache)]
    assert held == list(generate(model, cached, config).tokens)


def test_each_turn_may_run_on_its_own_thread(model: LoadedModel) -> None:
    config = GenerationConfig(max_tokens=6)
    questions = ("The dog?", "And then?", "Why?")
    here, there = (Conversation(model, config=config) for _ in range(2))
    for question in questions:
        ask(here, question)
        worker = threading.Thread(target=ask, args=(there, question))
        worker.start()
        worker.join()
    assert there.messages == here.messages
    assert there.num_tokens == here.num_tokens
