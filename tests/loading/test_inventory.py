"""What is cached, and what a removal leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.folders import new_folder
from redrafter_mlx.loading.converted import Origin
from redrafter_mlx.loading.download import fetch
from redrafter_mlx.loading.inventory import CachedModel, find_cached, list_models, remove
from redrafter_mlx.loading.known import KNOWN_NAMES
from redrafter_mlx.weights import write_json
from tests.conversions import write_conversion
from tests.hub_server import HubServer, serve_hub, use_hub

pytestmark = pytest.mark.usefixtures("cache")

VICUNA = "lmsys/vicuna-7b-v1.3"
FILES = {"config.json": b"{}", "model.safetensors": bytes(5000)}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve_hub() as server:
        server.add("org/name", FILES, v2="c" * 40)
        server.add(VICUNA, FILES)
        use_hub(monkeypatch, server.url, tmp_path / "hub")
        yield server


def by_name() -> dict[str, CachedModel]:
    return {entry.name: entry for entry in list_models()}


def test_with_empty_caches_the_known_names_are_listed() -> None:
    models = list_models()
    assert tuple(entry.name for entry in models) == KNOWN_NAMES
    assert all(entry.num_bytes == 0 for entry in models)
    assert [entry.name for entry in models if entry.drafter] == ["smollm2-135m"]


def test_downloads_and_conversions_are_listed_with_their_sizes(cache: Path) -> None:
    fetch(VICUNA)
    fetch("org/name")
    write_conversion(Origin("vicuna-7b"))
    write_conversion(Origin("vicuna-7b", None, Quantization(4)))
    write_conversion(Origin("/a/folder"))
    write_conversion(Origin("org/other", "v2"))
    (cache / "models" / "vicuna-7b-v1.partial-0123abcd").mkdir()
    models = by_name()
    assert list(models) == [*KNOWN_NAMES, "/a/folder", "org/other", "org/name"]
    vicuna = models["vicuna-7b"]
    assert vicuna.downloaded_bytes == 5002
    assert [entry.origin.quantization for entry in vicuna.conversions] == [Quantization(4), None]
    assert vicuna.num_bytes > 5002 + 2 * 3000
    assert models["org/name"].downloaded_bytes == models["org/name"].num_bytes == 5002
    assert models["org/other"].conversions[0].origin.revision == "v2"


def test_a_conversion_that_does_not_tell_is_known_by_its_folder() -> None:
    for name in ("smollm2-135m", "org/name"):
        (write_conversion(Origin(name)) / "origin.json").unlink()
    models = by_name()
    assert len(models["smollm2-135m"].conversions) == len(models["org/name"].conversions) == 1


@pytest.mark.parametrize("name", ["vicuna-7b", VICUNA])
def test_a_removal_takes_every_copy_and_nothing_else(name: str, tmp_path: Path) -> None:
    fetch(VICUNA)
    other = fetch("org/name")
    copies = [write_conversion(Origin("vicuna-7b", None, q)) for q in (None, Quantization(4))]
    kept = write_conversion(Origin("vicuna-13b"))
    found = find_cached(name)
    assert found.name == "vicuna-7b"
    assert {entry.folder for entry in found.conversions} == set(copies)
    remove(found)
    assert not any(copy.exists() for copy in copies)
    assert not list((tmp_path / "hub").glob("models--lmsys*"))
    assert kept.is_dir() and (other / "model.safetensors").is_file()
    assert [path.parent.name for path in (tmp_path / "cache").rglob("main.json")] == ["name"]
    with pytest.raises(CheckpointError, match=f"The cache holds nothing of {name}; redrafter-mlx"):
        find_cached(name)


def test_after_a_removal_it_is_downloaded_again(hub: HubServer) -> None:
    fetch("org/name")
    fetch("org/name", "v2")
    remove(find_cached("org/name"))
    hub.requests.clear()
    assert (fetch("org/name") / "model.safetensors").is_file()
    assert hub.files_asked == FILES.keys()


def test_one_copy_goes_by_its_folder_and_a_path_by_its_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    first = write_conversion(Origin(str(source)))
    second = write_conversion(Origin("vicuna-7b", None, Quantization(4)))
    third = write_conversion(Origin("vicuna-7b"))
    remove(find_cached(second.name))
    assert (first.is_dir(), second.is_dir(), third.is_dir()) == (True, False, True)
    remove(find_cached(str(source)))
    assert (first.is_dir(), third.is_dir(), source.is_dir()) == (False, True, True)


def test_a_users_drafter_stays(cache: Path) -> None:
    drafter = cache / "drafters" / "vicuna-7b"
    drafter.mkdir(parents=True)
    write_json(drafter / "config.json", {})
    write_conversion(Origin("vicuna-7b"))
    found = find_cached("vicuna-7b")
    assert found.own_drafter == found.drafter == drafter
    remove(found)
    assert (drafter / "config.json").is_file()
    with pytest.raises(CheckpointError, match=f"vicuna-7b but your drafter {drafter}, which stays"):
        find_cached("vicuna-7b")


@pytest.mark.parametrize("is_download", [True, False])
def test_a_drafter_inside_a_model_stops_its_removal(is_download: bool) -> None:
    """The user may have put it there, where the program looks for one."""
    folder = fetch("org/name") if is_download else write_conversion(Origin("org/name"))
    (folder / "drafter").mkdir()
    write_json(folder / "drafter" / "config.json", {})
    with pytest.raises(CheckpointError, match="is a drafter that may be yours; move it away first"):
        remove(find_cached("org/name"))
    assert (folder / "model.safetensors").is_file()
    shutil.rmtree(folder / "drafter")
    remove(find_cached("org/name"))
    assert not folder.exists()


@pytest.mark.parametrize("name", ["../..", "/", "", "models", "org", "smollm2-135m", "org/none"])
def test_what_is_not_cached_cannot_be_removed(cache: Path, name: str) -> None:
    kept = write_conversion(Origin("vicuna-7b"))
    with pytest.raises(CheckpointError, match="The cache holds nothing of"):
        find_cached(name)
    assert kept.is_dir()


def test_a_repository_of_another_program_without_an_organisation_is_left_alone(
    tmp_path: Path,
) -> None:
    """The Hub's oldest names have no slash; this program downloads none of them."""
    snapshot = tmp_path / "hub" / "models--gpt2" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(bytes(999))
    with pytest.raises(CheckpointError, match="The cache holds nothing of gpt2"):
        find_cached("gpt2")
    assert "gpt2" not in by_name()


def test_an_interrupted_removal_leaves_nothing_that_is_taken_for_a_model(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a model would be loaded; what is left goes as an interrupted conversion's does."""

    def interrupt(folder: Path) -> None:
        (Path(folder) / "model.safetensors").unlink()
        raise KeyboardInterrupt

    folder = write_conversion(Origin("vicuna-7b"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", interrupt)
        remove(find_cached("vicuna-7b"))
    assert not folder.exists()
    (left,) = (cache / "models").iterdir()
    os.utime(left, (0, 0))
    with new_folder(folder):
        assert not left.exists()


def test_a_folder_of_the_users_own_among_the_conversions_is_left_alone(cache: Path) -> None:
    mine, linked = cache / "models" / "mine", cache / "models" / "linked-v1"
    mine.mkdir(parents=True)
    write_json(mine / "config.json", {})
    linked.symlink_to(mine)
    for name in ("mine", "linked-v1", "linked"):
        with pytest.raises(CheckpointError, match="holds nothing of"):
            find_cached(name)
