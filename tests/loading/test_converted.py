"""Copies that are made once: of PyTorch folders, of GGUF files, and with fewer bits."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from redrafter_mlx.config import Quantization
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.folders import require_free
from redrafter_mlx.loading import hub
from redrafter_mlx.loading.converted import (
    Origin,
    conversion_folder,
    convert_once,
    is_conversion,
    read_origin,
)
from redrafter_mlx.loading.hub import find_drafter, resolve_model
from redrafter_mlx.loading.target import load_target
from redrafter_mlx.loading.watch import Watch
from redrafter_mlx.weights import read_json, save_tensors, write_json
from tests.convert.tiny_gguf import write_tiny
from tests.hub_server import serve_hub, use_hub
from tests.tiny_vicuna import CONFIG, tiny_target, write_tiny_vicuna

pytestmark = pytest.mark.usefixtures("cache")

FOUR_BITS = Quantization(4, 32)


@pytest.fixture
def torch_folder(tmp_path: Path) -> Path:
    return write_tiny_vicuna(tmp_path / "torch")


@pytest.fixture
def ready_folder(tmp_path: Path) -> Path:
    """Write the same model as MLX loads it."""
    folder = tmp_path / "ready"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    save_tensors(folder / "model.safetensors", dict(tree_flatten(tiny_target().parameters())))
    return folder


def conversions(cache: Path) -> list[str]:
    folder = cache / "models"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_pytorch_folder_is_converted_once_and_says_so(torch_folder: Path, cache: Path) -> None:
    notes: list[str] = []
    steps: list[tuple[int, int]] = []
    watch = Watch(notes.append, lambda *step: steps.append(step))
    folder = resolve_model(torch_folder, watch=watch)
    assert folder.parent == cache / "models" and folder.name.startswith("torch-")
    assert notes[0] == f"Converting {torch_folder} once, into {folder}"
    assert notes[-1].startswith(f"Converted {torch_folder}: 25")
    assert steps[-1][0] == steps[-1][1] > 0
    assert read_origin(folder) == Origin(str(torch_folder), source=str(torch_folder))
    notes.clear()
    assert resolve_model(f"{torch_folder}/", watch=watch) == folder
    assert notes == []


def test_a_changed_source_is_converted_anew(torch_folder: Path, cache: Path) -> None:
    first = resolve_model(torch_folder)
    os.utime(torch_folder / "config.json", ns=(1, 1))
    second = resolve_model(torch_folder)
    (torch_folder / "config.json").write_text((torch_folder / "config.json").read_text() + "\n")
    os.utime(torch_folder / "config.json", ns=(1, 1))
    third = resolve_model(torch_folder)
    moved = resolve_model(torch_folder.rename(torch_folder.with_name("moved")))
    assert len({first, second, third, moved}) == len(conversions(cache)) == 4


def test_a_gguf_file_and_the_folder_of_one_are_converted(tmp_path: Path) -> None:
    file = write_tiny(tmp_path / "tiny.gguf")
    by_file, by_folder = resolve_model(file), resolve_model(tmp_path)
    assert by_file != by_folder
    for folder in (by_file, by_folder):
        assert is_conversion(folder)
        assert read_json(folder / "config.json")["model_type"] == "llama"


def test_a_ready_folder_is_itself_until_fewer_bits_are_wanted(ready_folder: Path) -> None:
    assert resolve_model(ready_folder) == ready_folder
    folder = resolve_model(ready_folder, quantization=FOUR_BITS)
    other = resolve_model(ready_folder, quantization=Quantization(8, 64))
    assert [is_conversion(path) for path in (ready_folder, folder, other)] == [False, True, True]
    for path, packing in ((folder, FOUR_BITS), (other, Quantization(8, 64))):
        layer = load_target(path, "stored").model.layers[0].mlp.down_proj
        assert isinstance(layer, nn.QuantizedLinear) == (96 % packing.group_size == 0)
        head: Any = load_target(path, "stored").lm_head
        assert (head.bits, head.group_size) == (packing.bits, packing.group_size)


def test_a_drafter_beside_the_source_is_found(torch_folder: Path) -> None:
    drafter = torch_folder / "drafter"
    drafter.mkdir()
    write_json(drafter / "config.json", {})
    folder = resolve_model(torch_folder)
    assert find_drafter(str(torch_folder), folder) == drafter


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_quantised_weights_are_not_quantised_again(
    ready_folder: Path, cache: Path, key: str
) -> None:
    write_json(ready_folder / "config.json", CONFIG | {key: {"bits": 4, "group_size": 64}})
    with pytest.raises(ConfigError) as refused:
        resolve_model(ready_folder, quantization=FOUR_BITS)
    assert str(refused.value) == (
        f"The weights of {ready_folder} are quantised already; leave out --quantize, "
        "or take the unquantised model."
    )
    assert conversions(cache) == []


@pytest.mark.parametrize(
    ("packing", "dtype", "remedy"),
    [
        (None, "stored", "add --quantize 4 or choose a smaller model."),
        (None, "float32", "choose a smaller model."),
        (FOUR_BITS, "stored", "choose a smaller model: at 4 bits it is too large, too."),
        (FOUR_BITS, "float32", "choose a smaller model: at 4 bits it is too large, too."),
    ],
)
def test_what_would_not_fit_the_memory_is_not_converted(
    torch_folder: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    packing: Quantization | None,
    dtype: str,
    remedy: str,
) -> None:
    """Refused before the first tensor, and just what fits is converted."""
    target = load_target(resolve_model(torch_folder, quantization=packing), dtype)
    weights: dict[str, mx.array] = dict(tree_flatten(target.parameters()))
    need = sum(value.nbytes for value in weights.values())
    shutil.rmtree(cache)
    notes: list[str] = []
    watch = Watch(notes.append, lambda *_: notes.append("a tensor"))
    for memory, is_refused in ((need - 1, True), (need, False)):
        monkeypatch.setattr(hub, "total_memory_bytes", lambda memory=memory: memory)
        try:
            resolve_model(torch_folder, quantization=packing, dtype=dtype, watch=watch)
            assert not is_refused
        except CheckpointError as error:
            assert is_refused
            assert " of memory; " in str(error) and str(error).endswith(remedy)
            assert notes == [] and conversions(cache) == []


def test_a_repository_that_is_too_large_at_any_bits_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights may have 32 bits each, so that much of it can vanish."""
    monkeypatch.setattr(hub, "total_memory_bytes", lambda: 1000)
    with serve_hub() as server:
        server.add("org/name", {"config.json": b"{}", "model.safetensors": bytes(7000)})
        use_hub(monkeypatch, server.url, tmp_path / "hub")
        with pytest.raises(CheckpointError, match="at 4 bits it is too large, too"):
            resolve_model("org/name", quantization=FOUR_BITS)
        assert server.files_asked == {"config.json"}
        with pytest.raises(CheckpointError, match="model_type"):
            resolve_model("org/name", quantization=Quantization(4, 64))


