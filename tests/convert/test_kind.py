"""What a source is, told by its content alone."""

from pathlib import Path

import mlx.core as mx
import pytest

from redrafter_mlx.convert.drafter import ImportOptions, import_drafter
from redrafter_mlx.convert.kind import SourceKind, is_loadable, kind_of
from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.weights import save_tensors, write_json
from tests.convert.drafter_layouts import BASE, LAYOUTS, TENSORRT_BASE
from tests.convert.family_models import CONFIGS
from tests.convert.tiny_drafter import own_folder, random_tensors, target_side, tied_tensors
from tests.convert.tiny_gguf import write_tiny
from tests.convert.tiny_torch import save_torch

CONFIG = CONFIGS["llama3"]


def refusal(source: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        kind_of(source)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_drafter_is_one(tmp_path: Path, layout: str) -> None:
    """The whole model in the same files, and its config.json beside them, change nothing."""
    source = LAYOUTS[layout](tmp_path / "source", random_tensors())
    assert kind_of(source) is SourceKind.DRAFTER
    if source.is_dir() and not (source / "config.json").exists():
        write_json(source / "config.json", CONFIG)
        assert kind_of(source) is SourceKind.DRAFTER


def test_a_drafter_of_this_package_is_one_tied_or_not(tmp_path: Path) -> None:
    assert kind_of(own_folder(tmp_path, random_tensors())) is SourceKind.DRAFTER
    target = target_side()
    source = tmp_path / "tied.safetensors"
    save_tensors(source, tied_tensors(target))
    import_drafter(source, tmp_path / "tied", ImportOptions(draft_length=4, target=target))
    assert kind_of(tmp_path / "tied") is SourceKind.DRAFTER


def test_models_are_targets_whatever_their_files_are_called(tmp_path: Path) -> None:
    gguf = write_tiny(tmp_path / "model.bin")
    assert kind_of(gguf) is SourceKind.TARGET
    folders = [tmp_path / name for name in ("safetensors", "torch", "gguf")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[:2]:
        write_json(folder / "config.json", CONFIG)
    save_tensors(folders[0] / "model.safetensors", BASE)
    save_torch(folders[1] / "pytorch_model.bin", BASE)
    gguf.rename(folders[2] / "x.gguf")
    assert [kind_of(folder) for folder in folders] == [SourceKind.TARGET] * 3
    assert [is_loadable(folder) for folder in folders] == [True, False, False]


def test_an_index_alone_makes_a_folder_one_of_safetensors(tmp_path: Path) -> None:
    """Its files are then found missing by name, not taken from elsewhere."""
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": "m.safetensors"}})
    assert is_loadable(tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_models_weights_without_config_json_are_refused(tmp_path: Path, file: str) -> None:
    if file.endswith("bin"):
        save_torch(tmp_path / file, BASE)
    else:
        save_tensors(tmp_path / file, BASE)
    for source in (tmp_path, tmp_path / file):
        message = refusal(source)
        assert "holds a model's weights and no config.json; give" in message
        assert "the folder of a Hugging Face model" in message


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    assert "is not there; give a drafter's" in refusal(tmp_path / "nowhere")
    assert "holds no model*.safetensors" in refusal(tmp_path)
    save_tensors(tmp_path / "odd.safetensors", {"conv.weight": mx.zeros((3,))})
    assert "neither a drafter nor a model, 'conv.weight'" in refusal(tmp_path / "odd.safetensors")
    (tmp_path / "text.bin").write_text("hello")
    for name in ("text.bin", "text.gguf", "text"):
        (tmp_path / name).write_text("hello")
        assert "is neither safetensors, nor a PyTorch file of 1.6 or later, nor GGUF; check" in (
            refusal(tmp_path / name)
        )
    folder = tmp_path / "ranks"
    folder.mkdir()
    save_tensors(folder / "rank0.safetensors", TENSORRT_BASE)
    assert "no config.json" in refusal(folder)
