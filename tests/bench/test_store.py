"""Results on the disk: whole at any moment, and gone on with only where nothing has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from redrafter_mlx.bench.plots import MISSING
from redrafter_mlx.bench.results import SCHEMA_VERSION, to_json
from redrafter_mlx.bench.store import (
    CSV,
    REPORT,
    RESULTS,
    Recorder,
    read_results,
    resumed,
    write_report,
)
from redrafter_mlx.errors import CheckpointError
from tests.bench.synthetic_results import synthetic_results

BEGUN = replace(synthetic_results(), trials=(), phases=(), notes=())


@pytest.fixture
def folder(tmp_path):
    """Return a folder that holds results."""
    Recorder(synthetic_results(), tmp_path / "out")
    return tmp_path / "out"


def test_each_result_is_on_the_disk_at_once(tmp_path):
    recorder = Recorder(BEGUN, tmp_path / "out")
    assert read_results(tmp_path / "out") == BEGUN
    full = synthetic_results()
    for trial in full.trials:
        recorder.add_trial(trial)
        assert read_results(tmp_path / "out").trials[-1] == trial
    recorder.add_phases(full.phases[0])
    for _ in range(2):
        recorder.add_note(full.notes[0])
    assert read_results(tmp_path / "out" / RESULTS) == full
    assert [file.name for file in (tmp_path / "out").iterdir()] == [RESULTS]


def test_a_write_that_fails_leaves_what_was_there(folder, monkeypatch):
    before = (folder / RESULTS).read_text()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left on device\)"):
        Recorder(BEGUN, folder)
    assert (folder / RESULTS).read_text() == before


def test_the_same_bench_goes_on(folder):
    found = resumed(replace(BEGUN, started_at="2026-02-01T00:00:00+00:00"), folder)
    assert found == synthetic_results()
    noted = resumed(replace(BEGUN, notes=("New.", *synthetic_results().notes)), folder)
    assert noted.notes == (*synthetic_results().notes, "New.")


def test_an_empty_or_missing_folder_is_begun(tmp_path):
    assert resumed(BEGUN, tmp_path / "none") == BEGUN
    assert resumed(BEGUN, tmp_path) == BEGUN


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").touch()
    with pytest.raises(CheckpointError, match="holds no results to go on with"):
        resumed(BEGUN, tmp_path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"suite": "quick"}, "suite is mt-bench and now quick"),
        ({"questions_digest": "x"}, "set of questions is 8f4c1d2e and now x"),
        ({"target": replace(BEGUN.target, name="llama")}, "target's name is vicuna-7b and now"),
        ({"target": replace(BEGUN.target, fingerprint="0")}, "target's fingerprint is 68202c6"),
        ({"target": replace(BEGUN.target, dtype="float32")}, "target's dtype is float16 and now"),
        ({"target": replace(BEGUN.target, bits=4)}, "target's bits is None and now 4"),
        ({"drafter": None}, "drafter is vicuna_redrafter 0123456789ab and now None"),
        (
            {"drafter": replace(BEGUN.drafter, fingerprint="f" * 16)},
            "drafter is vicuna_redrafter 0123456789ab and now vicuna_redrafter ffffffffffff",
        ),
        ({"machine": replace(BEGUN.machine, chip="M4")}, "chip is Apple M2 Ultra and now M4"),
        ({"machine": replace(BEGUN.machine, git_commit="0")}, "commit is 4a996e8 and now 0"),
        (
            {"machine": replace(BEGUN.machine, packages={"mlx": "1", "python": "3.12.1"})},
            "version of mlx is 0.32.4 and now 1",
        ),
        (
            {"machine": replace(BEGUN.machine, packages={"python": "3.12.1"})},
            "version of mlx is 0.32.4 and now missing",
        ),
        (
            {"configurations": BEGUN.configurations[:-1]},
            r"set of sides .* is .*, \(3,5\) fixed.* and now [^;]*[^d]; run",
        ),
        (
            {"configurations": tuple(replace(one, max_tokens=9) for one in BEGUN.configurations)},
            "max_tokens of plain is 21 and now 9;",
        ),
        (
            {"configurations": tuple(replace(one, seed=9) for one in BEGUN.configurations)},
            "seed of plain is 0 and now 9;",
        ),
    ],
)
def test_results_of_another_bench_are_refused_in_one_line(folder, changes, what):
    before = (folder / RESULTS).read_text()
    with pytest.raises(
        CheckpointError, match=f"cannot be gone on with: its {what}|{what}"
    ) as error:
        resumed(replace(BEGUN, **changes), folder)
    assert "\n" not in str(error.value)
    assert (folder / RESULTS).read_text() == before


def test_results_of_another_version_are_refused(folder):
    text = to_json(synthetic_results())
    old = text.replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 1')
    (folder / RESULTS).write_text(old)
    with pytest.raises(CheckpointError, match="schema_version is 1 and this"):
        resumed(BEGUN, folder)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.json cannot be read"):
        read_results(tmp_path / "none.json")


def test_the_report_is_written_without_matplotlib(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert write_report(synthetic_results(), folder) == MISSING
    assert {file.name for file in folder.iterdir()} == {RESULTS, CSV, REPORT}
    assert (folder / REPORT).read_text().startswith("# Bench: vicuna-7b")
