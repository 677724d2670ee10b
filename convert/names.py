"""The names and shapes of a drafter's tensors.

Apple's names are the ones used here, in a drafter's folder and in its module alike:

    input_proj.{weight,bias}             (E, 2H), (E,)   where E != 2H
    lm_head.{i}.linear.{weight,bias}     (E, E), (E,)    residual block i of n
    lm_head.{n}.weight                   (V, E)          output head
    rnn_u.{weight,bias}, rnn_w.weight    (H, H), (H,), (H, H)   unless rnn is false
    draft_vocab                          (rows of the head,)    where the head is cut

H is hidden_size, E exit_dim, V vocab_size, n num_draft_layers.

Source:
    apple/ml-recurrent-drafter, modeling_drafter.py, class Drafter; the other spellings:
    NVIDIA/TensorRT-LLM, examples/redrafter/convert_checkpoint.py; NVIDIA/TensorRT-Model-Optimizer
    0.23 to 0.27.0, torch/speculative; eplatero97/speculators, models/recurrent_drafting.py.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from redrafter_mlx.config import DrafterConfig
from redrafter_mlx.errors import CheckpointError

DRAFT_VOCAB = "draft_vocab"
# Apple's class creates it and never reads it.
_UNUSED = frozenset({"emb_norm.weight"})
_MARK = "drafter."  # NVIDIA ModelOpt and TensorRT-LLM: the model lies in the same files
_VERIFIER = "verifier"  # vLLM speculators: a target beside the drafter
_TENSORRT_HEAD = "lm_head.weight"
_SPELLINGS = (
    (re.compile(r"^drafter\."), ""),
    (re.compile(r"^layers\.(?=\d+\.linear\.)"), "lm_head."),
    (re.compile(r"^lm_heads\."), "lm_head."),
    (re.compile(r"^0\.(?=\d+\.)"), "lm_head."),
    (re.compile(r"^input_projs\."), "input_proj."),
)
_KNOWN = re.compile(r"(input_proj|rnn_u|rnn_w|lm_head\.\d+)\.|emb_norm\.weight$|draft_vocab$")
_HEAD = re.compile(r"lm_head\.(\d{1,2})\.weight")
_BLOCK = re.compile(r"lm_head\.(\d{1,2})\.linear\.(?:weight|bias)")


@dataclass(frozen=True, slots=True)
class Renamed:
    """How the tensors of a checkpoint become a drafter's.

    Attributes:
        origins: Apple's name of each tensor of the drafter -> its name in the checkpoint.
        dropped: Those that a drafter has and does not use.
        left_aside: Those of the model that the drafter was saved with.
    """

    origins: dict[str, str]
    dropped: tuple[str, ...]
    left_aside: tuple[str, ...]


def apple_name(name: str) -> str:
    """Return Apple's name for a tensor; one that follows no known spelling stays as it is."""
    for spelling, replacement in _SPELLINGS:
        name = spelling.sub(replacement, name)
    return name


def is_drafters(name: str) -> bool:
    """Return whether Apple's name is one that some drafter's tensor may bear."""
    return _KNOWN.match(name) is not None


def rename_tensors(names: Iterable[str]) -> Renamed:
    """Find the tensors of a drafter and give each Apple's name.

    Where some are marked as a drafter's, the others belong to the model beside it.

    Raises:
        CheckpointError: Two tensors would get one name.
    """
    names = list(names)
    is_marked = any(name.startswith(_MARK) for name in names)
    left_aside = tuple(name for name in names if _is_anothers(name, is_marked=is_marked))
    anothers = set(left_aside)
    kept = [name for name in names if name not in anothers]
    head = f"{head_name(count_blocks(map(apple_name, kept)))}.weight"
    origins: dict[str, str] = {}
    for name in kept:
        new_name = apple_name(name)
        new_name = head if new_name == _TENSORRT_HEAD else new_name
        if new_name in origins:
            raise CheckpointError(
                f"The tensors {origins[new_name]!r:.120} and {name!r:.120} are both a drafter's "
                f"{new_name!r:.120}; remove one."
            )
        origins[new_name] = name
    dropped = tuple(origins.pop(name) for name in sorted(_UNUSED & origins.keys()))
    return Renamed(origins, dropped, left_aside)


