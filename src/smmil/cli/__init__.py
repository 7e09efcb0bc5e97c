"""The command line: one function per verb, each calling one library function."""

import errno
import sys
from importlib import import_module

import typer

from smmil.errors import SmmilError

VERBS = (
    "demo",
    "source",
    "prepare",
    "train",
    "predict",
    "evaluate",
    "report",
    "export",
    "convert",
    "convert-weights",
    "models",
    "inspect",
    "doctor",
)

app = typer.Typer(
    name="smmil",
    help="Multiple instance learning that can be trusted to localize.\n\nStart with: [bold]smmil demo[/bold]",
    epilog="Every verb explains itself with an example: smmil train --help",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for _verb in VERBS:
    _name = _verb.replace("-", "_")
    app.command(_verb)(getattr(import_module(f"smmil.cli.{_name}"), _name))

app.add_typer(import_module("smmil.cli.experiment").app, name="experiment")


def _print_version(wanted: bool) -> None:
    if wanted:
        from smmil import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _smmil(
    version: bool = typer.Option(
        False, "--version", help="Print the version and stop.", is_eager=True, callback=_print_version
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line; a mistake of the user is one line and exit code 2, our own a traceback and 1."""
    try:
        app()
    except SmmilError as problem:
        _give_up(str(problem))
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            _give_up(f"the disk is full ({problem.filename or 'while writing'}); make room and repeat the command")
        if problem.filename is None:
            raise
        _give_up(f"{problem.filename}: {problem.strerror}; choose a place that exists and can be written")


def _give_up(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
