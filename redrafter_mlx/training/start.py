"""The drafter that training starts from: a new one, or one that was trained before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from redrafter_mlx.config import DrafterConfig, TargetIdentity
from redrafter_mlx.convert.drafter_file import DrafterTensors, read_drafter
from redrafter_mlx.convert.names import DRAFT_VOCAB, head_name
from redrafter_mlx.errors import CheckpointError, ConfigError
from redrafter_mlx.loading.drafter import check_fit
from redrafter_mlx.models.decoder import Decoder
from redrafter_mlx.models.drafter import RecurrentDrafter
from redrafter_mlx.models.matrix import Matrix
from redrafter_mlx.models.packing import dequantized
from redrafter_mlx.training.corpus import Ids
from redrafter_mlx.training.settings import NUM_DRAFT_LAYERS, DrafterShape

# Gives that many tokens to keep, ascending; of these where any are named.
ChooseTokens = Callable[[int, Ids | None], Ids]


@dataclass(frozen=True, slots=True, eq=False)
class StartOptions:
    """What the drafter to train is to be.

    Attributes:
        shape: Its sizes.
        draft_length: Depths that will be trained.
        target: What identifies the target.
        init_from: Folder of the drafter to start from, ``None`` for new weights.
        seed: Of new weights.
    """

    shape: DrafterShape
    draft_length: int
    target: TargetIdentity
    init_from: Path | None
    seed: int


def start_network(
    target: Decoder, options: StartOptions, choose_tokens: ChooseTokens
) -> RecurrentDrafter:
    """Return the drafter to train, in float32.

    A new one guesses at first about what the target itself would say from h: the layer that
    reads [h, s] passes on what fits of h and adds a little noise of s, the residual blocks add
    nothing, and an own head is the target's. Blocks beyond those of ``init_from`` add nothing
    at first, either.

    Args:
        target: The model to draft for.
        options: What to make.
        choose_tokens: Chooses a draft vocabulary.

    Raises:
        CheckpointError: ``init_from`` cannot be read, or was made for another target.
        ConfigError: It does not have the shape asked for.
        ShapeError: It does not fit the target.
    """
    if options.init_from is None:
        network = _new_network(target, options, choose_tokens)
    else:
        network = _continued(target, options, choose_tokens, read_drafter(options.init_from))
    network.freeze(recurse=False, keys=[DRAFT_VOCAB], strict=False)
    mx.eval(network.parameters())
    return network


def network_tensors(network: RecurrentDrafter) -> DrafterTensors:
    """Return a network's configuration and tensors, to be written."""
    return DrafterTensors(network.config, dict(tree_flatten(network.parameters())))


def _new_network(
    target: Decoder, options: StartOptions, choose_tokens: ChooseTokens
) -> RecurrentDrafter:
    shape, hidden_size = options.shape, target.config.hidden_size
    config = DrafterConfig(
        hidden_size=hidden_size,
        vocab_size=target.config.vocab_size,
        exit_dim=shape.exit_dim or hidden_size,
        num_draft_layers=_either(shape.num_draft_layers, NUM_DRAFT_LAYERS),
        draft_length=options.draft_length,
        head=shape.head or "tied",
        draft_vocab_size=shape.draft_vocab_size,
        target=options.target,
    )
    mx.random.seed(options.seed)
    network = RecurrentDrafter(config)
    if shape.draft_vocab_size is not None:
        network.draft_vocab = mx.array(choose_tokens(shape.draft_vocab_size, None))
    _silence_blocks(network, 0)
    if "input_proj" in network:
        weight = np.array(network.input_proj.weight)
        weight[:, :hidden_size] = np.eye(config.exit_dim, hidden_size)
        network.input_proj.weight = mx.array(weight)
    if config.head == "own":
        network.lm_head[-1].weight = _target_rows(target, network, config.exit_dim)
    return network


def _either(asked: int | None, otherwise: int) -> int:
    return otherwise if asked is None else asked


def _silence_blocks(network: RecurrentDrafter, first: int) -> None:
    """Make the blocks from ``first`` on add nothing: SiLU(0) is 0 and its slope is not."""
    for block in network.blocks[first:]:
        block.linear.weight = mx.zeros_like(block.linear.weight)
        block.linear.bias = mx.zeros_like(block.linear.bias)