def _is_anothers(name: str, *, is_marked: bool) -> bool:
    if name.startswith(_VERIFIER):
        return True
    return is_marked and not name.startswith(_MARK) and not is_drafters(apple_name(name))


def head_name(num_draft_layers: int) -> str:
    """Return the module name of the output head."""
    return f"lm_head.{num_draft_layers}"


def tensor_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of a drafter that is not quantised."""
    axes = _tensor_axes(
        config.num_draft_layers,
        has_input_proj=config.exit_dim != 2 * config.hidden_size,
        has_rnn=config.rnn,
    )
    if config.head == "tied":
        del axes[f"{head_name(config.num_draft_layers)}.weight"]
    if config.draft_vocab_size is not None:
        axes[DRAFT_VOCAB] = "V"
    sizes = {
        "H": config.hidden_size,
        "I": 2 * config.hidden_size,
        "E": config.exit_dim,
        "V": config.num_head_rows,
    }
    return {name: tuple(sizes[axis] for axis in letters) for name, letters in axes.items()}


def read_config(tensors: Mapping[str, mx.array]) -> DrafterConfig:
    """Read a drafter's sizes off its tensors, which bear Apple's names.

    A size is what most of the tensors say, so that a check against the result finds fault
    with the odd one out.

    Raises:
        CheckpointError: There is no output head, or it is not a matrix.
    """
    num_draft_layers = count_blocks(tensors)
    axes = _tensor_axes(
        num_draft_layers,
        has_input_proj=any(name.startswith("input_proj.") for name in tensors),
        has_rnn=(has_rnn := any(name.startswith("rnn_") for name in tensors)),
    )
    head = tensors.get(f"{head_name(num_draft_layers)}.weight")
    if head is None or head.ndim != 2:
        found = "is missing" if head is None else f"has shape {head.shape}"
        raise CheckpointError(
            f"The tensor '{head_name(num_draft_layers)}.weight', the drafter's output head, "
            f"{found}, expected (vocab_size, exit_dim); choose a drafter's whole checkpoint."
        )
    sizes = _most_said_sizes(tensors, axes)
    return DrafterConfig(
        hidden_size=sizes.get("H", sizes["E"] // 2),
        vocab_size=sizes["V"],
        exit_dim=sizes["E"],
        num_draft_layers=num_draft_layers,
        rnn=has_rnn,
    )


def count_blocks(names: Iterable[str]) -> int:
    """Return n: the head's number, or one more than the last block's without a head."""
    names = list(names)
    heads = [int(match[1]) for match in map(_HEAD.fullmatch, names) if match]
    blocks = [int(match[1]) + 1 for match in map(_BLOCK.fullmatch, names) if match]
    return max(heads or blocks, default=0)


def _tensor_axes(num_draft_layers: int, *, has_input_proj: bool, has_rnn: bool) -> dict[str, str]:
    """Return the axes of every tensor, a letter each; I stands for 2H."""
    axes: dict[str, str] = {}
    if has_input_proj:
        axes |= {"input_proj.weight": "EI", "input_proj.bias": "E"}
    for block in range(num_draft_layers):
        axes |= {f"lm_head.{block}.linear.weight": "EE", f"lm_head.{block}.linear.bias": "E"}
    axes[f"{head_name(num_draft_layers)}.weight"] = "VE"
    if has_rnn:
        axes |= {"rnn_u.weight": "HH", "rnn_u.bias": "H", "rnn_w.weight": "HH"}
    return axes


def _most_said_sizes(tensors: Mapping[str, mx.array], axes: Mapping[str, str]) -> dict[str, int]:
    votes: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for name, letters in axes.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.ndim != len(letters):
            continue
        for letter, size in zip(letters, tensor.shape, strict=True):
            if letter == "I":
                votes["H"][size // 2] += 1
            else:
                votes[letter][size] += 1
    return {letter: counter.most_common(1)[0][0] for letter, counter in votes.items()}
