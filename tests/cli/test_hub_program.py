"""The program in a process of its own with the hub's environment variables, then offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.hub_server import files_of, serve_hub, use_hub
from tests.tiny_vicuna import write_tiny_vicuna

ROOT = Path(__file__).parents[2]
CHAT = ("chat", "--model", "lmsys/vicuna-7b-v1.3", "--max-tokens", "6")
QUESTIONS = "Hello there\nWhat?\n"


def test_the_environment_of_the_hub_counts_and_a_second_start_needs_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    with serve_hub() as server:
        server.add("lmsys/vicuna-7b-v1.3", files_of(write_tiny_vicuna(tmp_path / "source")))
        first = subprocess.run(
            [sys.executable, "-m", "redrafter_mlx", *CHAT],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "HF_ENDPOINT": server.url,
                "HF_HOME": str(tmp_path / "hf"),
                "HF_TOKEN": "secret",
            },
            input=QUESTIONS,
            capture_output=True,
            text=True,
            timeout=90,
        )
    assert first.returncode == 0, first.stderr
    assert server.tokens == {"Bearer secret"}
    assert first.stderr.startswith("Downloading lmsys/vicuna-7b-v1.3: 8 files, 255 kB\n")
    assert (tmp_path / "hf" / "hub" / "models--lmsys--vicuna-7b-v1.3").is_dir()
    use_hub(monkeypatch, "http://127.0.0.1:1", tmp_path / "hf" / "hub")
    second = run(*CHAT, stdin=QUESTIONS)
    assert second.exit_code == 0
    assert second.stdout == first.stdout
