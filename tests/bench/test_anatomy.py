"""The anatomy of rounds: every shape beside plain steps of the same run."""

from __future__ import annotations

import pytest

from redrafter_mlx.bench import anatomy
from redrafter_mlx.bench.anatomy import SHAPES, Runner, Times, lines, long_prompt, measure
from redrafter_mlx.config import GenerationConfig, SamplingConfig
from tests.toy import toy_drafter, toy_model, toy_target


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_each_shape_is_timed_whole_and_in_parts(temperature: float) -> None:
    target = toy_target()
    run = Runner(toy_model(target, toy_drafter(target)), [7, 3, 9])
    sampling = SamplingConfig(temperature=temperature, top_p=0.9)
    base = GenerationConfig(max_tokens=6, sampling=sampling, use_lookup=False, is_adaptive=False)
    steps, times = measure(run, base, trials=2)
    assert len(steps) == 2
    assert list(times) == list(SHAPES)
    for found in times.values():
        assert len(found.rounds) == 2
        assert len(found.greedy_rounds) == (2 if temperature else 0)
        assert set(found.parts) == {"draft", "verify", "accept", "host", "commit"}


def test_lines_are_in_plain_steps() -> None:
    found = Times(rounds=[0.15, 0.9, 0.15])
    parts = {"draft": 0.02, "verify": 0.11, "accept": 0.002, "host": 0.003, "commit": 0.001}
    for part, seconds in parts.items():
        found.parts[part] = [seconds]
    plain, shape = lines([0.1, 0.1, 5.0], {SHAPES[0]: found})
    assert plain == "plain step 100.0 ms"
    assert shape == (
        "(1, 4): round 1.500 steps; draft 0.200, verify 1.100, rest 0.060 (accept 0.020, "
        "host 0.030, commit 0.010)"
    )


@pytest.mark.parametrize("num_tokens", [0, 5, 6, 1000])
def test_a_long_prompt_is_as_long_as_was_asked_and_ends_with_the_question(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    question = anatomy.tune_prompts()[0].text
    ids = {True: [1, 2, 3, 4, 5], False: list(range(10, 80))}
    monkeypatch.setattr(anatomy, "chat_prompt", lambda model, text: ids[text == question])
    prompt = long_prompt(toy_model(toy_target()), num_tokens)
    assert len(prompt) == max(num_tokens, 5)
    assert prompt[-5:] == [1, 2, 3, 4, 5]
