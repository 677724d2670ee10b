"""``redrafter-mlx models``; what is cached and removed is tested in tests/loading."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from redrafter_mlx.cli import models as command
from redrafter_mlx.config import Quantization
from redrafter_mlx.folders import new_folder
from redrafter_mlx.loading.converted import Origin
from redrafter_mlx.weights import write_json
from tests.cli.conftest import Run
from tests.conversions import write_conversion

pytestmark = pytest.mark.usefixtures("cache")
NUM_BYTES = 2_000_000


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the user's own Hugging Face cache out."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_list(run: Run, cache: Path) -> None:
    plain = write_conversion(Origin("vicuna-7b"), NUM_BYTES)
    packed = write_conversion(Origin("vicuna-7b", None, Quantization(4)), NUM_BYTES)
    other = write_conversion(Origin("org/name", "v2"), NUM_BYTES)
    drafter = cache / "drafters" / "vicuna-7b"
    drafter.mkdir(parents=True)
    write_json(drafter / "config.json", {})
    result = run("models")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "smollm2-135m  not cached, with a drafter",
        "vicuna-7b     converted 2 times, with a drafter",
        f"              2 MB, 4 bits in groups of 64: {packed}",
        f"              2 MB: {plain}",
        "vicuna-13b    not cached, no drafter",
        "vicuna-33b    not cached, no drafter",
        "org/name      converted 1 time, no drafter",
        f"              2 MB, at v2: {other}",
    ]


def test_removal_says_what_goes_and_what_stays(run: Run, cache: Path) -> None:
    folder = write_conversion(Origin("vicuna-7b"), NUM_BYTES)
    drafter = cache / "drafters" / "vicuna-7b"
    drafter.mkdir(parents=True)
    result = run("models", "--remove", "vicuna-7b", "--yes")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [f"2 MB: {folder}", f"Your drafter stays: {drafter}"]
    assert result.stdout == "Removed 2 MB of vicuna-7b\n"
    assert not folder.exists()
    assert drafter.is_dir()
    result = run("models", "--remove", "vicuna-7b", "--yes")
    assert result.exit_code == 1
    assert "The cache holds nothing of vicuna-7b but your drafter" in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_a_terminal_it_needs_a_yes(run: Run) -> None:
    folder = write_conversion(Origin("vicuna-7b"), NUM_BYTES)
    result = run("models", "--remove", "vicuna-7b", stdin="y\n")
    assert result.exit_code == 2
    assert "without a terminal to ask on it needs --yes" in result.stderr
    assert folder.is_dir()


def test_a_yes_to_nothing_is_wrong_usage(run: Run) -> None:
    result = run("models", "--yes")
    assert result.exit_code == 2
    assert "it goes with --remove NAME" in result.stderr


@pytest.mark.parametrize(
    ("answer", "is_removed"), [("y", True), ("YES", True), ("n", False), ("", False), (None, False)]
)
def test_on_a_terminal_it_asks(
    run: Run, monkeypatch: pytest.MonkeyPatch, answer: str | None, is_removed: bool
) -> None:
    monkeypatch.setattr(command, "_has_terminal", lambda: True)
    folder = write_conversion(Origin("vicuna-7b"), NUM_BYTES)
    result = run("models", "--remove", "vicuna-7b", stdin="" if answer is None else f"{answer}\n")
    assert "Remove 2 MB? [y/N]" in result.stderr
    assert result.exit_code == 0
    assert ("Nothing was removed" in result.stderr) is not is_removed
    assert folder.exists() is not is_removed


def test_what_an_interrupted_conversion_left_is_shown_and_removed(run: Run, cache: Path) -> None:
    left = cache / "models" / "vicuna-7b+q4g64-v1.partial-0123abcd"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(bytes(2_000_000))
    os.utime(left, (0, 0))
    line = f"2 MB, left over from an interrupted conversion: {left}"
    lines = run("models").stdout.splitlines()
    assert lines[1:3] == ["vicuna-7b     not cached, no drafter", f"              {line}"]
    result = run("models", "--remove", "vicuna-7b", "--yes")
    assert (result.exit_code, result.stderr) == (0, f"{line}\n")
    assert not left.exists()


def test_what_a_living_conversion_fills_is_not_shown(run: Run, cache: Path) -> None:
    with new_folder(cache / "models" / "vicuna-7b-v1") as folder:
        (folder / "model.safetensors").write_bytes(bytes(2_000_000))
        os.utime(folder, (0, 0))
        assert "left over" not in run("models").stdout


def test_without_a_terminal_nothing_is_asked_about_nothing(run: Run) -> None:
    result = run("models", "--remove", "vicuna-7b")
    assert result.exit_code == 1
    assert "The cache holds nothing of vicuna-7b" in result.stderr


def test_an_empty_cache_is_named(run: Run, cache: Path) -> None:
    assert run("models").stderr == f"Nothing is cached yet; the cache is {cache}\n"


@pytest.mark.parametrize("args", [[], ["--remove", "vicuna-7b", "--yes"]])
def test_a_cache_that_is_a_file_is_told(run: Run, cache: Path, args: list[str]) -> None:
    cache.touch()
    result = run("models", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"redrafter-mlx: The cache {cache} is a file; set REDRAFTER_CACHE to a folder.\n"
    )


def test_copies_of_what_is_no_more_are_marked(run: Run, tmp_path: Path) -> None:
    """A source that has changed or gone: its old copy is of no use and takes room."""
    changed, gone = tmp_path / "changed", tmp_path / "gone"
    for source in (changed, gone):
        source.mkdir()
        write_conversion(Origin(str(source)), NUM_BYTES)
    (changed / "config.json").touch()
    gone.rmdir()
    write_conversion(Origin(str(changed)), NUM_BYTES)
    lines = [line.strip().partition(": ")[0] for line in run("models").stdout.splitlines()]
    marks = sorted(line for line in lines if line.startswith("2 MB"))
    assert marks == ["2 MB", f"2 MB, {gone} is gone", f"2 MB, of an older state of {changed}"]
