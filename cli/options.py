"""The options that commands share, in groups; their defaults are those of the library."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from redrafter_mlx.cli import render
from redrafter_mlx.cli.prompt_input import require_utf8
from redrafter_mlx.config import (
    DEFAULT_MODEL,
    DTYPES,
    BeamShape,
    GenerationConfig,
    SamplingConfig,
)
from redrafter_mlx.errors import CheckpointError

if TYPE_CHECKING:
    from redrafter_mlx.loading.model import LoadedModel

ANSWER = GenerationConfig()
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of the option groups that a command takes, one option each.

    Args:
        function: A command whose parameters are all dataclasses; the options of the help
            stand in their order.
    """
    groups = {
        name: hint
        for name, hint in get_type_hints(function).items()
        if is_dataclass(hint) and isinstance(hint, type)
    }

    @functools.wraps(function)
    def command(**values: Any) -> None:
        built = {
            name: group(**{entry.name: values[entry.name] for entry in fields(group)})
            for name, group in groups.items()
        }
        function(**built)

    parameters = [parameter for group in groups.values() for parameter in _parameters_of(group)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {entry.name: entry.annotation for entry in parameters}
    return command


def _parameters_of(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default_of(entry),
            annotation=hints[entry.name],
        )
        for entry in fields(group)
    ]


def _default_of(entry: Field[Any]) -> Any:
    return inspect.Parameter.empty if entry.default is MISSING else entry.default


def _show_version(wanted: bool) -> None:
    if wanted:
        render.version()
        raise typer.Exit()


def _show_traceback(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.find_root().command.shows_traceback = True  # type: ignore[attr-defined]


def _check_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r} is not one of {', '.join(DTYPES)}.")
    return dtype


Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=_show_traceback, is_eager=True, help="Show the traceback of an error."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """What may stand before a command and after it."""

    version: Version = False
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which target and which drafter run, and in which precision."""

    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL", help="A known name, a model's folder, or org/name on the hub."
        ),
    ] = DEFAULT_MODEL
    drafter: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The drafter; else one from the model's folder, the user's cache or the package.",
        ),
    ] = None
    no_drafter: Annotated[
        bool, typer.Option("--no-drafter", help="Decode plainly, without a drafter.")
    ] = False
    dtype: Annotated[
        str,
        typer.Option(
            metavar="|".join(DTYPES),
            callback=_check_dtype,
            help="Precision of the weights; auto is as stored on a GPU, float32 on a CPU.",
        ),
    ] = "auto"

    def __post_init__(self) -> None:
        """Refuse two options that contradict each other."""
        if self.no_drafter and self.drafter is not None:
            raise typer.BadParameter(
                "it contradicts --drafter; leave one of them out.", param_hint="--no-drafter"
            )

    def load(self) -> LoadedModel:
        """Load the model and show its notices.

        Raises:
            CheckpointError: A file is missing or broken, or the model is not supported.
            ShapeError: The drafter does not fit the model.
        """
        from redrafter_mlx.loading.model import load

        if self.drafter is not None:
            _require_drafter(self.drafter)
        drafter = None if self.no_drafter else self.drafter or "auto"
        with render.progress(f"Loading {self.model} ..."):
            model = load(self.model, drafter=drafter, dtype=self.dtype)
        for notice in model.notices:
            render.note(notice)
        return model


def _require_drafter(folder: Path) -> None:
    """Refuse a wrong folder before the model is fetched and loaded."""
    if not (folder / "config.json").is_file():
        fault = "has no config.json" if folder.is_dir() else "is no folder"
        raise CheckpointError(
            f"The drafter {folder} {fault}; give a folder that redrafter-mlx convert made."
        )


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """What an answer may be, how its tokens are chosen and how they are drafted."""

    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt, in place of the model's.")
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

    def __post_init__(self) -> None:
        """Refuse a system prompt that is no text."""
        if self.system is not None:
            require_utf8(self.system, "The system prompt")

    def generation_config(self) -> GenerationConfig:
        """Return the library's settings.

        Raises:
            ConfigError: A value is out of range.
        """
        sampling = SamplingConfig(
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
        )
        return GenerationConfig(
            max_tokens=self.max_tokens,
            stop=tuple(unescape(text) for text in self.stop or ()),
            sampling=sampling,
            beam=self._beam_shape(),
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
