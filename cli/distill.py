"""``redrafter-mlx distill``: let a model answer and read what its drafter will learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redrafter_mlx.cli import progress, render
from redrafter_mlx.cli.bars import Bar, bar, resumable
from redrafter_mlx.cli.options import Dtype, ProgramOptions
from redrafter_mlx.cli.usage import from_options, named, named_path, refuse_idle
from redrafter_mlx.config import DEFAULT_MODEL
from redrafter_mlx.errors import PromptError
from redrafter_mlx.training.settings import (
    BUILT_IN_PROMPTS,
    DEFAULT_TOKENS,
    MAX_READ_TOKENS,
    DistillConfig,
)

if TYPE_CHECKING:
    from redrafter_mlx.loading.model import LoadedModel
    from redrafter_mlx.text import Message
    from redrafter_mlx.training.corpus import Ids
    from redrafter_mlx.training.distill import DistillProgress
    from redrafter_mlx.training.texts import Exchange

DEFAULTS = DistillConfig()


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Which model writes which corpus."""

    out: Annotated[
        Path,
        typer.Option(
            metavar="CORPUS",
            parser=named_path,
            help="Folder of the corpus; one that is there grows.",
        ),
    ]
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            callback=named,
            help="A known name, a model's folder, or org/name on the Hub.",
        ),
    ] = DEFAULT_MODEL
    dtype: Dtype = "auto"


@dataclass(frozen=True, kw_only=True)
class DistillOptions:
    """What is answered or read, and how."""

    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=named_path,
            help="JSON lines with prompt, messages, conversations or turns, or a prompt a line; "
            "else built-in prompts.",
        ),
    ] = None
    read: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=named_path,
            help="Let the model read these texts in place of answering: JSON lines with prompt "
            "and response, or an .npz of its own answers.",
        ),
    ] = None
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Answer tokens to stop at; else the whole file, or a million of built-in prompts."
        ),
    ] = None
    temp: Annotated[
        str, typer.Option(metavar="T,T,...", help="Temperatures, taken in turn; 0 is greedy.")
    ] = ",".join(f"{temperature:g}" for temperature in DEFAULTS.temperatures)
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = DEFAULTS.max_tokens
    batch_size: Annotated[int, typer.Option(help="Prompts answered at once.")] = DEFAULTS.batch_size
    seed: Annotated[int, typer.Option(help="Of the built-in prompts and the sampling.")] = (
        DEFAULTS.seed
    )

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.prompts is not None and self.read is not None:
            raise typer.BadParameter("it contradicts --prompts; give one.", param_hint="--read")
        if self.read is not None:
            refuse_idle("--read", {"read"}, [self])

    def require_files(self) -> None:
        """Refuse a missing file before the model is loaded.

        Raises:
            PromptError: There is no such file.
        """
        for file in (self.prompts, self.read):
            if file is not None and not file.is_file():
                raise PromptError(f"{file} cannot be read (it is no file); check the path.")

    def read_prompts(self) -> tuple[str, list[Exchange] | None]:
        """Return what tells this source of prompts from others, and what a file asks.

        Returns:
            The file's digest and its prompts; ``None`` for these where the built-in ones serve.

        Raises:
            PromptError: The file cannot be read, or a line asks nothing.
        """
        from redrafter_mlx.training.reading import file_digest
        from redrafter_mlx.training.texts import read_exchanges

        if self.prompts is None:
            return "built-in", None
        digest, exchanges = file_digest(self.prompts), list(read_exchanges(self.prompts))
        if not exchanges:
            raise PromptError(f"{self.prompts} asks nothing; give a file with prompts.")
        return digest, exchanges

    def config(self) -> DistillConfig:
        """Return the library's settings.

        Raises:
            UsageError: A value is out of range.
        """
        tokens = self.tokens
        if tokens is None and self.prompts is None:
            tokens = DEFAULT_TOKENS
        with from_options():
            return DistillConfig(
                temperatures=_numbers(self.temp),
                max_tokens=self.max_tokens,
                batch_size=self.batch_size,
                num_tokens=tokens,
                seed=self.seed,
            )


def distill(corpus: CorpusOptions, options: DistillOptions, program: ProgramOptions) -> None:
    """Let a model answer prompts, for a drafter to learn from; it goes on where it stopped."""
    config = options.config()
    options.require_files()
    source, exchanges = options.read_prompts()
    model = load_target(corpus.model, corpus.dtype)
    if options.read is not None:
        _read(model, corpus.out, options.read)
        return
    prompts = None if exchanges is None else _encoded(model, exchanges, config)
    _create(model, corpus.out)
    _answer(model, (corpus.out, config.part(f"{source} {model.target.dtype}")), config, prompts)


