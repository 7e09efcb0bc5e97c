"""The command line: one function per verb, each calling one library function."""

import errno
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from inspect import cleandoc

import typer

from smmil.errors import ConfigError, SmmilError, ToldByAnother

VERBS = (
    "demo",
    "source",
    "prepare",
    "train",
    "predict",
    "explain",
    "evaluate",
    "calibrate",
    "drift",
    "suggest",
    "report",
    "view",
    "export",
    "package",
    "convert",
    "convert-weights",
    "models",
    "encoders",
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


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph of a docstring, so that the terminal wraps them."""
    paragraphs = cleandoc(text).split("\n\n")
    return "\n\n".join(re.sub(r"\n\s*", " ", paragraph) for paragraph in paragraphs)


for _verb in VERBS:
    _name = _verb.replace("-", "_")
    _function = getattr(import_module(f"smmil.cli.{_name}"), _name)
    _class = getattr(import_module(f"smmil.cli.{_name}"), f"_{_verb.title()}Command", None)
    app.command(_verb, cls=_class, help=_unwrapped(_function.__doc__))(_function)

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
    """Run the command line; user errors are one line and exit code 2, bugs a traceback and exit code 1."""
    signal.signal(signal.SIGTERM, _stop)
    # threads that wait for each other sleep: while they spin, no other process gets the core that one of them waits for
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["PYTHONSAFEPATH"] = "1"  # for processes started from here: they do not import from the working folder
    try:
        with _one_of_several():
            app()
    except ToldByAnother:
        time.sleep(_LISTENING_S)
        sys.exit(2)
    except SmmilError as problem:
        _fail(str(problem))
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            _fail(f"the disk is full ({problem.filename or 'while writing'}); make room and repeat the command")
        if problem.filename is None:
            raise
        if isinstance(problem, IsADirectoryError):
            place = problem.filename2 or problem.filename
            _fail(f"{place}: is a folder where a file is to be written; give the name of a file in it")
        if isinstance(problem, FileExistsError | NotADirectoryError):
            _fail(f"{problem.filename}: is a file where a folder is needed; choose another place, such as --out new")
        _fail(f"{problem.filename}: {problem.strerror}; choose a place that exists and can be written")


_TOGETHER = ("train", "predict")  # verbs that several processes can do as one
_LISTENING_S = 1.0  # torchrun stops all processes when the first of them ends: the one that tells the error must be it


@contextmanager
def _one_of_several() -> Iterator[None]:
    """Where torchrun started several processes, join them; only the first one writes to the terminal."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "LOCAL_RANK" not in os.environ:
        yield
        return
    from smmil.ranks import process_group

    with process_group() as ranks:
        verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if verb not in _TOGETHER:
            raise ConfigError(f"{verb or 'smmil'}: torchrun is for smmil {' and smmil '.join(_TOGETHER)}; run it alone")
        if ranks.first:
            yield
            return
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


def _stop(number: int, _frame: object) -> None:
    """Unwind, so that temporary files are removed and workers end; commands with a better way have their own."""
    print("stopped by SIGTERM; what is done is kept, repeat the command to go on", file=sys.stderr)
    sys.exit(128 + number)


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