def test_the_default_model_is_quantised_already(cache: Path) -> None:
    with pytest.raises(ConfigError, match="weights of smollm2-135m are quantised already"):
        resolve_model("smollm2-135m", quantization=FOUR_BITS)
    assert conversions(cache) == []


@pytest.mark.parametrize("name", ["smollm2-135m", "folder"])
def test_only_a_repository_has_revisions(ready_folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="has no revision 'v2'; leave out --revision"):
        resolve_model(ready_folder if name == "folder" else name, revision="v2")


def test_an_interrupted_conversion_leaves_nothing(
    torch_folder: Path, cache: Path, interrupt_conversion: Callable[[str | Path], None]
) -> None:
    interrupt_conversion(torch_folder)
    assert conversions(cache) == []
    assert is_conversion(resolve_model(torch_folder))


def test_a_damaged_source_is_refused_and_leaves_nothing(torch_folder: Path, cache: Path) -> None:
    shard = torch_folder / "pytorch_model-00001-of-00002.bin"
    shard.write_bytes(shard.read_bytes()[:3000])
    notes: list[str] = []
    with pytest.raises(CheckpointError):
        resolve_model(torch_folder, watch=Watch(notes.append))
    assert conversions(cache) == notes == []


def test_a_folder_that_cannot_be_listed_is_refused(
    torch_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", denied)
        with pytest.raises(CheckpointError, match=r"torch cannot be read \(Permission denied\)"):
            conversion_folder(Origin(str(torch_folder)))


@pytest.mark.parametrize("is_file", [True, False])
def test_a_cache_that_cannot_be_written_is_told_first(
    torch_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, is_file: bool
) -> None:
    """With the way out, and before a conversion is announced."""
    if is_file:
        cache.touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    notes: list[str] = []
    with pytest.raises(CheckpointError, match=r"The cache .*; set REDRAFTER_CACHE to a"):
        resolve_model(torch_folder, watch=Watch(notes.append))
    assert notes == []


def test_of_two_that_convert_at_once_one_copy_is_left(
    torch_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each starts before any has ended; the losers of the rename use the winner's folder."""
    barrier, real = threading.Barrier(3, timeout=30), hub.convert_target

    def together(*args: Any) -> Any:
        barrier.wait()
        return real(*args)

    monkeypatch.setattr(hub, "convert_target", together)
    with ThreadPoolExecutor(3) as pool:
        (folder,) = set(pool.map(resolve_model, [torch_folder] * 3))
    assert conversions(cache) == [folder.name]
    assert mx.array_equal(load_target(folder).lm_head.weight, tiny_target().lm_head.weight)


def test_each_variant_has_a_folder_of_its_own(cache: Path) -> None:
    origins = [
        Origin("org/name"),
        Origin("org/name", "v2"),
        Origin("org/name", "refs/pr/1"),
        Origin("org/name", None, Quantization(4, 64)),
        Origin("org/name", None, Quantization(4, 32)),
        Origin("org/name", "v2", Quantization(8, 64)),
        Origin("org/name-q4g64"),
        Origin("org/name", "v2-q8g64"),
        Origin("org/name", "v2+q8g64"),
        Origin("/a/b c"),
        Origin("/b/b c"),
    ]
    folders = [conversion_folder(origin) for origin in origins]
    assert len(set(folders)) == len(folders)
    assert all(folder.parent == cache / "models" for folder in folders)
    assert [folder.name for folder in folders[:6]] == [
        "org--name-v1",
        "org--name@v2-v1",
        "org--name@refs%2Fpr%2F1-v1",
        "org--name+q4g64-v1",
        "org--name+q4g32-v1",
        "org--name@v2+q8g64-v1",
    ]
    assert origins[5].label == "org/name at v2, 8 bits in groups of 64"


def test_what_a_folder_tells_of_its_origin_may_be_damaged(tmp_path: Path) -> None:
    assert read_origin(tmp_path) is None
    for text in ("", "[]", "{}", '{"name": "x", "quantization": 5}', '{"quantization": [9, 1]}'):
        (tmp_path / "origin.json").write_text(text)
        assert read_origin(tmp_path) is None


def test_a_conversion_whose_config_was_lost_is_to_be_removed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"model has no config\.json; remove it and run aga"):
        convert_once(folder, Origin("model"), require_free)
