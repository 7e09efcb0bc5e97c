"""The command line: one function per verb, each calling one library function."""

import errno
import re
import sys
from importlib import import_module
from inspect import cleandoc

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
    "view",
    "export",
    "package",
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


def _flowing(text: str) -> str:
    """A docstring whose paragraphs are single lines, which the terminal breaks where it ends."""
    paragraphs = cleandoc(text).split("\n\n")
    return "\n\n".join(re.sub(r"\n\s*", " ", paragraph) for paragraph in paragraphs)


for _verb in VERBS:
    _name = _verb.replace("-", "_")
    _function = getattr(import_module(f"smmil.cli.{_name}"), _name)
    app.command(_verb, help=_flowing(_function.__doc__))(_function)

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
        if isinstance(problem, IsADirectoryError):
            place = problem.filename2 or problem.filename
            _give_up(f"{place}: is a folder where a file is to be written; give the name of a file in it")
        if isinstance(problem, FileExistsError | NotADirectoryError):
            _give_up(f"{problem.filename}: is a file where a folder is needed; choose another place, such as --out new")
        _give_up(f"{problem.filename}: {problem.strerror}; choose a place that exists and can be written")


def _give_up(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
