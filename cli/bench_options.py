"""The options of ``redrafter-mlx bench``: what is asked, how it is decoded, where results go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redrafter_mlx.cli.usage import UsageError, from_options, named_path
from redrafter_mlx.config import MAX_ROWS, BeamShape, SamplingConfig, check_range

if TYPE_CHECKING:
    from redrafter_mlx.bench.sides import SideOptions
    from redrafter_mlx.bench.suites import Suite

SAMPLING = SamplingConfig()


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """What is asked, and how often."""

    suite: Annotated[
        str,
        typer.Option(
            metavar="quick|paper|mt-bench|FILE",
            help="quick: two minutes on a laptop. paper: Apple's protocol, one prompt, widths 1-4 "
            "by lengths 2-5. mt-bench: 80 questions. Or JSON lines with turns.",
        ),
    ] = "quick"
    questions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="MT-Bench's question.jsonl; else it comes from the Hub."),
    ] = None
    turns: Annotated[
        int,
        typer.Option(
            min=1,
            max=2,
            help="2 asks the second turn, too, behind the model's own plain answer to the first.",
        ),
    ] = 1
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Ask this many questions, evenly spread over the suite."),
    ] = None
    trials: Annotated[
        int | None, typer.Option(min=1, help="Passes over the questions; else as the suite has it.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse questions that nobody asks."""
        if self.questions is not None and self.suite != "mt-bench":
            raise typer.BadParameter("it goes with --suite mt-bench.", param_hint="--questions")

    def load(self) -> Suite:
        """Return the suite.

        Raises:
            PromptError: There is no such suite or file, or it holds no questions.
            CheckpointError: The Hub does not give MT-Bench's.
        """
        from redrafter_mlx.bench.suites import find_suite

        suite = replace(find_suite(self.suite, self.questions), num_turns=self.turns)
        return suite if self.limit is None else suite.limited(self.limit)


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How the sides decode."""

    beam_width: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Also fixed shapes of these widths, as 1,2,3,4."),
    ] = None
    beam_length: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Also fixed shapes of these lengths, as 2,3,4,5."),
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of an answer; else as the suite has it.")
    ] = None
    temp: Annotated[float, typer.Option(help="Temperature; 0 takes the most probable token.")] = (
        SAMPLING.temperature
    )
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens up to this probability.")
    ] = SAMPLING.top_p
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = SAMPLING.seed
    no_lookup: Annotated[
        bool, typer.Option("--no-lookup", help="Let the adapted side look nothing up, either.")
    ] = False

    def __post_init__(self) -> None:
        """Refuse what is out of range before a suite is fetched.

        Raises:
            UsageError: A value is.
        """
        with from_options():
            self._sampling()
            if self.max_tokens is not None:
                check_range("max_tokens", self.max_tokens, 2, 2**31 - 1)
            for width in self.widths:
                check_range("beam_width", width, 1, MAX_ROWS)
            for length in self.lengths:
                check_range("beam_length", length, 2, MAX_ROWS)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the fixed shapes that are asked for."""
        return _numbers("--beam-width", self.beam_width)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the fixed shapes that are asked for."""
        return _numbers("--beam-length", self.beam_length)

    def single_shape(self) -> tuple[int, int] | None:
        """Return the shape that a prediction tells change by change, ``None`` for the fastest.

        Raises:
            UsageError: Half of one is given, or more than one.
        """
        if not self.widths and not self.lengths:
            return None
        if len(self.widths) != 1 or len(self.lengths) != 1:
            raise UsageError(
                "--predict goes change by change through one shape; give one --beam-width and one "
                "--beam-length, or neither for the fastest."
            )
        return self.widths[0], self.lengths[0]

    def side_options(self, suite: Suite) -> SideOptions:
        """Return the library's settings."""
        from redrafter_mlx.bench.sides import SideOptions

        return SideOptions(
            max_tokens=suite.max_tokens if self.max_tokens is None else self.max_tokens,
            sampling=self._sampling(),
            ignores_eos=suite.ignores_eos,
            uses_lookup=not self.no_lookup,
            shapes=self._shapes(suite),
        )

    def _sampling(self) -> SamplingConfig:
        return SamplingConfig(temperature=self.temp, top_p=self.top_p, seed=self.seed)

    def _shapes(self, suite: Suite) -> tuple[BeamShape, ...]:
        from redrafter_mlx.loading.model import default_beam_shape

        widths, lengths = self.widths or suite.widths, self.lengths or suite.lengths
        if not widths and not lengths:
            return ()
        usual = default_beam_shape()
        pairs = product(widths or (usual.beam_width,), lengths or (usual.beam_length,))
        return tuple(BeamShape(width, length) for width, length in pairs)


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where results go, or which are shown."""

    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=named_path,
            help="Of the results; else a new one named by date and time.",
        ),
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what --out holds, if it is the same bench.")
    ] = False
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Only show two results side by side."),
    ] = None
    predict: Annotated[
        str | None,
        typer.Option(
            metavar="CHIP", help='Only predict what drafting should give on a chip, as "M2 Ultra".'
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse to go on with nothing, and two things at once."""
        if self.resume and self.out is None:
            raise typer.BadParameter(
                "it needs --out, the folder to go on with.", param_hint="--resume"
            )
        if self.compare is not None and self.predict is not None:
            raise typer.BadParameter("it contradicts --predict; give one.", param_hint="--compare")

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return self.out or Path(f"bench-{datetime.now():%Y-%m-%d-%H%M%S}")


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no list of whole numbers; give them as 1,2,3.", param_hint=option
        ) from error
