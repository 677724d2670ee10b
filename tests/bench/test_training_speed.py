"""Training speed beside PyTorch's: both sides get the same problem and must agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from redrafter_mlx.bench import training_speed
from redrafter_mlx.bench.training_speed import (
    Size,
    Trial,
    main,
    make_problem,
    report_lines,
    require_agreement,
    run_ours,
    run_trial,
    write_problem,
)
from redrafter_mlx.errors import ConfigError

SMALL = Size(hidden_size=16, vocab_size=40, batch_size=256, steps=2)
TRIAL = Trial([3.0, 2.5, 2.25], [9.0, 0.5, 0.25], 10**9)


def test_every_batch_is_full(tmp_path: Path) -> None:
    write_problem(make_problem(SMALL), SMALL, tmp_path / "problem.npz")
    with np.load(tmp_path / "problem.npz") as problem:
        assert problem["hidden"].shape == (2, 8, 36, 16)
        positions = np.minimum(problem["num_rows"] - 1, 32)
        assert positions.sum(axis=1).tolist() == [SMALL.batch_size] * 2
        assert len(problem["rates"]) == 2


def test_our_side_trains_the_same_each_time() -> None:
    first, second = run_ours(SMALL), run_ours(SMALL)
    assert first.losses == second.losses
    assert len(first.losses) == len(first.seconds) == 2
    assert first.peak_bytes > 1e6


def test_pytorch_takes_the_same_steps(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_problem(make_problem(SMALL), SMALL, tmp_path / "problem.npz")
    arguments = ["redrafter_mlx.bench.torch_training", str(tmp_path / "problem.npz"), "1"]
    require_agreement(run_ours(SMALL), run_trial(arguments, 1, keeps_blas=False))


def test_sides_that_differ_are_not_compared() -> None:
    require_agreement(TRIAL, replace(TRIAL, losses=[3.0, 2.5, 2.25009]))
    for wrong in (2.2502, float("nan")):
        with pytest.raises(ConfigError, match=r"step 3 is 2\.250000 here and"):
            require_agreement(TRIAL, replace(TRIAL, losses=[3.0, 2.5, wrong]))


def test_report_gives_medians_and_their_ratio() -> None:
    slower = replace(TRIAL, seconds=[9.0, 1.0, 1.0])
    lines = report_lines({"MLX": [TRIAL, slower, slower], "PyTorch": [TRIAL] * 3}, Size())
    assert lines[1].split() == ["MLX", "1024.0", "1.00", "2.250000"]
    assert lines[2].split() == ["PyTorch", "2730.7", "1.00", "2.250000"]
    assert lines[3] == "MLX over PyTorch: 0.38"


def test_missing_pytorch_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training_speed.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["training_speed"])
    assert main() == 1
    assert capsys.readouterr().err == (
        "PyTorch is missing: pip install 'redrafter-mlx[torch]' brings it.\n"
    )


def test_side_that_fails_is_named() -> None:
    with pytest.raises(ConfigError, match=r"torch_training absent\.npz 1 failed"):
        run_trial(["redrafter_mlx.bench.torch_training", "absent.npz", "1"], 1, keeps_blas=False)
