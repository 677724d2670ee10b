"""``redrafter-mlx tune``: what it shows and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrafter_mlx.config import PLAIN_BEAM_SHAPE, BeamShape
from redrafter_mlx.decoding import tuning
from redrafter_mlx.decoding.pace import RoundCosts
from redrafter_mlx.decoding.profile import Profile, find_profile, profile_key
from redrafter_mlx.decoding.tuning import Candidate, Tuned
from redrafter_mlx.loading.known import profile_folder
from redrafter_mlx.loading.model import LoadedModel
from tests.cli.conftest import Run
from tests.toy import toy_drafter, toy_model, toy_target

SHAPES = [BeamShape(width, length, 5) for width in (1, 2, 3) for length in (2, 3, 4)]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoadedModel:
    """Have a tiny model, and have its machine measured at once."""
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path))
    target = toy_target()
    model = toy_model(target, toy_drafter(target))
    assert model.drafter is not None
    key = profile_key(target, model.drafter)
    candidates = [Candidate(shape, 2.0, 30.0 - place) for place, shape in enumerate(SHAPES)]
    plain = Candidate(PLAIN_BEAM_SHAPE, 1.0, 5.0)
    profile = Profile(key, SHAPES[0], RoundCosts(), 0.2, (), ())
    tuned = Tuned((*candidates, plain), profile)
    monkeypatch.setattr("redrafter_mlx.loading.model.load", lambda *_, **__: model)
    monkeypatch.setattr(tuning, "step_seconds", lambda _: 0.1)
    monkeypatch.setattr(tuning, "tune", lambda model, seconds, show: tuned)
    return model


def test_it_tells_the_time_beforehand_shows_plain_decoding_too_and_keeps_the_best(
    run: Run, model: LoadedModel
) -> None:
    result = run("tune")
    assert result.exit_code == 0
    assert "Measuring takes up to 30 s" in result.stderr
    assert "width 1, length 2, 5 rows" in result.stderr
    assert "plain" in result.stderr
    assert "Best here: beam width 1, beam length 2, 5 rows." in result.stdout
    assert model.drafter is not None
    profile = find_profile(profile_key(model.target, model.drafter), profile_folder())
    assert profile is not None and profile.shape == SHAPES[0]


def test_a_dry_run_keeps_nothing(run: Run, model: LoadedModel) -> None:
    assert run("tune", "--dry-run").exit_code == 0
    assert not profile_folder().exists()


def test_a_cache_that_cannot_be_written_is_told_before_anything_is_measured(
    run: Run, model: LoadedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(tuning, "step_seconds", lambda _: pytest.fail("measured in vain"))
    result = run("tune")
    assert result.exit_code == 1
    assert "is a file; set REDRAFTER_CACHE" in result.stderr


def test_a_model_without_a_drafter_has_nothing_to_tune(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = toy_model(toy_target())
    monkeypatch.setattr("redrafter_mlx.loading.model.load", lambda *_, **__: plain)
    result = run("tune")
    assert result.exit_code == 1
    assert "has no drafter" in result.stderr
