"""Two results side by side, as a person sees them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from redrafter_mlx.bench.results import SCHEMA_VERSION, BenchResults, to_json
from redrafter_mlx.cli.bench_compare import show_comparison
from redrafter_mlx.errors import CheckpointError
from tests.bench.synthetic_results import DRAFTED, LONGER, synthetic_results


def written(path: Path, results: BenchResults) -> Path:
    path.write_text(to_json(results), encoding="utf-8")
    return path


def timed(results: BenchResults, factors: dict[str, float]) -> BenchResults:
    trials = tuple(
        replace(one, decode_seconds=one.decode_seconds * factors.get(one.configuration, 1.0))
        for one in results.trials
    )
    return replace(results, trials=trials)


def shown(
    capsys: pytest.CaptureFixture[str], folder: Path, first: BenchResults, second: BenchResults
) -> list[str]:
    show_comparison(written(folder / "a.json", first), written(folder / "b.json", second))
    return capsys.readouterr().out.splitlines()


def row(lines: list[str], name: str) -> list[str]:
    """Return the cells of the only row that begins with a name, or with its first words."""
    (found,) = (line for line in lines if line.startswith(f"{name} "))
    return found.removeprefix(name).split()


DRAFTED_START, LONGER_START = "(3,4) adapted +", "(3,5) fixed"


@pytest.mark.parametrize("columns", [80, 120])
def test_speeds_ratio_and_verdict_stand_in_one_row(
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The passes of one run are 25 % apart: 10 % slower is within, 50 % beyond the spread."""
    monkeypatch.setenv("COLUMNS", str(columns))
    results = synthetic_results()
    factors = {"plain": 1.1, DRAFTED.name: 1.5, LONGER.name: 0.5}
    lines = shown(capsys, tmp_path, results, timed(results, factors))
    assert row(lines, "plain")[:2] == ["40.0", "(35.6-44.4)"]
    assert row(lines, "plain")[4:] == ["0.909", "1.00", "1.00", "no"]
    assert row(lines, DRAFTED_START)[-6:] == [
        "53.3",
        "(47.4-59.3)",
        "0.667",
        "2.50",
        "2.50",
        "slower",
    ]
    assert row(lines, LONGER_START)[2:] == ["128", "(114-142)", "2.000", "2.50", "2.50", "faster"]
    assert max(map(len, lines[2:])) <= columns
    assert lines[0].endswith("a.json: vicuna-7b, Apple M2 Ultra, mt-bench, 2026-01-31T12:00")
    assert not any("what else differs" in line for line in lines)


def test_one_pass_has_no_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = synthetic_results()
    once = replace(results, trials=results.trials[:8])
    lines = shown(capsys, tmp_path, results, timed(once, {"plain": 9.0}))
    assert row(lines, "plain")[2:4] == ["4.94", "0.123"]
    assert row(lines, "plain")[-1] == "-"
    assert any("a single pass has no spread" in line for line in lines)


def test_what_differs_beside_the_speed_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A broken off run answered fewer questions; that alone may explain a ratio."""
    results = synthetic_results()
    other = replace(
        results,
        suite="quick",
        trials=tuple(
            one
            for one in results.trials
            if one.question_id == 81 and one.configuration != LONGER.name
        ),
        configurations=tuple(
            replace(one, max_tokens=40) if one.name == "plain" else one
            for one in results.configurations
        ),
    )
    lines = shown(capsys, tmp_path, results, other)
    assert f"Only in A: {LONGER.name}" in lines
    assert row(lines, "suite") == ["mt-bench", "quick"]
    assert row(lines, "answered questions") == ["2", "1"]
    assert row(lines, "plain: max_tokens") == ["21", "40"]


def test_nothing_in_common_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = synthetic_results()
    lines = shown(capsys, tmp_path, results, replace(results, trials=()))
    assert "The two have no configuration in common." in lines
    assert f"Only in A: plain; mlx-lm; {DRAFTED.name}; {LONGER.name}" in lines


def test_an_answer_of_one_token_has_no_ratio(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results = synthetic_results()
    short = replace(
        results.trials[0], emitted_tokens=1, num_rounds=0, verified_rows=0, decode_seconds=0.0
    )
    lines = shown(capsys, tmp_path, replace(results, trials=(short,)), results)
    assert row(lines, "plain")[:4] == ["0.00", "40.0", "(35.6-44.4)", "-"]


def test_a_folder_stands_for_the_results_in_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = written(tmp_path / "results.json", synthetic_results())
    show_comparison(tmp_path, file)
    assert row(capsys.readouterr().out.splitlines(), "plain")[4] == "1.000"


def another_version() -> str:
    return json.dumps(json.loads(to_json(synthetic_results())) | {"schema_version": 99})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"b\.json cannot be read \(No such file or directory\); check the path"),
        ("", r"b\.json is not valid JSON .*; give an unchanged results.json, or run the bench"),
        ("[]", r"b\.json is not a JSON object"),
        ('{"a": 1}', r"b\.json holds no results of a bench: it has no schema_version"),
        (
            f'{{"schema_version": {SCHEMA_VERSION}}}',
            r"b\.json holds no results that .*: it has no 'configurations'; give an unchanged",
        ),
        (
            another_version(),
            r"b\.json holds .* its schema_version is 99 and this program's 2; give",
        ),
    ],
)
def test_a_file_that_is_no_results_is_refused_in_one_line(
    text: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "b.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    good = written(tmp_path / "a.json", synthetic_results())
    for pair in ((good, file), (file, good)):
        with pytest.raises(CheckpointError, match=message) as caught:
            show_comparison(*pair)
        assert "\n" not in str(caught.value)
        assert "get the file again" not in str(caught.value)


def test_no_name_reaches_the_terminal_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    evil = "w\x1b[31m\n[bold]x"
    results = replace(
        synthetic_results(),
        configurations=(replace(DRAFTED, name=evil),),
        trials=tuple(
            replace(one, configuration=evil)
            for one in synthetic_results().trials
            if one.configuration == DRAFTED.name
        ),
        phases=(),
    )
    lines = shown(capsys, tmp_path, results, results)
    assert row(lines, "w[31m [bold]x")[4] == "1.000"
