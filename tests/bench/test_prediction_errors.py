"""docs/bench/prediction.md says what the predictor says."""

import re
from pathlib import Path

import pytest

from redrafter_mlx.bench import prediction_errors
from redrafter_mlx.bench.predict import ASSUMPTIONS
from redrafter_mlx.bench.prediction_errors import best_table, error_table, step_table
from redrafter_mlx.bench.prediction_report import LEGEND

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench" / "prediction.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_table_and_no_other(page, capsys):
    prediction_errors.main()
    printed = capsys.readouterr().out
    assert all(table in page for table in (error_table(), step_table(), best_table()))
    lines = [line for line in printed.splitlines() if line.startswith(("|", "#"))]
    shown = [line for line in page.splitlines() if line.startswith(("|", "### "))]
    assert shown == lines
    assert len(lines) > 100


def test_the_page_has_the_assumptions_and_calls_its_figures_predictions(page):
    assert all(f"- {line}\n" in page for line in ASSUMPTIONS)
    assert LEGEND in page
    titles = re.findall("^### (.*)$", page, flags=re.MULTILINE)
    assert len(titles) == 8
    assert all(title.startswith("Predicted") for title in titles)
    for command in ('bench --predict "M2 Ultra"', "-m redrafter_mlx.bench.prediction_errors"):
        assert command in page


def test_the_errors_are_those_of_every_measured_chip():
    rows = [line.split(" | ") for line in error_table().splitlines()[2:]]
    assert [row[0] for row in rows] == ["| M1 Max", "| M2", "| M2 Ultra"]
    assert rows[0][1:] == ["15", "0.5 %", "11.2 %", "19.5 %", "24.0 % |"]


def test_the_step_table_has_the_cells_of_16_rows_and_more():
    rows = [line.split(" | ") for line in step_table().splitlines()[2:]]
    assert [row[2] for row in rows] == ["16", "20"] * 3
    assert rows[4][1:] == ["4, 4", "16", "80.2", "90.4", "+13 % |"]
