import json

import numpy as np
import pytest
import torch
import typer
from support import foreign_files as foreign
from typer.testing import CliRunner

from smmil.cli.inspect import inspect
from smmil.errors import DataError
from smmil.formats import read_bag, read_provenance
from smmil.frame import Frame

CELLS = foreign.cells()
PROBS = np.random.default_rng(0).dirichlet([1, 1, 1], len(CELLS)).astype(np.float32)


def test_probabilities_are_features_and_corners_are_coordinates(tmp_path):
    path = foreign.wsinfer_csv(tmp_path, PROBS, CELLS * 350)
    bag = read_bag(path)
    assert torch.equal(bag.x, torch.from_numpy(PROBS))
    assert torch.equal(bag.coords, torch.from_numpy(CELLS * 350))
    assert bag.frame == Frame((350, 350))
    assert read_provenance(path) == {"encoder": "wsinfer", "classes": ["class0", "class1", "class2"]}


def test_overlap_shows_in_the_coordinates(tmp_path):
    bag = read_bag(foreign.wsinfer_csv(tmp_path, PROBS, CELLS * 175))
    assert bag.frame == Frame((350, 350), stride=(175, 175))
    assert bag.graph.degrees.int().tolist() == foreign.degrees(CELLS)


def test_patches_of_two_sizes_are_refused(tmp_path):
    path = foreign.wsinfer_csv(tmp_path, PROBS, CELLS * 350)
    path.write_text(path.read_text().replace(",350,350,", ",300,350,", 1))
    with pytest.raises(DataError, match=r"case\.csv: patches of 2 different sizes"):
        read_bag(path)


def test_a_table_without_probabilities_or_with_words_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("minx,miny,width,height\n0,0,1,1\n")
    with pytest.raises(DataError, match="no column prob_"):
        read_bag(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("minx,miny,width,height,prob_a\n0,zero,1,1,0.5\n")
    with pytest.raises(DataError, match="column 'miny' must hold numbers"):
        read_bag(tmp_path / "b.csv")


def test_inspect_tells_patches_from_a_manifest(tmp_path):
    path = foreign.wsinfer_csv(tmp_path, PROBS, CELLS * 350)
    (tmp_path / "m.csv").write_text("id,path,label\na,case.csv,0\nb,case2.csv,1\n")
    app = typer.Typer()
    app.command()(inspect)
    shown = json.loads(CliRunner().invoke(app, ["--json", str(path), str(tmp_path / "m.csv")]).stdout)
    assert shown[0]["format"] == "wsinfer"
    assert shown[1]["bags"] == 2
