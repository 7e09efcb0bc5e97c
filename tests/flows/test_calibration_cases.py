"""smmil calibrate --run: another model, and cases that trained the model under other names, are refused."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from smmil.cli import app
from smmil.data.splits import run_split
from smmil.errors import DataError
from smmil.evaluate.calibration import Calibration
from smmil.predict.cases import check_against_run
from smmil.prediction import load_predictions
from smmil.synthetic.features import synthetic_slides, write_synthetic

QUICK = ["training.epochs=1", "training.threads=1", "model.options.dim=8", "model.options.att_dim=4"]


def smmil(*words):
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """A run, another of the same bags, and predictions of new bags among which two trained it under other names."""
    root = tmp_path_factory.mktemp("road")
    bags = synthetic_slides(60, dim=16, size=(20, 30), seed=0)
    manifest = write_synthetic(root / "bags", bags[:24])
    for name, seed in (("run", 0), ("other", 1)):
        settings = [word for setting in [*QUICK, f"training.seed={seed}"] for word in ("--set", setting)]
        smmil("train", "--manifest", manifest, "--model", "sm_ap", *settings, "--out", root / name)
    fresh = write_synthetic(root / "fresh", bags[24:])
    split = run_split(root / "run")
    seen = [bag for bag in bags if bag.id in (split.train[0], split.val[0])]
    copies = [replace(bag, id=f"copy{i}") for i, bag in enumerate(seen)]
    leaked = write_synthetic(root / "leaked", [*bags[24:], *copies])
    smmil("predict", root / "run", "--manifest", fresh, "--out", root / "p_fresh")
    smmil("predict", root / "run", "--manifest", leaked, "--out", root / "p_leaked")
    return root


def test_new_cases_are_accepted_and_nothing_is_left_to_be_supposed(road, tmp_path):
    said = smmil("calibrate", road / "p_fresh", "--run", road / "run", "--target", 0.2, "--out", tmp_path / "c.json")
    assert "that the model had not seen" in said
    made = Calibration.load(tmp_path / "c.json")
    assert made.promise
    assert "supposed" not in made.conditions
    assert "in part only" not in made.conditions
    plain = smmil("calibrate", road / "p_fresh", "--target", 0.2, "--out", tmp_path / "d.json")
    assert "it is supposed" in plain


def test_another_run_than_that_of_the_predictions_is_refused(road, tmp_path):
    with pytest.raises(DataError, match=r"predicted by weights \w{12}, but .*other has .*give the run that made the"):
        smmil("calibrate", road / "p_fresh", "--run", road / "other", "--target", 0.2, "--out", tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()


def test_cases_that_trained_the_model_under_other_names_are_refused_by_what_is_in_them(road, tmp_path):
    options = ("--run", road / "run", "--target", 0.2, "--out", tmp_path / "c.json")
    with pytest.raises(DataError, match="copy0: this case trained the model or selected its weights, as 2 of 38 did"):
        smmil("calibrate", road / "p_leaked", *options)
    assert "No promise: 2 of the 38" in smmil("calibrate", road / "p_leaked", *options, "--force")


def test_what_older_files_and_lost_bags_leave_open_is_said(road, tmp_path):
    old = [
        replace(p, meta={k: v for k, v in p.meta.items() if k != "bag_digest"})
        for p in load_predictions(road / "p_leaked")
    ]
    for p in old:
        p.save(tmp_path / "old" / f"{p.id}.npz")
    said = smmil("calibrate", tmp_path / "old", "--run", road / "run", "--target", 0.2, "--out", tmp_path / "c.json")
    assert "could be checked in part only: 38 of 38 predictions do not record what is in their bags" in said
    nameless = [replace(p, meta={k: v for k, v in p.meta.items() if k != "weights"}) for p in old]
    assert check_against_run(road / "run", nameless)[1][0] == "38 of 38 predictions do not record their weights"
    hidden = road / "bags_away"
    (road / "bags").rename(hidden)
    try:
        seen, unchecked = check_against_run(road / "run", load_predictions(road / "p_leaked"))
    finally:
        hidden.rename(road / "bags")
    assert seen == set()
    assert unchecked == ["the bags of the run cannot be read"]  # no path, no case