def load_target(name: str, dtype: str) -> LoadedModel:
    """Load a model without a drafter and show its notices."""
    from redrafter_mlx.loading.model import load
    from redrafter_mlx.loading.watch import Watch

    with progress.activity(f"Loading {name} ...") as activity:
        watch = Watch(activity.note, activity.progress)
        model = load(name, drafter=None, dtype=dtype, watch=watch)
    for notice in model.notices:
        render.note(notice)
    return model


def _create(model: LoadedModel, folder: Path) -> None:
    """Make the corpus once all that goes into it is read: a broken file leaves none."""
    from redrafter_mlx.loading.target import identify
    from redrafter_mlx.training.corpus import create_corpus

    create_corpus(folder, identify(model.name, model.target))


def _read(model: LoadedModel, folder: Path, file: Path) -> None:
    """Put a file's texts into a corpus."""
    from redrafter_mlx.training.reading import (
        add_samples,
        file_digest,
        read_samples,
        text_encoder,
    )

    config, eos = model.target.config, model.tokenizer.eos_token_id
    encode = text_encoder(model.tokenizer, eos, min(MAX_READ_TOKENS, config.max_positions))
    with progress.activity(f"Reading {file} ..."):
        digest, samples = file_digest(file), read_samples(file, encode, config.vocab_size)
    _create(model, folder)
    add_samples(folder, digest, samples)
    render.line(f"{folder}: {render.counted(len(samples), 'text')} to read")


def _answer(
    model: LoadedModel, place: tuple[Path, str], config: DistillConfig, prompts: list[Ids] | None
) -> None:
    """Answer prompts, or built-in ones where there are none."""
    from redrafter_mlx.training.distill import distill

    with resumable("the same options"), bar("Answering") as answering:
        done = distill(
            model.target,
            model.eos_ids,
            _built_in(model, config.seed) if prompts is None else prompts,
            place,
            config,
            _reporter(answering, config, prompts),
        )
    render.line(
        f"{place[0]}: {render.counted(done.num_prompts, 'answer')}, {done.num_tokens} tokens, "
        f"{_rate(done) if done.new_tokens else 'complete already'}"
    )


def _reporter(
    answering: Bar, config: DistillConfig, prompts: list[Ids] | None
) -> Callable[[DistillProgress], None]:
    """Return what shows the tokens so far, or the prompts where nobody said how many tokens."""

    def report(done: DistillProgress) -> None:
        if config.num_tokens is not None:
            answering.show(done.num_tokens, config.num_tokens, f"tokens · {_rate(done)}")
        else:
            answering.show(done.num_prompts, len(prompts or ()), f"prompts · {_rate(done)}")

    return report


def _rate(done: DistillProgress) -> str:
    return f"{done.new_tokens / max(done.seconds, 1e-9):.0f} tokens/s"


def _built_in(model: LoadedModel, seed: int) -> Iterator[Ids]:
    """Yield the built-in prompts as the chat template puts them to the model."""
    from redrafter_mlx.prompts import training_prompts

    for text in training_prompts(BUILT_IN_PROMPTS, seed):
        yield _rendered(model, [{"role": "user", "content": text}])


def _encoded(model: LoadedModel, exchanges: list[Exchange], config: DistillConfig) -> list[Ids]:
    """Return what a file asks as the chat template puts it, without what is too long."""
    from redrafter_mlx.training.distill import is_fitting, longest_prompt

    prompts = []
    with progress.activity("Reading the prompts ..."):
        for number, exchange in enumerate(exchanges, 1):
            try:
                prompts.append(_rendered(model, exchange.messages))
            except PromptError as error:
                raise PromptError(f"Prompt {number} of the file: {error}") from error
    longest = longest_prompt(model.target, config)
    fitting = [prompt for prompt in prompts if is_fitting(prompt, longest)]
    if not fitting:
        raise PromptError(f"No prompt of the file has 1 to {longest} tokens; shorten them.")
    if len(fitting) < len(prompts):
        left_out = render.counted(len(prompts) - len(fitting), "prompt")
        render.note(f"{left_out} left out: not 1 to {longest} tokens")
    return fitting


def _rendered(model: LoadedModel, messages: Sequence[Message]) -> Ids:
    import numpy as np

    from redrafter_mlx.text import render_chat

    return np.array(render_chat(model.tokenizer, messages), np.int32)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no list of numbers; give them as 0,0.8.", param_hint="--temp"
        ) from error
