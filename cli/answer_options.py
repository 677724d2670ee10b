"""The options of an answer: what it may be, how its tokens are chosen and how they are drafted."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from redrafter_mlx.cli.prompt_input import require_utf8
from redrafter_mlx.cli.usage import from_options
from redrafter_mlx.config import BeamShape, GenerationConfig, SamplingConfig

ANSWER = GenerationConfig()
# With --stats every so many rounds are timed by parts, which slows these few down a little.
_TIMED_EVERY = 8
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """What an answer may be, how its tokens are chosen and how they are drafted."""

    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt, in place of the model's.")
    ] = None
    thinking: Annotated[
        bool | None,
        typer.Option(
            "--thinking/--no-thinking",
            help="Let the model think first, or not, where its template has a switch for it.",
        ),
    ] = None
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = ANSWER.max_tokens
    temp: Annotated[float, typer.Option(help="Temperature; 0 takes the most probable token.")] = (
        ANSWER.sampling.temperature
    )
    top_p: Annotated[
        float,
        typer.Option(help="Keep the likeliest tokens up to this probability; 0 and 1 keep all."),
    ] = ANSWER.sampling.top_p
    top_k: Annotated[
        int, typer.Option(help="Keep this many of the likeliest tokens; 0 keeps all.")
    ] = ANSWER.sampling.top_k
    min_p: Annotated[
        float, typer.Option(help="Drop tokens under this share of the likeliest; 0 keeps all.")
    ] = ANSWER.sampling.min_p
    seed: Annotated[int, typer.Option(help="Seed of the sampling; one seed gives one text.")] = (
        ANSWER.sampling.seed
    )
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help=r"End the answer before this text; may be repeated; \n, \t and \\ are escapes.",
        ),
    ] = None
    beam_width: Annotated[
        int | None,
        typer.Option(help="Continuations that the drafter follows; else as suits the device."),
    ] = None
    beam_length: Annotated[
        int | None,
        typer.Option(help="Tokens of a continuation, 1 decodes plainly; else as suits the device."),
    ] = None
    no_lookup: Annotated[
        bool, typer.Option("--no-lookup", help="Guess nothing from what the text said before.")
    ] = False
    lookup_only: Annotated[
        bool, typer.Option("--lookup-only", help="Guess only from what the text said before.")
    ] = False
    no_adapt: Annotated[
        bool,
        typer.Option("--no-adapt", help="Guess in full in every round, whether it pays or not."),
    ] = False
    stats: Annotated[
        bool, typer.Option("--stats", help="Show what was accepted and where the time went.")
    ] = False

    def __post_init__(self) -> None:
        """Refuse a system prompt that is no text, and options that contradict each other."""
        if self.system is not None:
            with from_options():
                require_utf8(self.system, "The system prompt")
        if self.no_lookup and self.lookup_only:
            raise typer.BadParameter(
                "it contradicts --lookup-only; leave one of them out.", param_hint="--no-lookup"
            )

    @property
    def is_shape_chosen(self) -> bool:
        """Whether these options leave nothing to the shape of the draft that tune finds."""
        return (
            self.lookup_only
            or self.no_adapt
            or self.beam_width is not None
            or self.beam_length is not None
        )

    def generation_config(self) -> GenerationConfig:
        """Return the library's settings.

        Raises:
            UsageError: A value is out of range.
        """
        with from_options():
            return GenerationConfig(
                max_tokens=self.max_tokens,
                stop=tuple(unescape(text) for text in self.stop or ()),
                sampling=self._sampling(),
                beam=self._beam_shape(),
                use_drafter=not self.lookup_only,
                use_lookup=not self.no_lookup,
                is_adaptive=not self.no_adapt,
                timed_every=_TIMED_EVERY if self.stats else 0,
            )

    def _sampling(self) -> SamplingConfig:
        return SamplingConfig(
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
        )

    def _beam_shape(self) -> BeamShape | None:
        sizes = {"beam_width": self.beam_width, "beam_length": self.beam_length}
        given = {name: size for name, size in sizes.items() if size is not None}
        if not given:
            return None
        from redrafter_mlx.loading.model import default_beam_shape

        return replace(default_beam_shape(), **given)


def unescape(text: str) -> str:
    r"""Turn ``\n``, ``\t`` and ``\\`` into what they stand for; leave the rest."""
    return re.sub(r"\\([nt\\])", lambda match: ESCAPES[match[1]], text)
