"""``redrafter-mlx generate``: answer one prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrafter_mlx.cli import progress, render
from redrafter_mlx.cli.answer_options import AnswerOptions
from redrafter_mlx.cli.options import ModelOptions, ProgramOptions
from redrafter_mlx.cli.prompt_input import read_stdin, require_utf8
from redrafter_mlx.cli.usage import from_options
from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from redrafter_mlx.cli.compare import Comparison
    from redrafter_mlx.generation import Answer
    from redrafter_mlx.loading.model import LoadedModel


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """What is answered."""

    prompt: Annotated[
        str,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", help="The user's turn; - reads standard input."
        ),
    ]
    raw: Annotated[
        bool, typer.Option("--raw", help="Take the prompt as it is, without the chat template.")
    ] = False

    def text(self) -> str:
        """Return the prompt.

        Raises:
            UsageError: The one of the command line is empty or not UTF-8.
            PromptError: The one of standard input is.
        """
        if self.prompt != "-":
            with from_options():
                return _require_text(require_utf8(self.prompt, "The prompt"))
        return _require_text(read_stdin() if self.raw else read_stdin().removesuffix("\n"))


def _require_text(prompt: str) -> str:
    if not prompt.strip():
        raise PromptError("The prompt is empty; give it some text.")
    return prompt


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is shown."""

    json: Annotated[
        bool,
        typer.Option("--json", help="Show one JSON object: text, token ids, statistics, settings."),
    ] = False
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Decode plainly, too: both speeds, and whether ids agree."),
    ] = False


def generate(
    prompt: PromptOptions,
    model: ModelOptions,
    answer: AnswerOptions,
    output: OutputOptions,
    program: ProgramOptions,
) -> None:
    """Answer one prompt: the text on stdout, all else on stderr."""
    _check_together(prompt, model, answer, output)
    text, config = prompt.text(), answer.generation_config()
    loaded = model.load(answer.thinking, is_shape_chosen=answer.is_shape_chosen)
    if output.compare and loaded.drafter is None and not config.use_lookup:
        raise ConfigError(
            f"--compare has nothing to compare: {loaded.name} has no drafter, and --no-lookup "
            "leaves no other guesses; leave it out, or name a drafter with --drafter."
        )
    prompt_tokens = _encode(loaded, text, answer, is_raw=prompt.raw)
    if output.json:
        _show_json(loaded, prompt_tokens, config, wants_comparison=output.compare)
    else:
        _show_text(loaded, prompt_tokens, config, wants_comparison=output.compare)


def _check_together(
    prompt: PromptOptions, model: ModelOptions, answer: AnswerOptions, output: OutputOptions
) -> None:
    if prompt.raw and answer.system is not None:
        raise typer.BadParameter(
            "a raw prompt has no system prompt; leave one of them out.", param_hint="--system"
        )
    if prompt.raw and answer.thinking is not None:
        raise typer.BadParameter(
            "a raw prompt has no template that switches it; leave one of them out.",
            param_hint="--thinking" if answer.thinking else "--no-thinking",
        )
    if output.compare and answer.beam_length == 1:
        raise typer.BadParameter(
            "there is nothing to compare without a draft; leave out --beam-length 1.",
            param_hint="--compare",
        )
    if output.compare and model.no_drafter and answer.no_lookup:
        raise typer.BadParameter(
            "there is nothing to compare without a draft; leave out --no-drafter or --no-lookup.",
            param_hint="--compare",
        )


def _encode(model: LoadedModel, text: str, answer: AnswerOptions, *, is_raw: bool) -> list[int]:
    from redrafter_mlx.generation import chat_prompt
    from redrafter_mlx.text import encode

    if is_raw:
        return encode(model.tokenizer, text, add_special_tokens=True)
    return chat_prompt(model, text, answer.system, thinking=answer.thinking)


def _show_text(
    model: LoadedModel,
    prompt: Sequence[int],
    config: GenerationConfig,
    *,
    wants_comparison: bool,
) -> None:
    with render.AnswerWriter() as writer:
        answer = _stream(model, prompt, config, writer.write)
    ending = render.CUT if answer.finish_reason == "length" else None
    if wants_comparison:
        # The speed of this first run would stand beside that of the timed ones.
        render.length_line(answer.stats, ending)
        comparison = _compare(model, prompt, config)
        _show_comparison(comparison)
        if config.timed_every:
            render.note("drafted, the two timed runs together:")
            render.acceptance(comparison.counts)
            render.round_parts(answer.stats)
        return
    render.stats_line(answer.stats, ending)
    if config.timed_every:
        render.stats_details(answer.stats)


def _stream(
    model: LoadedModel,
    prompt: Sequence[int],
    config: GenerationConfig,
    show: Callable[[str], None],
) -> Answer:
    """Show the answer while it comes, and return it."""
    from redrafter_mlx.generation import Answer, stream_generate

    chunks = []
    with progress.PromptProgress() as reading:
        for chunk in stream_generate(model, prompt, config, on_prefill=reading.show):
            reading.clear()
            show(chunk.text)
            chunks.append(chunk)
    return Answer.of(chunks, prompt)


def _compare(model: LoadedModel, prompt: Sequence[int], config: GenerationConfig) -> Comparison:
    from redrafter_mlx.cli.compare import compare

    with progress.activity("Comparing with plain decoding ..."):
        return compare(model, prompt, config)


def _show_comparison(comparison: Comparison) -> None:
    render.table(
        {
            name: {
                "tokens/s": f"{speed.tokens_per_second:.1f}",
                "tokens/round": f"{speed.tokens_per_round:.2f}",
            }
            for name, speed in (("drafted", comparison.drafted), ("plain", comparison.plain))
        }
    )
    render.note(comparison.sentence)


def _show_json(
    model: LoadedModel,
    prompt: Sequence[int],
    config: GenerationConfig,
    *,
    wants_comparison: bool,
) -> None:
    from redrafter_mlx.cli.versions import versions

    answer = _stream(model, prompt, config, lambda text: None)
    values: dict[str, Any] = {
        "text": answer.text,
        "tokens": answer.tokens,
        "prompt_tokens": answer.prompt_tokens,
        "finish_reason": answer.finish_reason,
        "statistics": answer.stats.to_dict(),
        "settings": _settings(model, config),
        "model": model.name,
        "drafter": model.drafter.config.to_dict() if model.drafter else None,
        "versions": versions(),
    }
    if wants_comparison:
        values["comparison"] = _compare(model, prompt, config).to_dict()
    render.json_object(values)


def _settings(model: LoadedModel, config: GenerationConfig) -> dict[str, Any]:
    """Return the settings; the beam is the one in use, None where nothing is drafted."""
    beam = asdict(config.beam or model.beam_shape) if model.drafter else None
    use_drafter = config.use_drafter and model.drafter is not None
    return {**asdict(config), "beam": beam, "use_drafter": use_drafter}
