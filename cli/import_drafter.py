"""What ``redrafter-mlx convert`` does with a drafter's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrafter_mlx.cli import render
from redrafter_mlx.config import DrafterConfig, Quantization
from redrafter_mlx.sizes import readable_size

if TYPE_CHECKING:
    import mlx.core as mx
    import numpy as np
    import numpy.typing as npt

    from redrafter_mlx.convert.drafter import TargetSide
    from redrafter_mlx.loading.watch import Watch
    from redrafter_mlx.models.decoder import Decoder

DEFAULT_DTYPE = "float16"
# Of each answer whose tokens are counted for a draft vocabulary.
ANSWER_TOKENS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterChoices:
    """What becomes of a drafter on the way.

    Attributes:
        target: Name of the model that it shall fit.
        draft_length: Tokens a draft had in training.
        quantization: Of the linear layers.
        draft_vocab: Tokens that the head keeps.
        corpus: The file whose tokens are counted for that.
        dtype: Of what is stored in float32.
    """

    target: str | None
    draft_length: int | None
    quantization: Quantization | None
    draft_vocab: int | None
    corpus: Path | None
    dtype: str | None


def import_drafter(source: Path, out: Path, choices: DrafterChoices, watch: Watch) -> list[str]:
    """Write the folder of a drafter; return the lines that sum it up."""
    from redrafter_mlx.convert.drafter import ImportOptions, read_drafter, write_drafter

    read = read_drafter(source)
    options = ImportOptions(
        draft_length=choices.draft_length,
        target=target_side(choices.target, watch) if choices.target else None,
        quantization=choices.quantization,
        draft_vocab=_draft_vocab(read.config.vocab_size, choices, watch),
        dtype=choices.dtype or DEFAULT_DTYPE,
    )
    return summary(out, write_drafter(read, out, options), read.notes)


def export(source: Path, out: Path, target: str | None, watch: Watch) -> list[str]:
    """Write a drafter as PyTorch programs read it; return the lines that sum it up."""
    from redrafter_mlx.convert.pytorch_export import export_drafter

    config = export_drafter(source, out, target_side(target, watch) if target else None)
    return summary(out, config, ())


def target_side(name: str, watch: Watch) -> TargetSide:
    """Load what a drafter is checked against and tied to.

    Raises:
        CheckpointError: There is no such model, or it is not supported.
    """
    from redrafter_mlx.convert.drafter import TargetSide
    from redrafter_mlx.loading.hub import resolve_model
    from redrafter_mlx.loading.target import identify, load_target

    target = load_target(resolve_model(name, watch=watch), "stored")
    return TargetSide(identity=identify(name, target), head=_float_head(target))


def _float_head(target: Decoder) -> mx.array:
    """Return the output matrix in float32, (vocab_size, hidden_size)."""
    import mlx.core as mx

    from redrafter_mlx.convert.tied_head import dequantize_stepwise
    from redrafter_mlx.models.matrix import Matrix

    head = Matrix.of(target.output_head)
    if head.scales is None or head.biases is None:
        return head.dense().astype(mx.float32)
    packing = Quantization(head.bits, head.group_size)
    return dequantize_stepwise(head.weight, head.scales, head.biases, packing)


def _draft_vocab(
    vocab_size: int, choices: DrafterChoices, watch: Watch
) -> npt.NDArray[np.int32] | None:
    """Choose the most used tokens; a target's end tokens are kept however rare they are."""
    if choices.draft_vocab is None:
        return None
    from redrafter_mlx.convert.draft_vocab import most_used
    from redrafter_mlx.loading.hub import resolve_model
    from redrafter_mlx.loading.model import eos_ids, load_tokenizer

    folder = resolve_model(choices.target, watch=watch) if choices.target else None
    tokenizer = load_tokenizer(folder) if folder else None
    if choices.corpus is not None:
        counts = _count_corpus(choices.corpus, vocab_size, tokenizer)
    else:
        assert choices.target is not None
        counts = _count_answers(choices.target, vocab_size, watch)
    return most_used(counts, choices.draft_vocab, eos_ids(folder, tokenizer) if folder else ())


def _count_corpus(corpus: Path, vocab_size: int, tokenizer: Any) -> npt.NDArray[np.int64]:
    from redrafter_mlx.convert.draft_vocab import count_tokens
    from redrafter_mlx.text import encode

    return count_tokens(
        corpus, vocab_size, lambda text: encode(tokenizer, text, add_special_tokens=False)
    )


def _count_answers(name: str, vocab_size: int, watch: Watch) -> npt.NDArray[np.int64]:
    """Count what the target uses in its answers to the built-in prompts."""
    import numpy as np

    from redrafter_mlx.config import GenerationConfig
    from redrafter_mlx.generation import chat_prompt, generate
    from redrafter_mlx.loading.model import load
    from redrafter_mlx.prompts import bench_prompts, tune_prompts

    model = load(name, drafter=None, watch=watch)
    prompts = (*tune_prompts(), *bench_prompts())
    watch.note(f"Counting in {name}'s answers to {len(prompts)} prompts; this takes minutes.")
    counts = np.zeros(vocab_size, np.int64)
    config = GenerationConfig(max_tokens=ANSWER_TOKENS)
    for prompt in (chat_prompt(model, prompt.text) for prompt in prompts):
        if len(prompt) >= model.target.config.max_positions:
            continue
        answer = generate(model, prompt, config)
        np.add.at(counts, np.array([*answer.prompt_tokens, *answer.tokens]), 1)
    return counts


def summary(folder: Path, config: DrafterConfig, notes: Sequence[str]) -> list[str]:
    """Return a few lines on what was written, and on what was not taken over."""
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    blocks = render.counted(config.num_draft_layers, "residual block")
    vocabulary = f"vocabulary {config.vocab_size}"
    if config.draft_vocab_size is not None:
        vocabulary += f" cut to {config.draft_vocab_size}"
    lines = [
        f"{folder}: {readable_size(num_bytes)}",
        f"hidden_size {config.hidden_size}, exit_dim {config.exit_dim}, {blocks}, {vocabulary}",
        _head_line(config),
    ]
    if config.draft_length is not None:
        lines.append(f"trained to draft {render.counted(config.draft_length, 'token')}")
    if config.target is not None:
        lines.append(f"made for {config.target.name}")
    return [*lines, *notes]


def _head_line(config: DrafterConfig) -> str:
    is_tied = config.head == "tied"
    head = f"tied to the model's, times {config.head_scale:.6g}" if is_tied else "of its own"
    stored = config.quantization
    weights = f"{stored.bits} bits in groups of {stored.group_size}" if stored else "not quantised"
    return f"head {head}; weights {weights}"
