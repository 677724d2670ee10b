"""The newcomer's model: its script writes a folder that loads, and one that is there stays."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from redrafter_mlx.loading.model import load
from redrafter_mlx.text import render_chat

SCRIPT = Path(__file__).resolve().parents[2] / "docs/small_llama.py"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_script_makes_a_model_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "small-llama"
    run(monkeypatch, str(folder), "--steps", "1", "--prompts", "40")
    model = load(str(folder), drafter=None)
    assert model.target.config.num_layers == 4
    assert 300 < model.target.config.vocab_size == len(model.tokenizer) <= 4096
    asked = render_chat(model.tokenizer, [{"role": "user", "content": "Who is Ada?"}])
    assert model.tokenizer.decode(asked).startswith("<|start|>user\nWho is Ada?<|end|>")
    assert model.tokenizer.eos_token_id in model.eos_ids
    questions = (folder / "prompts.txt").read_text().splitlines()
    assert 20 < len(questions) == len(set(questions)) <= 40
    with pytest.raises(SystemExit, match="exists and is not an empty folder"):
        run(monkeypatch, str(folder))
