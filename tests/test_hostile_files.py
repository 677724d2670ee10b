"""Hostile and broken files at the user's doors: each refused in one line, nothing run or left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from redrafter_mlx.cli.main import PROGRAM_NAME, app
from redrafter_mlx.weights import read_json, write_json
from tests.convert.tiny_target import tensors_of, write_target
from tests.hostile_cases import CASES, DRAFTERS, EVIL_CODE, TOKENIZERS
from tests.hostile_files import CANARY
from tests.small_tokenizers import byte_level

MOST_BYTES = 3 << 29
MOST_CHARACTERS = 1000


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Give the process so much more than it has; only Linux says how much that is."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder; the cache is in it, and so is what a relative path names."""
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> Result:
    with bounded_memory():
        return CliRunner().invoke(app, args, prog_name=PROGRAM_NAME)


def listing(folder: Path) -> set[Path]:
    """Return everything in a folder but the cache's own empty folders."""
    return set(folder.rglob("*")) - {folder / "cache", folder / "cache" / "models"}


def complaint(result: Result, capfd: pytest.CaptureFixture[str]) -> str:
    """Check that a run failed in one short line, and return it.

    Native code and loggers write past the stream that the runner holds.
    """
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Converting ")]
    assert (result.exit_code, result.stdout, len(lines)) == (1, "", 1), result.output
    assert capfd.readouterr() == ("", "")
    assert lines[0].startswith("redrafter-mlx: ")
    assert lines[0].endswith((".", ". Remove it.")) or "cannot be loaded: " in lines[0]
    assert "Internal error" not in lines[0] and "memory is full" not in lines[0]
    assert len(lines[0]) < MOST_CHARACTERS
    return lines[0]


@pytest.mark.parametrize("name", CASES | DRAFTERS)
def test_convert_refuses_in_one_line_and_writes_nothing(
    work: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    case = (CASES | DRAFTERS)[name]
    source = case.write(work)
    before = listing(work)
    result = run("convert", str(source), "--out", str(work / "out"))
    assert listing(work) == before
    assert not (work / CANARY).exists()
    assert case.words in complaint(result, capfd)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_model])
def test_generate_refuses_in_one_line_and_writes_nothing(
    work: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    source = CASES[name].write(work)
    before = listing(work)
    result = run("generate", "--model", str(source), "--prompt", "x")
    assert listing(work) == before
    assert not (work / CANARY).exists()
    assert CASES[name].words in complaint(result, capfd)


@pytest.mark.parametrize("name", DRAFTERS)
def test_generate_refuses_a_drafter_in_one_line(
    work: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    source = write_target(work / "model", tensors_of())
    byte_level().save_pretrained(source)
    drafter = DRAFTERS[name].write(work)
    before = listing(work)
    capfd.readouterr()
    args = ("--model", str(source), "--drafter", str(drafter), "--prompt", "x")
    result = run("generate", *args)
    assert listing(work) == before
    complaint(result, capfd)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_cannot_be_is_refused_in_one_line(
    work: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    source = write_target(work / "model", tensors_of())
    file, data = TOKENIZERS[name]
    (source / file).write_bytes(data)
    (source / "evil.py").write_text(EVIL_CODE)
    before = listing(work)
    result = run("generate", "--model", str(source), "--prompt", "x")
    assert listing(work) == before
    is_there = file != "tokenizer_config.json"
    words = f"The tokenizer in {source}" if is_there else f"{source} has no tokenizer.json; copy"
    assert complaint(result, capfd).startswith(f"redrafter-mlx: {words}")


def test_a_file_beside_a_sound_tokenizer_may_not_be_endless(
    work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write_target(work / "model", tensors_of())
    byte_level().save_pretrained(source)
    (source / "vocab.json").touch()
    os.truncate(source / "vocab.json", 10**8)
    capfd.readouterr()
    result = run("generate", "--model", str(source), "--prompt", "x")
    assert "vocab.json is 100000000 bytes long" in complaint(result, capfd)


def test_a_tokenizer_that_cannot_encode_is_refused(
    work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write_target(work / "model", tensors_of())
    byte_level().save_pretrained(source)
    settings = read_json(source / "tokenizer_config.json") | {"model_max_length": {"a": 1}}
    write_json(source / "tokenizer_config.json", settings)
    capfd.readouterr()
    result = run("generate", "--model", str(source), "--prompt", "x")
    assert "cannot be loaded: " in complaint(result, capfd)


def test_the_corpus_is_about_a_sound_model(work: Path) -> None:
    source = write_target(work / "model", tensors_of())
    assert run("convert", str(source), "--out", str(work / "out")).exit_code == 0
