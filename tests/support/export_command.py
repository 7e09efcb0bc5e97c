"""A case of two tiles, and `smmil export` run in this process."""

import typer
from typer.testing import CliRunner

from smmil.cli.export import export
from smmil.errors import SmmilError
from smmil.frame import Frame
from smmil.prediction import Prediction
from support.export_makers import META

app = typer.Typer()
app.command()(export)


def run(*arguments, code=0):
    found = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    if isinstance(found.exception, SmmilError):
        raise found.exception
    assert found.exit_code == code, found.output
    return found.output


def tile_case(id_="c"):
    return Prediction(id_, [0.5], [1.0, 2.0], coords=[[0, 0], [8, 0]], frame=Frame((8, 8)), meta=META)
