"""Profiles: kept by what they hold for, and read back as they were."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from redrafter_mlx.config import BeamShape
from redrafter_mlx.decoding.pace import RoundCosts
from redrafter_mlx.decoding.profile import (
    PROFILE_VERSION,
    Profile,
    find_profile,
    profile_key,
    save_profile,
)
from tests.toy import toy_drafter, toy_target

TARGET = toy_target()
KEY = profile_key(TARGET, toy_drafter(TARGET))
PROFILE = Profile(
    key=KEY,
    shape=BeamShape(2, 4, 6),
    costs=RoundCosts((1.0, 1.1, 1.3), 0.04, 0.01, context=200, growth=(1e-4, 2e-4, 2e-4)),
    step_seconds=0.1,
    acceptance_by_depth=(0.5, 0.4),
    acceptance_by_log_prob=((-1e9, 0.1, 7), (-1.0, 0.6, 9)),
)


def test_a_profile_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / "new" / "folder")
    assert find_profile(KEY, tmp_path / "new" / "folder") == PROFILE


def test_a_later_profile_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path)
    later = replace(PROFILE, shape=BeamShape(1, 1))
    save_profile(later, tmp_path)
    assert find_profile(KEY, tmp_path) == later
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("field", ["chip", "model", "precision", "drafter", "mlx_version"])
def test_a_profile_for_anything_else_is_not_taken(tmp_path: Path, field: str) -> None:
    save_profile(PROFILE, tmp_path)
    assert find_profile(replace(KEY, **{field: "other"}), tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_broken_profile_counts_as_none(tmp_path: Path, text: str) -> None:
    save_profile(PROFILE, tmp_path).write_text(text)
    assert find_profile(KEY, tmp_path) is None


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Profile | None:
    """Return what is read of a profile whose file was changed."""
    path = save_profile(PROFILE, folder)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    return find_profile(KEY, folder)


def test_a_profile_of_another_layout_counts_as_none(tmp_path: Path) -> None:
    assert changed(tmp_path, lambda values: None) == PROFILE
    assert changed(tmp_path, lambda values: values.update(version=PROFILE_VERSION - 1)) is None


@pytest.mark.parametrize("field", [entry.name for entry in fields(Profile)])
def test_a_profile_that_lacks_a_part_counts_as_none(tmp_path: Path, field: str) -> None:
    assert changed(tmp_path, lambda values: values.pop(field)) is None


@pytest.mark.parametrize(
    "costs",
    [
        {"verify": []},
        {"verify": [1.0]},
        {"verify": [1.0, float("nan")]},
        {"draft_step": float("inf")},
        {"verify": [0.0, 1.1, 1.3]},
        {"verify": [1.0, 1.1, 0.9]},
        {"draft_step": -0.1},
        {"overhead": -1.0},
        {"overhead": 10**400},
        {"overhead": None},
        {"context": -200},
        {"context": float("inf")},
        {"growth": [1e-4]},
        {"growth": [-1e-3, 0.0, 0.0]},
        {"growth": [2e-4, 1e-4, 2e-4]},
        {"growth": [1e-4, float("nan"), 2e-4]},
    ],
)
def test_a_profile_whose_costs_say_nothing_counts_as_none(
    tmp_path: Path, costs: dict[str, Any]
) -> None:
    assert changed(tmp_path, lambda values: values["costs"].update(costs)) is None


def test_the_key_tells_drafters_and_targets_apart() -> None:
    assert profile_key(TARGET, toy_drafter(TARGET)) == KEY
    assert profile_key(TARGET, toy_drafter(TARGET, seed=9)) != KEY
    assert profile_key(TARGET, toy_drafter(TARGET, num_draft_layers=1)) != KEY
