"""The commands on the default model."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.generation import chat_prompt, generate
from redrafter_mlx.loading.model import LoadedModel
from tests.cli.conftest import Run

pytestmark = pytest.mark.real_model

QUESTION = "Name three fruits."


@pytest.fixture
def model(smollm2: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """Have the commands take the model that is loaded already."""
    model = replace(smollm2, notices=())
    monkeypatch.setattr("redrafter_mlx.loading.model.load", lambda *_, **__: model)
    return model


def test_generate_shows_the_answer_of_the_library(run: Run, model: LoadedModel) -> None:
    answer = generate(model, chat_prompt(model, QUESTION), GenerationConfig(max_tokens=8))
    command = ("generate", "--prompt", QUESTION, "--max-tokens", "8")
    assert run(*command).stdout == answer.text + "\n"
    shown = json.loads(run(*command, "--json").stdout)
    assert shown["text"] == answer.text
    assert tuple(shown["tokens"]) == answer.tokens
    assert tuple(shown["prompt_tokens"]) == answer.prompt_tokens
    assert shown["finish_reason"] == answer.finish_reason


def test_second_turn_reuses_the_first(run: Run, model: LoadedModel) -> None:
    first, second = "My name is Ada.", "What is my name?"
    result = run("chat", "--max-tokens", "6", stdin=f"{first}\n{second}\n/stats\n")
    assert result.exit_code == 0
    found = re.search(r"(\d+) of (\d+) prompt tokens cached", result.stderr)
    assert found is not None
    cached, prompt = map(int, found.groups())
    num_first = len(chat_prompt(model, first))
    assert num_first < cached < prompt - num_first
