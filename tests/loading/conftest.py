"""Fixtures that the tests of loading share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from redrafter_mlx.folders import new_folder
from redrafter_mlx.loading import hub
from redrafter_mlx.loading.hub import resolve_model


@pytest.fixture
def interrupt_conversion(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | Path], None]:
    """Return a function that begins to convert a model and is interrupted in the midst."""

    def convert(_: Path, out: Path, *__: object) -> None:
        with new_folder(out):
            raise KeyboardInterrupt

    def begin(model: str | Path) -> None:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(hub, "convert_target", convert)
            resolve_model(model)

    return begin
