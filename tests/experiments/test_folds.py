"""Folds that do not exist, or have nothing to test, are one line before the first training."""

import json

import pytest
from support.studies import manifest_study, tiny_set, tiny_study

from smmil.data.manifest import Manifest
from smmil.data.splits import make_splits
from smmil.errors import ConfigError, DataError
from smmil.experiments.grid import _make_grid
from smmil.experiments.study import Dataset
from smmil.synthetic import synthetic_slides, write_synthetic


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags")
    return write_synthetic(folder, synthetic_slides(12, size=(10, 14), dim=4, seed=1))


@pytest.fixture
def splits(bags):
    made = make_splits(Manifest.read(bags), folds=3, val_share=0.5, test_share=0.3)
    return [split.to_dict() for split in made]


def set_of(bags, **changes):
    return Dataset(name="mine", manifest=str(bags), val_share=0.5, test_share=0.3, **changes)


def grid_for(dataset, out, folds=None):
    return _make_grid(tiny_study(datasets=[dataset], folds=folds, learning_rates=[1e-2]), out)


def folds_of(grid):
    return sorted({run.facts["fold"] for run in grid.runs})


def written(path, content):
    path.write_text(json.dumps(content))
    return str(path)


def marked(bags, splits):
    """A manifest that marks every row."""
    table = Manifest.read(bags).table.copy()
    part = {id_: name for name, ids in splits[0].items() for id_ in ids}
    table["split"] = [part[id_] for id_ in table["id"]]
    table.to_csv(bags.parent / "marked.csv", index=False)
    return bags.parent / "marked.csv"


def test_a_fold_that_was_asked_for_must_exist(bags, tmp_path):
    with pytest.raises(ConfigError, match=r"data set 'tiny': fold 7 was asked for, but it has 2 splits, folds 0 to 1"):
        _make_grid(manifest_study(bags, folds=[0, 7]), tmp_path)


def test_a_manifest_that_marks_every_row_has_one_fold_and_that_is_said(bags, splits, tmp_path):
    path = marked(bags, splits)
    grid = grid_for(set_of(path), tmp_path)
    assert folds_of(grid) == [0]
    assert grid.left_out == [f"mine: {path} marks every row, which gives one split, fold 0; no other fold is trained"]
    with pytest.raises(ConfigError, match=r"folds: 5 was asked for, but .*marked.csv marks every row"):
        grid_for(set_of(path, folds=5), tmp_path)


def test_a_file_of_splits_decides_how_many_folds_there_are(bags, splits, tmp_path):
    path = written(tmp_path / "splits.json", splits)
    grid = grid_for(set_of(bags, splits=path), tmp_path)
    assert folds_of(grid) == [0, 1, 2]
    assert grid.left_out == [f"mine: {path} has 3 splits, folds 0 to 2; no other fold is trained"]
    with pytest.raises(ConfigError, match=r"folds: 4 was asked for, but .* has 3 splits"):
        grid_for(set_of(bags, splits=path, folds=4), tmp_path)


def test_splits_that_are_not_used_are_said_not_to_be(bags, splits, tmp_path):
    path = written(tmp_path / "splits.json", splits)
    grid = grid_for(set_of(bags, splits=path, folds=2), tmp_path)
    assert folds_of(grid) == [0, 1]
    assert grid.left_out == [f"mine: {path} has 3 splits, folds 0 to 2; 2 are trained, give the study folds: [...] for others"]  # fmt: skip  # noqa: E501
    assert folds_of(grid_for(set_of(bags, splits=path, folds=2), tmp_path, folds=[2])) == [2]


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_a_fold_without_bags_in_a_part_is_refused_unless_it_is_not_used(bags, splits, tmp_path, part):
    splits[1][part] = []
    path = written(tmp_path / "splits.json", splits)
    with pytest.raises(DataError, match=f"data set 'mine': .*fold 1 has no {part} bags") as found:
        grid_for(set_of(bags, splits=path), tmp_path)
    assert "\n" not in str(found.value)
    assert folds_of(grid_for(set_of(bags, splits=path), tmp_path, folds=[0, 2])) == [0, 2]


def test_a_patient_in_two_parts_of_a_file_of_splits_is_found_before_training(bags, splits, tmp_path):
    splits[2]["val"].append(splits[2]["train"][0])
    with pytest.raises(DataError, match=r"data set 'mine': .*two parts"):
        grid_for(set_of(bags, splits=written(tmp_path / "splits.json", splits)), tmp_path)


def test_splits_that_cannot_be_drawn_are_told_with_the_name_of_the_set(tmp_path):
    with pytest.raises(DataError, match=r"data set 'tiny': .*too few patients"):
        _make_grid(tiny_study(datasets=[tiny_set(folds=9)], folds=[0]), tmp_path)


def test_looking_at_the_splits_does_not_rename_a_run(bags, splits, tmp_path):
    """The number of folds asked for is part of a run's name, the number there are is not."""
    path = written(tmp_path / "splits.json", splits)
    limited, asked = (grid_for(set_of(bags, splits=path), tmp_path, folds).runs for folds in (None, [0, 1, 2]))
    assert [run.key for run in limited] == [run.key for run in asked]
    assert {run.config.data.folds for run in limited} == {5}
