"""The command line as the tests of whole roads walk it: every verb in this process, a tiny encoder and a tiny model."""

from typer.testing import CliRunner

from smmil.cli import app
from support import prepare_makers as makers

PREPARE = ("--encoder", makers.ENCODER, "--executor", "serial")


def tiny(epochs=1):
    """Options of smmil train for a model of eight dimensions that is soon done."""
    chosen = ("data.folds=2", "model.options.dim=8", f"training.epochs={epochs}", "training.threads=1")
    return [word for one in chosen for word in ("--set", one)]


def smmil(*words, code=0):
    """What a command prints, when it ends with this exit code; its error is raised."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output
