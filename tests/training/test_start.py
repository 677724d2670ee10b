"""The drafter that training starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from redrafter_mlx.config import Quantization
from redrafter_mlx.convert.drafter import ImportOptions, write_drafter
from redrafter_mlx.errors import CheckpointError, ConfigError, ReDrafterError, ShapeError
from redrafter_mlx.loading.target import identify
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import RecurrentDrafter
from redrafter_mlx.models.matrix import Matrix
from redrafter_mlx.training.corpus import Ids
from redrafter_mlx.training.loss import draft_features, head_logits
from redrafter_mlx.training.settings import NUM_DRAFT_LAYERS, DrafterShape
from redrafter_mlx.training.start import StartOptions, network_tensors, start_network
from redrafter_mlx.training.train import chooser
from tests.toy import toy_drafter, toy_target

H, V = 32, 50
CHOSEN = np.arange(1, 21, dtype=np.int32)


def choose(size: int, among: Ids | None) -> Ids:
    return CHOSEN[:size] if among is None else among[1::2][:size]


@pytest.fixture(scope="module")
def target() -> Decoder:
    return toy_target()


def start(target: Decoder, shape: DrafterShape, init_from: Path | None = None) -> RecurrentDrafter:
    options = StartOptions(shape, 3, identify("toy", target), init_from, seed=0)
    return start_network(target, options, choose)


def saved(folder: Path, target: Decoder, options: ImportOptions, **changes: Any) -> Path:
    network = toy_drafter(target, **changes)._network
    if "draft_vocab" in network:
        network.draft_vocab = mx.arange(0, 40, 2, dtype=mx.int32)
    write_drafter(network_tensors(network), folder, options)
    return folder


def guesses(network: RecurrentDrafter, target: Decoder) -> mx.array:
    """Return its logits on some hidden states and tokens, (2 depths, 1, 4, head rows)."""
    hidden = mx.random.normal((1, 6, H), key=mx.random.key(5))
    tokens = mx.array([[3, 1, 4, 1, 5, 9]])
    features = draft_features(network, hidden, target.embed(tokens), 2)
    head = Matrix.of(target.output_head)
    rows = network.draft_vocab if "draft_vocab" in network else None
    return head_logits(network, head if rows is None else head.rows(rows), features)


@pytest.mark.parametrize(
    "shape",
    [
        DrafterShape(head="own", exit_dim=2 * H),
        DrafterShape(head="own", exit_dim=2 * H, draft_vocab_size=20),
    ],
)
def test_new_drafter_guesses_what_the_target_says_from_h(target: Decoder, shape) -> None:
    network = start(target, shape)
    hidden = mx.random.normal((1, 6, H), key=mx.random.key(5))
    said = target.logits(hidden[:, :4])
    if shape.draft_vocab_size:
        said = said[..., mx.array(CHOSEN)]
    assert mx.allclose(guesses(network, target)[0], said, atol=1e-4)


@pytest.mark.parametrize("shape", [DrafterShape(), DrafterShape(exit_dim=48, head="own")])
def test_new_drafter_passes_h_through_its_projection(target: Decoder, shape) -> None:
    network = start(target, shape)
    weight = np.array(network.input_proj.weight)[:, :H]
    np.testing.assert_array_equal(weight, np.eye(*weight.shape))
    assert not any(mx.any(block.linear.weight).item() for block in network.blocks)


def test_blocks_learn_although_they_add_nothing_at_first(target: Decoder) -> None:
    network = start(target, DrafterShape())

    def total(weight: mx.array) -> mx.array:
        network.blocks[0].linear.weight = weight
        return guesses(network, target).square().sum()

    gradient = mx.grad(total)(network.blocks[0].linear.weight)
    assert mx.any(gradient).item()


@pytest.mark.parametrize("changes", [{}, {"exit_dim": H, "head": "tied", "head_scale": 1.7}])
@pytest.mark.parametrize("more_layers", [0, 1])
def test_continued_drafter_guesses_as_its_source(
    tmp_path: Path, target: Decoder, changes, more_layers: int
) -> None:
    """Law: what is added to a drafter changes none of its guesses before it is trained."""
    folder = saved(tmp_path / "d", target, ImportOptions(dtype="float32"), **changes)
    source = toy_drafter(target, **changes)._network
    head = changes.get("head", "own")
    for shape in (
        DrafterShape(num_draft_layers=2 + more_layers, head=head),
        DrafterShape(num_draft_layers=2 + more_layers, head="own"),
    ):
        network = start(target, shape, folder)
        assert mx.allclose(guesses(network, target), guesses(source, target), atol=1e-4)
    cut = start(target, DrafterShape(head=head, draft_vocab_size=20), folder)
    assert mx.allclose(
        guesses(cut, target), guesses(source, target)[..., mx.array(CHOSEN)], atol=1e-4
    )


def test_draft_vocabulary_of_the_source_is_kept(tmp_path: Path, target: Decoder) -> None:
    tied = {"exit_dim": H, "head": "tied", "draft_vocab_size": 20}
    network = start(target, DrafterShape(), saved(tmp_path / "d", target, ImportOptions(), **tied))
    assert network.draft_vocab.tolist() == list(range(0, 40, 2))
    assert "draft_vocab" not in network.trainable_parameters()


def test_what_is_not_asked_for_is_as_in_the_source(tmp_path: Path, target: Decoder) -> None:
    shape = {"exit_dim": 2 * H, "num_draft_layers": 3, "head": "own", "draft_vocab_size": 20}
    folder = saved(tmp_path / "d", target, ImportOptions(), **shape)
    for asked in (DrafterShape(), DrafterShape(draft_vocab_size=20)):
        config = start(target, asked, folder).config
        assert {name: getattr(config, name) for name in shape} == shape
    new = start(target, DrafterShape()).config
    assert (new.exit_dim, new.num_draft_layers, new.head) == (H, NUM_DRAFT_LAYERS, "tied")


def test_own_head_that_is_cut_can_be_cut_further(tmp_path: Path, target: Decoder) -> None:
    shape = {"exit_dim": H, "head": "own", "draft_vocab_size": 20}
    folder = saved(tmp_path / "d", target, ImportOptions(), **shape)
    source = start(target, DrafterShape(), folder)
    cut = start(target, DrafterShape(draft_vocab_size=9), folder)
    assert mx.array_equal(cut.draft_vocab, source.draft_vocab[1:19:2])
    assert mx.allclose(guesses(cut, target), guesses(source, target)[..., 1:19:2], atol=1e-4)


def test_most_used_tokens_are_chosen_among_those_that_a_head_has() -> None:
    counts = np.array([9, 8, 7, 0, 5, 4, 3, 2], np.int64)
    choose = chooser(counts, frozenset({3, 6}))
    assert choose(4, None).tolist() == [0, 1, 3, 6]
    assert choose(3, np.array([1, 2, 4, 6, 7], np.int32)).tolist() == [1, 2, 6]
    assert choose(2, np.array([4, 5, 7], np.int32)).tolist() == [4, 5]


def test_quantised_drafter_is_multiplied_out(tmp_path: Path, target: Decoder) -> None:
    options = ImportOptions(dtype="float32", quantization=Quantization(8, 32))
    network = start(target, DrafterShape(head="own"), saved(tmp_path / "d", target, options))
    source = toy_drafter(target)._network
    assert network.config.quantization is None
    assert mx.allclose(network.rnn_w.weight, source.rnn_w.weight, atol=0.02)


@pytest.mark.parametrize(
    ("changes", "shape", "kind", "message"),
    [
        ({}, DrafterShape(head="tied"), ConfigError, "has a head of its own"),
        ({}, DrafterShape(exit_dim=16, head="own"), ConfigError, "exit_dim is 16, that of"),
        ({}, DrafterShape(num_draft_layers=1, head="own"), ConfigError, "has 2 residual blocks"),
        (
            {"draft_vocab_size": 20},
            DrafterShape(head="own", draft_vocab_size=21),
            ConfigError,
            "is cut to 20 tokens, and 21 are asked for",
        ),
    ],
)
def test_source_of_another_shape_is_refused(
    tmp_path: Path, target: Decoder, changes, shape, kind: type[ReDrafterError], message: str
) -> None:
    folder = saved(tmp_path / "d", target, ImportOptions(), **changes)
    with pytest.raises(kind, match=message):
        start(target, shape, folder)


def test_source_of_another_target_is_refused(tmp_path: Path, target: Decoder) -> None:
    folder = saved(tmp_path / "d", target, ImportOptions())
    with pytest.raises(ShapeError):
        start(toy_target(vocab_size=60), DrafterShape(head="own"), folder)
    other = replace(identify("toy", target), name="other", fingerprint="beef")
    network = start(target, DrafterShape(head="own"), folder)
    tensors = network_tensors(network)
    tensors = replace(tensors, config=replace(tensors.config, target=other))
    write_drafter(tensors, tmp_path / "other", ImportOptions())
    with pytest.raises(CheckpointError, match="was made for other, not for toy"):
        start(target, DrafterShape(head="own"), tmp_path / "other")
