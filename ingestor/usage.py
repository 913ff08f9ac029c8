"""What commands have in common: some options, examples in `--help`, what is run when none is named."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from ingestor.config.settings import Settings

DEFAULT = "run"
OWN_OPTIONS = ("--help", "--version", "--show-completion", "--install-completion")
"""All other options that come first are those of the default command."""
PROGRAM, INSTALLED = "python -m ingestor", "ingestor"
COMPLETION = "_INGESTOR_COMPLETE"
"""The variable by which a shell asks for completions; they are of the installed script."""

Config = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration, in YAML.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override a setting; may be given again."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Commands(TyperGroup):
    """The commands, whose help also has the options of the default one."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options and commands, then the options of the default command."""
        super().format_options(ctx, formatter)
        parameters = self.commands[DEFAULT].params
        records = [parameter.get_help_record(ctx) for parameter in parameters]
        with formatter.section(f"Options of {DEFAULT}, the command when none is named"):
            formatter.write_dl([record for record in records if record])


def examples(*lines: str) -> str:
    """The end of a command's help; not wrapped, so that it can be copied."""
    return "\b\nExamples:\n" + "\n".join(f"  {PROGRAM} {line}" for line in lines)


def with_command(arguments: list[str]) -> list[str]:
    """Name the default command where options come without one."""
    first = arguments[0] if arguments else ""
    return [DEFAULT, *arguments] if first.startswith("-") and first not in OWN_OPTIONS else arguments


def name_of(arguments: list[str]) -> str:
    """What the program is called in messages; a shell can complete the installed script alone."""
    return INSTALLED if arguments and arguments[0].endswith("-completion") else PROGRAM


def show(lines: Iterable[object]) -> None:
    """Print on stdout; what is more than text, as rich as the terminal can show it."""
    for line in lines:
        if isinstance(line, str) or not sys.stdout.isatty():
            typer.echo(str(line))
        else:
            from rich.console import Console

            Console(highlight=False, markup=False, emoji=False).print(line)


def read_settings(config: Path, overrides: list[str] | None) -> Settings:
    from ingestor.config.settings import load

    return load(config, overrides or [])
