"""The console entry: the commands and the options that stand before them."""

from __future__ import annotations

import typer

from redrafter_mlx.cli import (
    bench,
    chat,
    convert,
    distill,
    generate,
    models,
    render,
    train,
    tune,
)
from redrafter_mlx.cli.option_groups import grouped
from redrafter_mlx.cli.options import Debug, Version
from redrafter_mlx.cli.program import Program

PROGRAM_NAME = "redrafter-mlx"

app = typer.Typer(
    cls=Program,
    add_completion=False,
    # Without markup Typer leaves rich alone, which halves the time of --help.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def program(context: typer.Context, version: Version = False, debug: Debug = False) -> None:
    """Run a language model with a recurrent drafter that guesses ahead; the text is the model's."""
    if context.invoked_subcommand is None:
        render.note(context.get_help())
        raise typer.Exit(2)


COMMANDS = (
    generate.generate,
    chat.chat,
    tune.tune,
    bench.bench,
    convert.convert,
    models.models,
    distill.distill,
    train.train,
)
for command in COMMANDS:
    app.command()(grouped(command))


def main() -> None:
    """Run the command line and leave the process."""
    app(prog_name=PROGRAM_NAME)


if __name__ == "__main__":
    main()
