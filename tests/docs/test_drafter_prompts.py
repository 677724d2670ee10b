"""The prompts of the drafter that ships: the same ones for a seed, none of them twice."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docs/drafter_prompts.py"
FIRST = [
    "What are the advantages and disadvantages of the civil rights movement?",
    "Compare learning a foreign language and calculus.",
]


def asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> list[str]:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()]


def test_seed_gives_the_same_prompts_and_none_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = asked(monkeypatch, capsys, "3000", "--seed", "1")
    assert len(many) == len(set(many)) == 3000
    assert asked(monkeypatch, capsys, "2", "--seed", "1") == many[:2]
    assert many[:2] == FIRST
    assert not any("{" in prompt or "  " in prompt for prompt in many)
    assert asked(monkeypatch, capsys, "-1") == []
