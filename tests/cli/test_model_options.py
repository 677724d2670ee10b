"""--quantize, --group-size and --revision of the commands that answer, in process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.nn as nn
import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.loading import model as loading
from redrafter_mlx.loading.model import UNTUNED, LoadedModel
from tests.cli.conftest import Run
from tests.cli.fakes import FakeLibrary
from tests.hub_server import files_of, serve_hub, use_hub
from tests.tiny_vicuna import write_tiny_vicuna


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (["--quantize", "4"], {"quantization": Quantization(4, 64)}),
        (["--quantize", "8", "--group-size", "32"], {"quantization": Quantization(8, 32)}),
        (["--revision", "v2"], {"revision": "v2"}),
    ],
)
def test_options_reach_the_library(
    run: Run, library: FakeLibrary, options: list[str], given: dict[str, object]
) -> None:
    assert run("generate", "-p", "Hi", "--model", "m", *options).exit_code == 0
    assert library.loads == [{"name": "m", "drafter": "auto", "dtype": "auto", **given}]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--quantize", "5"], "5 is neither 4 nor 8"),
        (["--quantize", "4", "--group-size", "16"], "16 is none of 32, 64, 128"),
        (["--group-size", "64"], "it goes with --quantize; give both"),
    ],
)
def test_wrong_options_are_wrong_usage(
    run: Run, library: FakeLibrary, options: list[str], complaint: str
) -> None:
    result = run("generate", "-p", "Hi", *options)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert library.loads == []


def test_what_loading_tells_stands_before_the_answer(run: Run, library: FakeLibrary) -> None:
    library.loading_notes, library.notices = ("Converting m once, into x",), ("No drafter",)
    result = run("generate", "-p", "Hi")
    assert result.stderr.splitlines()[:2] == ["Converting m once, into x", "No drafter"]
    assert result.stdout == "Hello there!\n"


def test_default_model_cannot_be_quantised(run: Run) -> None:
    result = run("generate", "-p", "Hi", "--quantize", "4")
    assert result.exit_code == 1
    assert result.stderr == (
        "redrafter-mlx: The weights of smollm2-135m are quantised already; leave out --quantize, "
        "or take the unquantised model.\n"
    )


def test_a_quantised_vicuna_answers_in_a_chat(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the server's PyTorch shards to two answers; the second start asks nobody."""
    loaded: list[LoadedModel] = []

    def load(*args: Any, **options: Any) -> LoadedModel:
        loaded.append(real(*args, **options))
        return loaded[-1]

    real = loading.load
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "load", load)
    chat = [
        *("chat", "--model", "vicuna-7b", "--quantize", "8", "--group-size", "32"),
        *("--dtype", "stored", "--max-tokens", "5"),
    ]
    with serve_hub() as server:
        use_hub(monkeypatch, server.url, tmp_path / "hub")
        source = write_tiny_vicuna(tmp_path / "source")
        server.add("lmsys/vicuna-7b-v1.3", files_of(source) | {"modeling.py": b"raise"})
        first = run(*chat, stdin="Hello there\nWhat?\n")
        assert first.exit_code == 0
        assert server.files_asked == files_of(source).keys()
        server.requests.clear()
        second = run(*chat, stdin="Hello there\nWhat?\n")
        assert server.requests == []
    assert second.exit_code == 0
    assert second.stdout == first.stdout
    lines = first.stderr.splitlines()
    assert lines[0] == "Downloading lmsys/vicuna-7b-v1.3: 8 files, 255 kB"
    assert lines[1].startswith("Converting vicuna-7b to 8 bits (groups of 32), once, into ")
    assert "Download" not in second.stderr and "Convert" not in second.stderr
    assert isinstance(loaded[0].target.lm_head, nn.QuantizedLinear)


@pytest.mark.parametrize("command", [("generate", "-p", "Hi"), ("chat",)])
@pytest.mark.parametrize(
    ("options", "is_advised"),
    [
        ((), True),
        (("--temp", "0.8", "--no-lookup"), True),
        (("--lookup-only",), False),
        (("--no-adapt",), False),
        (("--beam-width", "2"), False),
        (("--beam-length", "3"), False),
    ],
)
def test_tuning_is_advised_where_its_outcome_would_be_used(
    run: Run,
    library: FakeLibrary,
    command: tuple[str, ...],
    options: tuple[str, ...],
    is_advised: bool,
) -> None:
    library.notices = ("Another notice.", UNTUNED)
    result = run(*command, *options, stdin="Hi\n")
    assert result.exit_code == 0, result.stderr
    assert "Another notice.\n" in result.stderr
    assert (UNTUNED in result.stderr) is is_advised
