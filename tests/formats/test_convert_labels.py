"""Labels of instances that lie beside the bag files go where the files go, or are listed as lost."""

import numpy as np
import pytest
import typer
from support import foreign_files as foreign
from support.bags import chain_bag
from typer.testing import CliRunner

from smmil.bag import Bag
from smmil.cli.convert import convert as verb
from smmil.data.foreign_tables import ManifestLabels
from smmil.formats import read_bag, write_bag
from smmil.formats.convert import convert

CELLS = foreign.cells()
X = foreign.features(len(CELLS))


def run(*words):
    app = typer.Typer()
    app.command()(verb)
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)


def labelled_study(folder):
    """A study as smmil prepare writes it: bags/, instance_labels/, manifest.csv."""
    bag = chain_bag(5)
    write_bag(folder / "bags" / "a.h5", Bag("a", bag.x, bag.coords, bag.frame), graph="none")
    (folder / "instance_labels").mkdir()
    (folder / "instance_labels" / "a.csv").write_text("label\n0\n1\n-1\n1\n0\n")
    (folder / "manifest.csv").write_text("id,path,label,instance_labels\na,bags/a.h5,1,instance_labels/a.csv\n")
    return folder


@pytest.mark.parametrize("named", [".", "bags", "bags/a.h5"])
def test_instance_labels_beside_the_bags_are_taken_along(tmp_path, named):
    study = labelled_study(tmp_path / "study")
    told = run(study / named, "--to", "native", "--out", tmp_path / "out")
    assert told.exit_code == 0, told.output
    assert read_bag(tmp_path / "out" / "a.h5").y_inst.tolist() == [0, 1, -1, 1, 0]
    assert "instance labels: taken from the files that" in told.stdout


def test_instance_labels_beside_the_bags_that_a_format_cannot_hold_are_listed_as_lost(tmp_path):
    for name in ("a", "b"):
        foreign.clam_files(tmp_path, X, CELLS * 512, name=name, patch_size=512)
    np.save(tmp_path / "a.npy", np.ones(len(CELLS), int))
    (tmp_path / "manifest.csv").write_text("id,path,instance_labels\na,h5_files/a.h5,a.npy\nb,h5_files/b.h5,\n")
    told = run(tmp_path / "h5_files", "--to", "trident", "--encoder", "e", "--mpp", 0.5, "--out", tmp_path / "out")
    assert "lost: instance labels (1 case)" in told.stdout


def test_instance_labels_beside_the_bags_must_fit(tmp_path):
    study = labelled_study(tmp_path / "study")
    (study / "instance_labels" / "a.csv").write_text("label\n0\n1\n")
    done = convert(study, to="native", out=tmp_path / "out", beside=ManifestLabels(study))
    assert "2 instance labels beside it for 5 instances" in str(done.failed)


def test_a_name_that_is_a_formula_fails_its_case(tmp_path):
    write_bag(tmp_path / "in" / "x.h5", Bag("=x", chain_bag(5).x), graph="none")
    done = convert(tmp_path / "in", to="native", out=tmp_path / "out")
    assert "'=x' would be a formula" in str(done.failed)