def _target_rows(target: Decoder, network: RecurrentDrafter, width: int) -> mx.array:
    """Return the target's head, (num_head_rows, width), cut or filled up with zeros."""
    head = Matrix.of(target.output_head)
    if network.config.draft_vocab_size is not None:
        head = head.rows(network.draft_vocab)
    dense = head.dense().astype(mx.float32)[:, :width]
    return mx.pad(dense, [(0, 0), (0, width - dense.shape[1])])


def _continued(
    target: Decoder, options: StartOptions, choose_tokens: ChooseTokens, source: DrafterTensors
) -> RecurrentDrafter:
    old = source.config
    check_fit(old, target)
    _check_start(old, options)
    settings = asdict(old.quantization) if old.quantization else {}
    tensors = dequantized(source.tensors, settings, mx.float32)
    kept = _kept_tokens(old, options, choose_tokens, tensors)
    head = options.shape.head or old.head
    config = replace(
        old,
        num_draft_layers=_either(options.shape.num_draft_layers, old.num_draft_layers),
        head=head,
        head_scale=old.head_scale if head == "tied" else 1.0,
        draft_length=options.draft_length,
        draft_vocab_size=None if kept is None else len(kept),
        quantization=None,
        target=options.target,
    )
    network = RecurrentDrafter(config)
    if kept is not None:
        network.draft_vocab = mx.array(kept)
    _silence_blocks(network, old.num_draft_layers)
    _fill(network, old, tensors)
    if config.head == "own":
        network.lm_head[-1].weight = _head_rows(target, network, old, tensors)
    return network


def _check_start(old: DrafterConfig, options: StartOptions) -> None:
    shape = options.shape
    if old.target is not None and old.target.fingerprint != options.target.fingerprint:
        raise CheckpointError(
            f"{options.init_from} was made for {old.target.name}, not for {options.target.name}; "
            "start from a drafter of this model, or from none."
        )
    if shape.exit_dim is not None and shape.exit_dim != old.exit_dim:
        raise ConfigError(
            f"exit_dim is {shape.exit_dim}, that of {options.init_from} is {old.exit_dim}; leave "
            "it out, or start from none."
        )
    if _either(shape.num_draft_layers, old.num_draft_layers) < old.num_draft_layers:
        raise ConfigError(
            f"{options.init_from} has {old.num_draft_layers} residual blocks; ask for as many or "
            f"more than {shape.num_draft_layers}."
        )
    if old.head == "own" and shape.head == "tied":
        raise ConfigError(f"{options.init_from} has a head of its own; choose the head own.")


def _kept_tokens(
    old: DrafterConfig,
    options: StartOptions,
    choose_tokens: ChooseTokens,
    tensors: dict[str, mx.array],
) -> Ids | None:
    """Return the draft vocabulary: the one asked for, else the one that there is.

    A head of its own that is cut has no rows for other tokens: it keeps its own, or fewer.
    """
    former = np.array(tensors[DRAFT_VOCAB]) if DRAFT_VOCAB in tensors else None
    size = options.shape.draft_vocab_size
    is_cut = former is not None and old.head == "own"
    if size is None or (is_cut and size == old.draft_vocab_size):
        return former
    if former is None or not is_cut:
        return choose_tokens(size, None)
    if size > len(former):
        raise ConfigError(
            f"The head of {options.init_from} is cut to {len(former)} tokens, and {size} are "
            "asked for; ask for fewer, or leave the draft vocabulary out."
        )
    return choose_tokens(size, former)


def _fill(network: RecurrentDrafter, old: DrafterConfig, tensors: dict[str, mx.array]) -> None:
    head = f"{head_name(old.num_draft_layers)}.weight"
    body = [(name, tensor) for name, tensor in tensors.items() if name not in (head, DRAFT_VOCAB)]
    network.load_weights(body, strict=False)


def _head_rows(
    target: Decoder, network: RecurrentDrafter, old: DrafterConfig, tensors: dict[str, mx.array]
) -> mx.array:
    """Return an own head's first value: the rows that the source's guesses come from."""
    if old.head == "tied":
        return old.head_scale * _target_rows(target, network, old.hidden_size)
    head = tensors[f"{head_name(old.num_draft_layers)}.weight"]
    if network.config.draft_vocab_size is None:
        return head
    former = tensors.get(DRAFT_VOCAB)
    rows = network.draft_vocab
    if former is not None:
        rows = mx.array(np.searchsorted(np.array(former), np.array(rows)))
    return head[rows]
