"""A prediction, as a person sees it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from redrafter_mlx.bench.predict import ASSUMPTIONS
from redrafter_mlx.cli.bench_predict import show_prediction
from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.errors import CheckpointError, ConfigError, ShapeError

TINY_LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
}
TINY_DRAFTER = DrafterConfig(hidden_size=2048, vocab_size=32000, exit_dim=2048, num_draft_layers=2)


def folder_with(folder: Path, config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def shown(capsys: pytest.CaptureFixture[str], *args: str, **options: object) -> list[str]:
    show_prediction(*args, **options)  # type: ignore[arg-type]
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_figures_errors_and_assumptions_are_all_shown(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(capsys, "M2 Ultra", "vicuna-7b")
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)
    assert lines[:2] == ["Predicted, not measured.", ""]
    text = " ".join(" ".join(lines).split())
    assert "each of Apple's 15 warm cells" in text
    assert all(line in text for line in ASSUMPTIONS)
    half, four = (line for line in lines if line.startswith("3, 4 "))
    assert half.split()[2:4] == four.split()[2:4] == ["10", "2.40"]
    # Apple measured 1.52 for its own round in float16.
    assert float(half.split()[-1]) == pytest.approx(1.52, abs=0.02)
    assert sum(line.startswith("Predicted in ") for line in lines) == 2


@pytest.mark.parametrize(
    ("chip", "model"),
    [
        ("apple m2ultra", "Vicuna 7B"),
        (" M2-ULTRA ", "VICUNA_7b"),
        ("m2 ultra", "lmsys/vicuna-7b-v1.3"),
    ],
)
def test_case_and_spacing_are_forgiven(
    chip: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, chip, model) == shown(capsys, "M2 Ultra", "vicuna-7b")


@pytest.mark.parametrize(
    ("chip", "model", "message"),
    [
        ("M9", "vicuna-7b", "There is no chip 'M9'; choose one of: M1, M1 Pro, .*, M5"),
        ("M1", "gpt-2", "The sizes of 'gpt-2' are not known; choose one of: vicuna-7b, .*folder"),
    ],
)
def test_unknown_names_are_answered_by_the_known_ones(chip: str, model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        show_prediction(chip, model)
    assert "\n" not in str(caught.value)


def test_a_models_folder_is_predicted_by_its_config(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = folder_with(tmp_path / "tiny-llama", TINY_LLAMA)
    lines = shown(capsys, "M4 Pro", str(model), bits=(4,), shape=(2, 3))
    told = " ".join(lines[1:5])
    assert "what Apple measured for Vicuna 7B" in told
    assert "What tiny-llama keeps of its guesses is not known" in told
    assert any("tiny-llama in 4 bits on M4 Pro" in line for line in lines)
    assert any(line.endswith("width 2, length 3") for line in lines)
    assert sum(line.startswith("3, 4 ") for line in lines) == 1
    drafter = folder_with(
        tmp_path / "small", replace(TINY_DRAFTER, draft_vocab_size=4000).to_dict()
    )
    smaller = shown(capsys, "M4 Pro", str(model), bits=(4,), shape=(2, 3), drafter=drafter)
    (slow,), (fast,) = (
        [float(line.split()[4]) for line in text if line.startswith("1, 5 ")]
        for text in (lines, smaller)
    )
    assert fast < slow


def test_a_folder_that_does_not_do_is_refused_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match=r"empty has no config\.json, .* one of: vicuna-7b, "):
        show_prediction("M1", str(empty))
    experts = folder_with(tmp_path / "experts", TINY_LLAMA | {"num_local_experts": 8})
    with pytest.raises(CheckpointError, match="expert"):
        show_prediction("M1", str(experts))
    drafter = folder_with(tmp_path / "drafter", TINY_DRAFTER.to_dict())
    with pytest.raises(ShapeError, match="has hidden_size 2048, but vicuna-7b has 4096"):
        show_prediction("M1", "vicuna-7b", drafter=drafter)
