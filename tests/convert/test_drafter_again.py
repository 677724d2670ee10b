"""Importing a folder that the package itself wrote."""

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.drafter import ImportOptions, import_drafter
from redrafter_mlx.convert.drafter_file import read_drafter
from redrafter_mlx.weights import load_tensors
from tests.convert.tiny_drafter import (
    IDENTITY,
    NARROW,
    V,
    own_folder,
    random_tensors,
    refusal,
    target_side,
    tied_tensors,
    write,
)


def test_cutting_and_quantising_later_equals_doing_so_at_once(tmp_path: Path) -> None:
    """Both orders of two imports give the file of one, bit for bit."""
    source = write(tmp_path / "source", random_tensors())
    cut = ImportOptions(draft_vocab=(2, 9, 30))
    quantize = ImportOptions(quantization=Quantization(4, 32))
    both = ImportOptions(draft_vocab=(2, 9, 30), quantization=Quantization(4, 32))
    configs = [
        import_drafter(source, tmp_path / "both", both),
        import_drafter(source, tmp_path / "c", cut),
        import_drafter(tmp_path / "c", tmp_path / "cq", quantize),
        import_drafter(source, tmp_path / "q", quantize),
        import_drafter(tmp_path / "q", tmp_path / "qc", cut),
    ]
    assert configs[0] == configs[2] == configs[4]
    expected = load_tensors(tmp_path / "both")
    for name in ("cq", "qc"):
        found = load_tensors(tmp_path / name)
        assert found.keys() == expected.keys()
        assert all(mx.array_equal(found[key], expected[key]) for key in expected)


def test_a_cut_head_is_tied_by_its_own_rows(tmp_path: Path) -> None:
    target = target_side()
    own = own_folder(tmp_path, tied_tensors(target), draft_vocab=(5, 11, 41))
    config = import_drafter(own, tmp_path / "out", ImportOptions(target=target))
    assert config.head == "tied" and config.draft_vocab_size == 3 and config.draft_length == 4
    assert load_tensors(tmp_path / "out")["draft_vocab"].tolist() == [5, 11, 41]


def test_a_head_can_only_be_cut_to_rows_that_it_has(tmp_path: Path) -> None:
    own = own_folder(tmp_path, random_tensors(), draft_vocab=(5, 11, 41))
    whole = load_tensors(tmp_path / "source")["lm_head.2.weight"]
    import_drafter(own, tmp_path / "out", ImportOptions(draft_vocab=(41, 5)))
    stored = load_tensors(tmp_path / "out")
    assert mx.array_equal(stored["lm_head.2.weight"], whole[mx.array([5, 41])])
    options = ImportOptions(draft_vocab=(5, 12))
    assert "12" in refusal(import_drafter, own, tmp_path / "not", options)


def test_a_tied_head_may_get_another_vocabulary(tmp_path: Path) -> None:
    target = target_side()
    own = own_folder(tmp_path, tied_tensors(target), target=target, draft_vocab=(1, 2))
    import_drafter(own, tmp_path / "out", ImportOptions(draft_vocab=(8, 9, 10)))
    assert load_tensors(tmp_path / "out")["draft_vocab"].tolist() == [8, 9, 10]


def test_a_tied_drafter_does_not_change_its_target(tmp_path: Path) -> None:
    target = target_side()
    own = own_folder(tmp_path, tied_tensors(target), target=target)
    assert import_drafter(own, tmp_path / "same", ImportOptions(target=target)).head == "tied"
    other = replace(target, identity=replace(IDENTITY, name="other", fingerprint="beef"))
    message = refusal(import_drafter, own, tmp_path / "out", ImportOptions(target=other))
    assert "toy" in message and "other" in message


def test_a_quantised_head_stays_its_own(tmp_path: Path) -> None:
    target = target_side()
    own = own_folder(tmp_path, tied_tensors(target), quantization=Quantization(8, 32))
    config = import_drafter(own, tmp_path / "out", ImportOptions(target=target))
    assert config.head == "own" and config.target == IDENTITY
    assert load_tensors(own).keys() == load_tensors(tmp_path / "out").keys()


def test_a_quantised_drafter_is_not_quantised_otherwise(tmp_path: Path) -> None:
    own = own_folder(tmp_path, random_tensors(), quantization=Quantization(8, 32))
    same = ImportOptions(quantization=Quantization(8, 32))
    import_drafter(own, tmp_path / "same", same)
    options = ImportOptions(quantization=Quantization(4, 32))
    assert "8 bits" in refusal(import_drafter, own, tmp_path / "out", options)


@pytest.mark.parametrize("name", ["rnn_u.scales", "rnn_u.biases", "rnn_u.weight", "draft_vocab"])
def test_a_tensor_of_the_own_layout_is_checked_too(tmp_path: Path, name: str) -> None:
    own = own_folder(
        tmp_path, random_tensors(), quantization=Quantization(8, 32), draft_vocab=(1, 2)
    )
    tensors = load_tensors(own)
    config = json.loads((own / "config.json").read_text())
    lacking = write(tmp_path / "a", {k: v for k, v in tensors.items() if k != name}, config)
    assert ("draft_vocab" if name == "draft_vocab" else "rnn_u") in refusal(read_drafter, lacking)
    misshapen = write(tmp_path / "b", tensors | {name: tensors[name][:1]}, config)
    assert repr(name) in refusal(read_drafter, misshapen)
    mistyped = write(tmp_path / "c", tensors | {name: tensors[name].astype(mx.int16)}, config)
    assert repr(name) in refusal(read_drafter, mistyped)


@pytest.mark.parametrize("ids", [[2, 1], [1, 1], [-1, 1], [1, V]])
def test_a_draft_vocabulary_in_a_file_is_checked(tmp_path: Path, ids: list[int]) -> None:
    own = own_folder(tmp_path, random_tensors(), draft_vocab=(1, 2))
    tensors = load_tensors(own) | {"draft_vocab": mx.array(ids, mx.int32)}
    config = json.loads((own / "config.json").read_text())
    assert "'draft_vocab'" in refusal(read_drafter, write(tmp_path / "a", tensors, config))


def test_a_folder_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    values = NARROW.to_dict() | {"format_version": 99}
    assert "99" in refusal(read_drafter, write(tmp_path / "a", random_tensors(), values))
