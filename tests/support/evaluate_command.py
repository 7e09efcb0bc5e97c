"""Folders of predictions, and `smmil evaluate` run in this process."""

import numpy as np
import typer
from typer.testing import CliRunner

from smmil.cli.evaluate import evaluate
from smmil.prediction import Prediction

app = typer.Typer()
app.command()(evaluate)


def write(folder, prefix="c", noise=0.5, n=6):
    rng = np.random.default_rng(len(prefix))
    for i in range(n):
        y = i % 2
        truth = (np.arange(20) < 4) & bool(y)
        scores = truth + noise * rng.normal(size=20)
        chain = np.stack([np.arange(19), np.arange(1, 20)])
        Prediction(f"{prefix}{i}", [0.3 + 0.4 * y], scores, edges=chain, y=y, y_inst=truth).save(folder / f"{i}.npz")
    return folder


def run(*arguments):
    found = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "160"})
    assert found.exit_code == 0, found.output
    return found.output
