"""Which files of a repository are asked for."""

from __future__ import annotations

import pytest

from redrafter_mlx.errors import CheckpointError
from redrafter_mlx.loading.hub_files import needed_files

SETTINGS = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json",
]  # fmt: skip
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
TORCH = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
TORCH_INDEX = "pytorch_model.bin.index.json"
ODD = ["model-a.safetensors", "model_b.safetensors"]
INDEXED = {INDEX: SHARDS, TORCH_INDEX: TORCH}
DRAFTER = ["drafter/config.json", "drafter/model.safetensors"]
NEVER = [
    "README.md", "LICENSE.txt", "modeling_llama.py", "setup.sh", "trainer_state.json", "x.pkl",
    "consolidated.00.pth", "consolidated.safetensors", "original/model.safetensors",
    "original/params.json", "onnx/model.onnx", "training_args.bin", "optimizer.bin", "tf_model.h5",
    "drafter/modeling.py", "other/config.json", ".gitattributes",
]  # fmt: skip


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ([*SHARDS, INDEX, *TORCH, TORCH_INDEX, "x.gguf"], [*SHARDS, INDEX]),
        ([*SHARDS, INDEX, "model.safetensors"], [*SHARDS, INDEX]),
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (["model.safetensors", *DRAFTER], ["model.safetensors", *DRAFTER]),
        ([*TORCH, TORCH_INDEX, "pytorch_model.bin"], [*TORCH, TORCH_INDEX]),
        (["pytorch_model.bin", "x.gguf"], ["pytorch_model.bin"]),
        (["rank0.safetensors", "rank1.safetensors"], ["rank0.safetensors", "rank1.safetensors"]),
        (["model.pt"], ["model.pt"]),
        (["x.Q4_0.gguf"], ["x.Q4_0.gguf"]),
    ],
)
def test_weights_come_in_one_format(present: list[str], wanted: list[str]) -> None:
    names = [*SETTINGS, *present, *NEVER]
    assert needed_files(names, "org/name", INDEXED.__getitem__) == sorted([*SETTINGS, *wanted])


@pytest.mark.parametrize(
    ("present", "complaint"),
    [
        ([], "org/name holds no weights that can be read (model*.safetensors, "),
        (["x.Q4_0.gguf", "x.Q8_0.gguf"], "holds 2 GGUF files (x.Q4_0.gguf, x.Q8_0.gguf)"),
    ],
)
def test_what_cannot_be_chosen_is_refused(present: list[str], complaint: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        needed_files([*SETTINGS, *present, *NEVER], "org/name", INDEXED.__getitem__)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_index_names_its_files_as_it_likes() -> None:
    """Whatever their names are, and a file that it does not name is not taken."""
    present = ["config.json", INDEX, *ODD, *SHARDS]
    needed = needed_files(present, "org/name", lambda index: ODD)
    assert needed == sorted(["config.json", INDEX, *ODD])
