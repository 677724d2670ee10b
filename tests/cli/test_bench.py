"""``redrafter-mlx bench``: what it shows, what it writes, and how it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from redrafter_mlx.bench import measure, store
from redrafter_mlx.bench.plots import Plots, draw_plots
from redrafter_mlx.bench.results import BenchResults
from redrafter_mlx.bench.store import read_results
from redrafter_mlx.cli import bars
from redrafter_mlx.cli import bench as command
from redrafter_mlx.loading.model import LoadedModel
from tests.bench.tiny import loaded, tiny_folder, tiny_model
from tests.cli import endless_model
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
SHORT = ("--suite", "quick", "--limit", "2", "--trials", "2", "--max-tokens", "6")
PLOTS = {
    "speedup.png", "tokens_per_second.png", "milliseconds_per_round.png", "acceptance_by_depth.png",
}  # fmt: skip
FILES = {"results.json", "results.csv", "report.md"}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoadedModel:
    """Have a tiny model with a drafter, an empty folder to work in, and no plots, for speed."""
    model = tiny_model()
    monkeypatch.setattr(store, "draw_plots", lambda *_: Plots((), None))
    monkeypatch.setattr("redrafter_mlx.loading.model.load", lambda *_, **__: model)
    monkeypatch.chdir(tmp_path)
    return model


def keys(results: BenchResults) -> Counter[tuple[int, int, int, str]]:
    """Return how often each cell is there."""
    return Counter(
        (one.number, one.question_id, one.turn, one.configuration) for one in results.trials
    )


def test_it_measures_shows_and_writes(
    run: Run, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(store, "draw_plots", draw_plots)
    result = run("bench", *SHORT, "--out", "out")
    assert result.exit_code == 0, result.stderr
    results = read_results(Path("out"))
    assert [one.name for one in results.configurations] == [
        "plain", "(1,4) adapted + lookup", "(1,4) fixed",
    ]  # fmt: skip
    assert len(results.trials) == 3 * 2 * 2 == len(keys(results))
    assert {file.name for file in Path("out").iterdir()} == FILES | PLOTS
    assert "toy, float32, on " in result.stdout
    assert "; quick: 2 prompts, greedy, up to 6 tokens" in result.stdout
    for name in ("plain", "(1,4) adapted + lookup", "(1,4) fixed"):
        assert result.stdout.count(f"\n{name}") == 2
    assert "Report: out/report.md" in result.stdout
    assert "mlx-lm was not measured: ConfigError: toy lies in no folder." in result.stdout
    assert "12 answers to time, in 3 ways to decode" in result.stderr
    assert "Measuring" not in result.stdout


def test_the_progress_ends_at_the_total_that_it_began_with(
    run: Run, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "SECONDS_BETWEEN_NOTES", 0)
    result = run("bench", *SHORT, "--out", "out")
    counts = re.findall(r"Measuring tokens: (\d+) of (\d+), ", result.stderr)
    assert len({total for _, total in counts}) == 1
    assert counts[-1][0] == counts[-1][1]


def test_mlx_lm_has_its_row(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = loaded(tiny_folder(tmp_path / "model"))
    monkeypatch.setattr("redrafter_mlx.loading.model.load", lambda *_, **__: model)
    result = run("bench", *SHORT, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    results = read_results(tmp_path / "out")
    assert [one.name for one in results.configurations] == [
        "mlx-lm", "plain", "lookup alone, adapted",
    ]  # fmt: skip
    assert {one.first_difference for one in results.trials} == {None}


def test_the_default_folder_is_new_and_dated(run: Run, model: LoadedModel) -> None:
    assert run("bench", *SHORT).exit_code == 0
    (folder,) = Path().glob("bench-20*")
    assert read_results(folder).suite == "quick"


def test_the_questions_of_a_file_are_those_that_are_asked(run: Run, model: LoadedModel) -> None:
    lines = [{"question_id": number, "turns": ["Hi", "And you?"]} for number in (7, 8)]
    Path("q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    both = ("--turns", "2", "--max-tokens", "4")
    suite = ("--suite", "mt-bench", "--questions", "q.jsonl")
    assert run("bench", *suite, *both, "--out", "a").exit_code == 0
    assert run("bench", "--suite", "q.jsonl", *both, "--out", "b").exit_code == 0
    for folder, name in (("a", "mt-bench"), ("b", "q.jsonl")):
        results = read_results(Path(folder))
        assert results.suite == name
        asked = {(one.question_id, one.turn) for one in results.trials}
        assert asked == {(7, 1), (7, 2), (8, 1), (8, 2)}


def test_a_model_that_cannot_converse_has_no_second_turn(
    run: Run, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.tokenizer, "chat_template", None)
    result = run("bench", *SHORT, "--turns", "2", "--out", "out")
    assert result.exit_code == 1
    assert "toy has no chat template, so there is no second turn" in result.stderr
    assert not Path("out").exists()


def test_nothing_is_overwritten(run: Run, model: LoadedModel) -> None:
    assert run("bench", *SHORT, "--out", "out").exit_code == 0
    before = {file: file.read_bytes() for file in Path("out").iterdir()}
    result = run("bench", *SHORT, "--out", "out")
    assert result.exit_code == 1
    assert "out exists and is not an empty folder; choose another, or go on" in result.stderr
    assert {file: file.read_bytes() for file in Path("out").iterdir()} == before


def test_a_grid_stands_beside_the_default(run: Run, model: LoadedModel) -> None:
    grid = ("--beam-width", "1,2", "--beam-length", "2,3")
    assert run("bench", *SHORT, *grid, "--out", "out").exit_code == 0
    results = read_results(Path("out"))
    names = [one.name for one in results.configurations]
    assert names[1:] == [
        "(1,4) adapted + lookup", "(1,4) fixed",
        "(1,2) fixed", "(1,3) fixed", "(2,2) fixed", "(2,3) fixed",
    ]  # fmt: skip
    fixed = [one for one in results.configurations if one.name.endswith("fixed")]
    assert not any(one.uses_lookup or one.is_adaptive for one in fixed)


def test_a_bench_that_was_broken_off_keeps_what_is_done_and_goes_on(
    run: Run, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cell = measure.Bench._run_cell

    def break_off(bench: measure.Bench, cell: measure.Cell) -> None:
        if len(bench.recorder.results.trials) == 5:
            raise KeyboardInterrupt
        run_cell(bench, cell)

    monkeypatch.setattr(measure.Bench, "_run_cell", break_off)
    result = run("bench", *SHORT, "--out", "out")
    assert result.exit_code == 130
    assert "go on with the same options and --out out --resume" in result.stderr
    first = read_results(Path("out"))
    assert len(first.trials) == 5
    assert {file.name for file in Path("out").iterdir()} >= FILES
    assert "(1,4) fixed" in result.stdout

    monkeypatch.setattr(measure.Bench, "_run_cell", run_cell)
    other = run("bench", *SHORT, "--temp", "0.5", "--out", "out", "--resume")
    assert other.exit_code == 1
    assert "cannot be gone on with" in other.stderr
    assert read_results(Path("out")) == first
    result = run("bench", *SHORT, "--out", "out", "--resume")
    assert result.exit_code == 0, result.stderr
    assert "7 answers to time" in result.stderr
    results = read_results(Path("out"))
    assert results.trials[:5] == first.trials
    assert len(keys(results)) == len(results.trials) == 12
    assert [one.configuration for one in results.phases].count("(1,4) fixed") == 1
    again = run("bench", *SHORT, "--out", "out", "--resume")
    assert again.exit_code == 0 and "Every answer is timed already." in again.stderr
    assert read_results(Path("out")).trials == results.trials


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a slow bench in a process of its own, until some answers are timed."""
    process = subprocess.Popen(
        [sys.executable, "-m", endless_model.__name__, "bench", *SHORT, "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SECONDS_A_TOKEN": "0.01"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + SECONDS
    while _num_trials(tmp_path / "out") < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate()


def _num_trials(folder: Path) -> int:
    # Read as it is at any moment: it is whole or not there yet.
    file = folder / "results.json"
    return len(json.loads(file.read_text())["trials"]) if file.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_bench_goes_on_in_another_process(
    run: Run,
    running: subprocess.Popen[str],
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running.send_signal(number)
    _, told = running.communicate(timeout=SECONDS)
    assert running.returncode == (130 if number == signal.SIGINT else -number), told
    assert (tmp_path / "out" / "report.md").exists() is (number == signal.SIGINT)
    first = read_results(tmp_path / "out")
    assert 3 <= len(first.trials) < 12
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("redrafter_mlx.loading.model.load", endless_model.load)
    result = run("bench", *SHORT, "--out", "out", "--resume")
    assert result.exit_code == 0, result.stderr
    results = read_results(tmp_path / "out")
    assert results.trials[: len(first.trials)] == first.trials
    assert len(keys(results)) == len(results.trials) == 12
    assert (tmp_path / "out" / "report.md").exists()


def test_without_matplotlib_a_line_says_so(
    run: Run, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "draw_plots", draw_plots)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("bench", *SHORT, "--out", "out")
    assert result.exit_code == 0, result.stderr
    assert "No plots were drawn, since matplotlib is not installed" in result.stderr
    assert {file.name for file in Path("out").iterdir()} == FILES


def test_a_text_that_differs_is_told(
    run: Run, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = measure.PlainAnswers.answer

    def planted(plain: measure.PlainAnswers, question: Any, turn: int) -> Any:
        found = answer(plain, question, turn)
        tokens = (*found.tokens[:2], (found.tokens[2] + 1) % 95, *found.tokens[3:])
        return type(found)(found.text, tokens, found.prompt_tokens, found.stats, "length")

    monkeypatch.setattr(measure.PlainAnswers, "answer", planted)
    result = run("bench", *SHORT, "--out", "out")
    assert "(1,4) fixed, question 1, turn 1: token 2 differs from plain decoding's" in result.stdout
    assert "0/2" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resume",), "--resume: it needs --out"),
        (("--questions", "q.jsonl"), "--questions: it goes with --suite mt-bench"),
        (("--turns", "3"), "--turns"),
        (("--trials", "0"), "--trials"),
        (("--limit", "0"), "--limit"),
        (("--beam-width", "1,x"), "'1,x' is no list of whole numbers"),
        (("--compare", "a.json"), "--compare"),
        (("--compare", "a", "b", "--predict", "M2"), "--compare: it contradicts --predict"),
    ],
)
def test_wrong_usage_is_told_before_the_model_is_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.delattr("redrafter_mlx.loading.model.load")
    result = run("bench", *options)
    assert result.exit_code == 2
    assert message in result.stderr.replace("Invalid value for ", "")


@pytest.mark.parametrize(
    ("options", "exit_code", "message"),
    [
        (("--suite", "fast"), 1, "There is no suite or file 'fast'"),
        (("--max-tokens", "1"), 2, "--max-tokens is 1;"),
        (("--beam-length", "1"), 2, "--beam-length is 1;"),
        (("--beam-length", "2,65"), 2, "--beam-length is 65;"),
        (("--beam-width", "65"), 2, "--beam-width is 65;"),
        (("--beam-width", "0,1"), 2, "--beam-width is 0;"),
        (("--temp", "-1"), 2, "--temp is -1.0;"),
        (("--top-p", "2"), 2, "--top-p is 2.0;"),
        (("--seed", "-1"), 2, "--seed is -1;"),
        (("--out", ""), 2, "'--out': it is empty"),
        (("--no-drafter", "--beam-width", "2"), 2, "--no-drafter: fixed shapes need a drafter"),
        (("--no-drafter", "--suite", "paper"), 2, "--no-drafter: fixed shapes need a drafter"),
    ],
)
def test_a_wrong_value_is_told_before_the_model_is_loaded(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: tuple[str, ...],
    exit_code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr("redrafter_mlx.loading.model.load")
    result = run("bench", *options)
    assert result.exit_code == exit_code
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_results_are_compared_and_chips_predicted_without_a_model(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr("redrafter_mlx.loading.model.load")
    asked: list[tuple[Any, ...]] = []
    for name, function in (("compare", "show_comparison"), ("predict", "show_prediction")):
        module = ModuleType(name)
        setattr(module, function, lambda *given, **more: asked.append((*given, more)))
        monkeypatch.setitem(sys.modules, f"redrafter_mlx.cli.bench_{name}", module)
    assert run("bench", "--compare", "a.json", "b.json").exit_code == 0
    assert run("bench", "--predict", "M2 Ultra", "--model", "vicuna-7b").exit_code == 0
    drafter, shape = ("--drafter", str(tmp_path)), ("--beam-width", "2", "--beam-length", "4")
    (tmp_path / "config.json").touch()
    assert run("bench", "--predict", "M2 Ultra", *drafter, *shape).exit_code == 0
    assert asked == [
        (Path("a.json"), Path("b.json"), {}),
        ("M2 Ultra", "vicuna-7b", {"drafter": None, "shape": None}),
        ("M2 Ultra", "smollm2-135m", {"drafter": tmp_path, "shape": (2, 4)}),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--compare", "a", "b", "--model", "m"), "--model: it has no effect with --compare"),
        (("--compare", "a", "b", "--out", "o"), "--out: it has no effect with --compare"),
        (("--predict", "M1", "--temp", "1"), "--temp: it has no effect with --predict"),
        (("--predict", "M1", "--suite", "paper"), "--suite: it has no effect with --predict"),
        (("--predict", "M1", "--quantize", "4"), "--quantize: it has no effect with --predict"),
        (("--predict", "M1", "--no-drafter"), "--no-drafter: it has no effect with --predict"),
        (("--predict", "M1", "--beam-width", "2"), "give one --beam-width and one --beam-length"),
        (
            ("--predict", "M1", "--beam-width", "1,2", "--beam-length", "4"),
            "give one --beam-width and one --beam-length",
        ),
        (
            ("--predict", "M1", "--beam-width", "5", "--beam-length", "4"),
            "Apple did not measure width 5 with length 4; choose a width from 1 to 4",
        ),
        (("--predict", "M9"), "There is no chip 'M9'; choose one of: M1, M1 Pro, "),
    ],
)
def test_no_option_is_silently_idle(run: Run, options: tuple[str, ...], message: str) -> None:
    result = run("bench", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "gpt-2"), "The sizes of 'gpt-2' are not known; choose one of: vicuna-7b, "),
        (("--model", "."), ". has no config.json, so it is no model's folder; give one, or one of"),
        (("--drafter", "."), "The drafter . has no config.json; give a folder that"),
    ],
)
def test_a_model_that_cannot_be_predicted_is_told_in_one_line(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("bench", "--predict", "M1", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"redrafter-mlx: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("device", "asked", "taken"),
    [("gpu", "auto", "float16"), ("gpu", "bfloat16", "bfloat16"), ("cpu", "auto", "auto")],
)
def test_apples_protocol_has_apples_precision_where_it_is_not_too_slow(
    monkeypatch: pytest.MonkeyPatch, device: str, asked: str, taken: str
) -> None:
    import mlx.core as mx

    from redrafter_mlx.bench.suites import find_suite

    found = mx.Device(getattr(mx, device))
    monkeypatch.setattr(mx, "default_device", lambda: found)
    assert command._dtype(find_suite("paper"), asked) == taken
    assert command._dtype(find_suite("quick"), asked) == asked


@pytest.mark.parametrize("trials", [1, 2])
def test_a_single_pass_is_said_to_have_no_spread(run: Run, model: LoadedModel, trials: int) -> None:
    options = ("--suite", "quick", "--limit", "2", "--max-tokens", "4", "--trials", str(trials))
    result = run("bench", *options, "--out", "out")
    assert result.exit_code == 0, result.stderr
    words = "ne pass over the questions, so there is no spread, and a difference may be chance"
    for text in (result.stdout, Path("out/report.md").read_text()):
        assert text.count(words) == (trials == 1)
