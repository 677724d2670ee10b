"""The folder of a bench: results saved as they come, read back to go on, and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from redrafter_mlx.bench.plots import draw_plots
from redrafter_mlx.bench.report import report, to_csv
from redrafter_mlx.bench.results import BenchResults, PhaseTimes, Trial, from_json, to_json
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.file_errors import refusing, unwritable
from redrafter_mlx.training.files import write_whole
from redrafter_mlx.weights import read_json

RESULTS, CSV, REPORT = "results.json", "results.csv", "report.md"


class Recorder:
    """Results that are on the disk as soon as they are known.

    Attributes:
        results: All so far.
    """

    def __init__(self, results: BenchResults, folder: Path) -> None:
        """Begin with what there is, and make the folder."""
        self.results = results
        self._folder = folder
        with refusing(unwritable, folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._save()

    def add_trial(self, trial: Trial) -> None:
        """Take in a timed answer."""
        self.results = replace(self.results, trials=(*self.results.trials, trial))
        self._save()

    def add_phases(self, phases: PhaseTimes) -> None:
        """Take in where a round's time goes."""
        self.results = replace(self.results, phases=(*self.results.phases, phases))
        self._save()

    def add_note(self, note: str) -> None:
        """Take in what a reader must know, once."""
        if note not in self.results.notes:
            self.results = replace(self.results, notes=(*self.results.notes, note))
            self._save()

    def _save(self) -> None:
        _write(self._folder / RESULTS, to_json(self.results))


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))


def read_results(path: Path) -> BenchResults:
    """Return the results in a file, or in a folder that a bench wrote.

    Raises:
        CheckpointError: There are none, or they are of another version.
    """
    file = path / RESULTS if path.is_dir() else path
    values = read_json(file, f"give an unchanged {RESULTS}, or run the bench again")
    if "schema_version" not in values:
        raise CheckpointError(
            f"{file} holds no results of a bench: it has no schema_version; give a {RESULTS}."
        )
    try:
        return from_json(json.dumps(values))
    except CheckpointError as error:
        raise CheckpointError(
            f"{file} holds no results that this program can use: {error}; give an unchanged "
            f"{RESULTS}, or run the bench again."
        ) from error


def resumed(begun: BenchResults, folder: Path) -> BenchResults:
    """Return what a folder holds of the same bench; what has just begun where it is empty.

    Raises:
        CheckpointError: The folder holds something else, or results of another bench.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return begun
    if not (folder / RESULTS).is_file():
        raise CheckpointError(f"{folder} holds no results to go on with; choose another --out.")
    found = read_results(folder)
    ours, theirs = _identity(begun), _identity(found)
    for what in dict.fromkeys((*theirs, *ours)):
        if ours.get(what) != theirs.get(what):
            raise CheckpointError(
                f"{folder} cannot be gone on with: its {what} is {theirs.get(what, 'missing')} and "
                f"now {ours.get(what, 'missing')}; run it as before, or choose another --out."
            )
    return replace(found, notes=tuple(dict.fromkeys((*found.notes, *begun.notes))))


def _identity(results: BenchResults) -> Mapping[str, str]:
    """Return, by name, all that must be the same for trials to stand in one table."""
    machine = results.machine
    values = {
        "suite": results.suite,
        "set of questions": results.questions_digest,
        "chip": machine.chip,
        "device": machine.device,
        "commit": machine.git_commit,
        **{f"version of {name}": version for name, version in machine.packages.items()},
        **{f"target's {name}": value for name, value in asdict(results.target).items()},
        "drafter": None,
        "set of sides (tune changes it, too)": ", ".join(
            one.name for one in results.configurations
        ),
        **{
            f"{key} of {one.name}": value
            for one in results.configurations
            for key, value in asdict(one).items()
        },
    }
    if results.drafter:
        values["drafter"] = f"{results.drafter.name} {results.drafter.fingerprint[:12]}"
        values["drafter's dtype"] = results.drafter.dtype
    return {name: str(value) for name, value in values.items()}


def write_report(results: BenchResults, folder: Path) -> str | None:
    """Write the tables and draw the plots; return a line where they could not be drawn."""
    _write(folder / CSV, to_csv(results))
    _write(folder / REPORT, report(results))
    return draw_plots(results, folder).note
