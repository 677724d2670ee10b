"""One's own figures beside Apple's, as a person sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redrafter_mlx.cli.bench_beside import show_beside
from redrafter_mlx.cli.bench_tables import show_results
from tests.bench.synthetic_results import synthetic_results


@pytest.mark.parametrize("columns", [80, 120])
def test_an_m2_ultra_stands_beside_apples(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    show_beside(synthetic_results())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    (drafted,) = (line for line in lines if line.startswith("(3,4) "))
    assert " ".join(drafted.split()[-9:]) == "80.0 60.4 60.4 2.00 1.52 1.52 2.50 2.41 2.44"
    (plain,) = (line for line in lines if line.startswith("plain "))
    assert " ".join(plain.split()) == "plain 40.0 39.6 - 1.00 1.00 - 1.00 1.00 -"
    heads = [line.split() for line in lines if line.startswith("decoding ")]
    assert heads == [["decoding", *["here", "Apple", "paper"] * 3]]
    assert any(line.startswith("Paper: arXiv:2403.09919") for line in lines)


def test_a_machine_that_nobody_published_shows_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = synthetic_results()
    show_beside(replace(results, machine=replace(results.machine, chip="AMD EPYC")))
    assert capsys.readouterr().out == ""


def test_they_stand_below_the_tables_of_a_bench(capsys: pytest.CaptureFixture[str]) -> None:
    show_results(synthetic_results())
    tables, _, beside = capsys.readouterr().out.partition("paper\n")
    assert "tokens/s" in tables
    assert beside.startswith("plain ")
