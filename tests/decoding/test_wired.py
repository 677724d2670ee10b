"""The wired limit, on a device that only notes what it is told."""

from __future__ import annotations

import ctypes
import gc
import signal
import threading
from collections.abc import Generator
from typing import Any

import mlx.core as mx
import pytest

from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.conversation import Conversation
from redrafter_mlx.decoding.wired import WIRED_LIMIT, WiredLimit
from redrafter_mlx.generation import stream_generate
from tests.small_tokenizers import CHATML, byte_level
from tests.toy import toy_drafter, toy_model, toy_target

RECOMMENDED, BEFORE = 12_000, 77
CONFIG = GenerationConfig(max_tokens=20)


class Device:
    """What MLX's functions are on Metal.

    Attributes:
        limit: The one in force.
        calls: "limit" and "synchronize", in order.
        error: Raised once, in place of the next change.
    """

    def __init__(self) -> None:
        self.limit = BEFORE
        self.calls: list[str] = []
        self.error: BaseException | None = None

    def set_wired_limit(self, limit: int) -> int:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.calls.append("limit")
        before, self.limit = self.limit, limit
        return before

    def synchronize(self) -> None:
        self.calls.append("synchronize")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(
        mx, "device_info", lambda: {"max_recommended_working_set_size": RECOMMENDED}
    )
    monkeypatch.setattr(mx, "set_wired_limit", device.set_wired_limit)
    monkeypatch.setattr(mx, "synchronize", device.synchronize)
    return device


def answer(prompt: list[int] | None = None) -> Generator[Any, None, None]:
    target = toy_target()
    return stream_generate(toy_model(target, toy_drafter(target)), prompt or [7, 3, 9], CONFIG)


def test_the_limit_is_raised_while_an_answer_is_made(device: Device) -> None:
    chunks = answer()
    assert device.limit == BEFORE
    limits = [device.limit for _ in chunks]
    # The last chunk is for a reader who never asks for more.
    assert limits == [RECOMMENDED] * 19 + [BEFORE]
    assert device.calls == ["limit", "synchronize", "limit"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_it_is_set_back_after_an_exception(
    device: Device, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        assert device.limit == RECOMMENDED
        raise error

    chunks = answer()
    next(chunks)
    monkeypatch.setattr("redrafter_mlx.decoding.round.choose", fail)
    with pytest.raises(error):
        list(chunks)
    assert device.limit == BEFORE


def test_it_is_set_back_when_the_answer_is_closed_or_abandoned(device: Device) -> None:
    closed, abandoned = answer(), answer()
    next(closed)
    closed.close()
    assert device.limit == BEFORE
    next(abandoned)
    assert device.limit == RECOMMENDED
    del abandoned
    gc.collect()
    assert device.limit == BEFORE


def test_ctrl_c_in_the_reader_of_a_chat(device: Device) -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = CHATML
    target = toy_target(vocab_size=len(tokenizer))
    conversation = Conversation(toy_model(target, tokenizer=tokenizer), config=CONFIG)
    with pytest.raises(KeyboardInterrupt):
        for _ in conversation.ask("Why?"):
            assert device.limit == RECOMMENDED
            raise KeyboardInterrupt
    conversation.reset()
    assert device.limit == BEFORE


def test_a_prompt_that_is_refused_leaves_it(device: Device) -> None:
    with pytest.raises(Exception, match="context"):
        next(answer([1] * 600))
    assert device.limit == BEFORE


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_overlapping_answers_share_it(device: Device, order: tuple[int, ...]) -> None:
    """Law: it stays until the last one ends, in whatever order they end."""
    answers = [answer() for _ in order]
    for chunks in answers:
        next(chunks)
    for place in order:
        assert device.limit == RECOMMENDED
        answers[place].close()
    assert device.limit == BEFORE
    assert device.calls == ["limit", "synchronize", "limit"]


def test_threads_share_it(device: Device) -> None:
    limit, barrier = WiredLimit(), threading.Barrier(4)
    seen = []

    def use() -> None:
        for _ in range(50):
            barrier.wait()
            with limit.raised():
                seen.append(device.limit)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {RECOMMENDED}
    assert device.limit == BEFORE


def test_ctrl_c_while_it_is_raised(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: whenever Python sees the signal, what was before is known and set back.

    MLX's function is played by one that is no Python either and has the signal pending when
    it returns; it takes the signal's number, which the device therefore recommends.
    """
    monkeypatch.setattr(
        mx, "device_info", lambda: {"max_recommended_working_set_size": int(signal.SIGINT)}
    )
    monkeypatch.setattr(mx, "set_wired_limit", ctypes.pythonapi.PyErr_SetInterruptEx)
    with pytest.raises(KeyboardInterrupt), WiredLimit().raised():
        pytest.fail("the signal came too late")
    assert device.calls == ["synchronize"]


def test_a_limit_that_the_system_refuses_does_not_end_the_answer(device: Device) -> None:
    device.error = ValueError("more than the system's limit")
    assert {device.limit for _ in answer()} == {BEFORE}
    assert device.calls == []


def test_a_failing_synchronize_sets_it_back(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(mx, "synchronize", fail)
    with pytest.raises(RuntimeError, match="gone"), WiredLimit().raised():
        pass
    assert device.limit == BEFORE


def test_a_device_that_recommends_nothing_is_left_alone(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "CPU"})
    with WIRED_LIMIT.raised():
        assert device.limit == BEFORE
    assert device.calls == []
