"""The known name vicuna-7b, from a server's PyTorch shards to the ids of a second turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from sentencepiece import SentencePieceProcessor

from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.conversation import Conversation
from redrafter_mlx.errors import PromptError
from redrafter_mlx.generation import chat_prompt, stream_generate
from redrafter_mlx.loading.hub import resolve_model
from redrafter_mlx.loading.model import LoadedModel, load
from redrafter_mlx.loading.watch import Watch
from redrafter_mlx.text import encode, render_chat
from tests.hub_server import HubServer, files_of, serve_hub, use_hub
from tests.tiny_vicuna import sentencepiece_model, tiny_target, write_tiny_vicuna

REPOSITORY = "lmsys/vicuna-7b-v1.3"
SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
BOS, EOS = 1, 2


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """Serve the tiny model, with two caches of its own for all tests here."""
    folder = tmp_path_factory.mktemp("hub")
    with serve_hub() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDRAFTER_CACHE", str(folder / "cache"))
        server.add(REPOSITORY, files_of(write_tiny_vicuna(folder / "source")))
        use_hub(patch, server.url, folder / "hub")
        yield server


@pytest.fixture(scope="module")
def vicuna(hub: HubServer) -> LoadedModel:
    """Return the model, downloaded and converted."""
    return load("vicuna-7b", dtype="float32")


@pytest.fixture(scope="module")
def pieces() -> SentencePieceProcessor:
    """Return the tokenizer's own library."""
    return SentencePieceProcessor(model_proto=sentencepiece_model())


def test_it_is_downloaded_and_converted_once(
    hub: HubServer, vicuna: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.requests.clear()
    notes: list[str] = []
    for name in ("vicuna-7b", REPOSITORY):
        assert resolve_model(name, watch=Watch(notes.append)) == vicuna.folder
    assert (hub.requests, notes) == ([], [])
    tokens = mx.array([1, 5, 9])
    expected = tiny_target()
    expected.set_dtype(mx.float32)
    ours, theirs = (
        decoder.logits(decoder(tokens, decoder.make_kv_cache()))
        for decoder in (vicuna.target, expected)
    )
    assert mx.array_equal(ours, theirs)


@pytest.mark.parametrize(
    "text", ["Hello there", " two  spaces\n and a line", "naïve café €", "USER: x </ s>", ""]
)
def test_a_prompt_has_the_ids_of_sentencepiece(
    vicuna: LoadedModel, pieces: SentencePieceProcessor, text: str
) -> None:
    """Within a text; at its very beginning transformers gives one space no piece of its own."""
    inside = f"He said: {text}"
    assert encode(vicuna.tokenizer, inside, add_special_tokens=True) == [
        BOS,
        *pieces.encode(inside),
    ]
    asked = f"{SYSTEM} USER: {text.strip()} ASSISTANT:"
    assert chat_prompt(vicuna, text) == [BOS, *pieces.encode(asked)]


def test_a_system_prompt_takes_the_place_of_the_usual_one(
    vicuna: LoadedModel, pieces: SentencePieceProcessor
) -> None:
    assert chat_prompt(vicuna, "Hello", "Be kind.") == [
        BOS,
        *pieces.encode("Be kind. USER: Hello ASSISTANT:"),
    ]


def test_a_second_turn_ends_the_answer_and_begins_anew(
    vicuna: LoadedModel, pieces: SentencePieceProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompt, the answer's own ids, id 2, the question: one BOS, and the cache is kept."""
    asked: list[list[int]] = []

    def record(model: LoadedModel, tokens: list[int], *args: Any, **options: Any) -> Any:
        asked.append(list(tokens))
        return stream_generate(model, tokens, *args, **options)

    monkeypatch.setattr("redrafter_mlx.conversation.stream_generate", record)
    conversation = Conversation(vicuna, config=GenerationConfig(max_tokens=6))
    first = [chunk.token for chunk in conversation.ask("Hello there")]
    assert EOS not in first
    list(conversation.ask("What is 17 times 24?"))
    begin = [BOS, *pieces.encode(f"{SYSTEM} USER: Hello there ASSISTANT:")]
    second = pieces.encode("USER: What is 17 times 24? ASSISTANT:")
    assert asked == [begin, [*begin, *first, EOS, *second]]
    assert conversation.stats is not None
    assert conversation.stats.cached_tokens == len(begin) + len(first) - 1


def test_the_template_alone_gives_the_same_ids(
    vicuna: LoadedModel, pieces: SentencePieceProcessor
) -> None:
    """As mlx-lm uses it: rendered and encoded as one text, without further special tokens."""
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "I am well."},
        {"role": "user", "content": "What?"},
    ]
    text = vicuna.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert vicuna.tokenizer.encode(text, add_special_tokens=False) == [
        BOS,
        *pieces.encode(f"{SYSTEM} USER: Hello ASSISTANT: I am well."),
        EOS,
        *pieces.encode("USER: What? ASSISTANT:"),
    ]
    with pytest.raises(PromptError, match="must take turns"):
        render_chat(vicuna.tokenizer, [*messages, {"role": "user", "content": "And?"}])


def test_it_is_what_the_folder_says_for_other_programs_too(vicuna: LoadedModel) -> None:
    folder = vicuna.folder
    assert isinstance(folder, Path)
    assert vicuna.eos_ids == {EOS}
    assert vicuna.notices[0].startswith("No drafter was found for vicuna-7b")
    assert len(vicuna.notices) == 1, "it has a chat template"
    assert "ASSISTANT:" in (folder / "chat_template.jinja").read_text()
