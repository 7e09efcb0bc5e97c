"""`smmil explain` on a run: folders of maps, resuming, failures, the table of faithfulness, and who reads the maps."""

import csv
import shutil
import sys

import numpy as np
import pytest

import smmil.cli
from smmil.config import load_config
from smmil.evaluate import summary
from smmil.formats import read_bag
from smmil.predict import METHODS, Explanation, explain, explain_run, load_run, predict_run
from smmil.prediction import Prediction, load_predictions
from smmil.report import write_report
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    manifest = write_synthetic(folder / "study", synthetic_slides(12, seed=3, size=(12, 25), dim=5))
    changes = ["training.epochs=1", "training.threads=1", "model.options.dim=8", "data.folds=2", "data.val_share=0.5"]
    train(load_config(None, [f"data.manifest={manifest}", "model.name=sm_ap", *changes]), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def maps(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("maps")
    explain_run(run, [Explanation(name) for name in METHODS], out=out, measure=True, repeats=1)
    return out


@pytest.fixture
def smmil_main(monkeypatch, capsys):
    """Call the command line in this process; gives exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["smmil", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            smmil.cli.main()
        told = capsys.readouterr()
        return left.value.code or 0, told.out, told.err

    return call


def test_every_method_has_a_folder_of_maps_with_the_probabilities_of_the_model(run, maps, tmp_path):
    plain = {p.id: p for p in load_predictions(predict_run(run, out=tmp_path).paths)}
    model, _ = load_run(run)
    for method, kind in METHODS.items():
        found = load_predictions(maps / method)
        assert {p.id for p in found} == set(plain)
        bag = read_bag(run.parent / "study" / "bags" / f"{found[0].id}.h5")
        np.testing.assert_allclose(found[0].scores, explain(model, [bag], method)[0].scores, rtol=1e-4, atol=1e-6)
        for one in found:
            assert np.array_equal(one.probs, plain[one.id].probs)
            assert one.meta["score_kind"] == (kind or "attention logit")
            assert one.meta["explained"] == {"method": method}
            assert one.meta["weights"] == plain[one.id].meta["weights"]
            assert np.array_equal(one.edges, plain[one.id].edges)


def test_the_table_of_faithfulness_has_a_row_per_method_and_files_hold_the_curves(maps):
    with open(maps / "faithfulness.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["map"] for row in rows] == list(METHODS)
    assert {row["model"] for row in rows} == {"sm_ap"}
    for row in rows:
        cases = load_predictions(maps / row["map"])
        held = [p.meta["faithfulness"] for p in cases]
        for p, curves in zip(cases, held, strict=True):
            assert curves["deletion"][0] == curves["insertion"][-1] == pytest.approx(p.probs[0], rel=1e-5)
            assert curves["deletion"][-1] == curves["insertion"][0] == curves["random"][0]
        lower = [np.array(c["random"])[::-1] - c["deletion"] for c in held]
        gains = [(np.diff(c["removed"]) * (a[1:] + a[:-1]) / 2).sum() for c, a in zip(held, lower, strict=True)]
        assert float(row["deletion_gain"]) == pytest.approx(np.mean(gains), abs=1e-9)
        assert row["deletion_gain_low"] == row["deletion_gain_high"] == f"– ({len(cases)} patients)"


def test_repeating_keeps_files_and_curves_and_another_setting_makes_them_anew(run, tmp_path):
    methods = [Explanation("drop", block=2)]
    first = explain_run(run, methods, out=tmp_path, measure=True, repeats=1)
    before = {p: p.read_bytes() for p in first.done["drop"].paths}
    again = explain_run(run, methods, out=tmp_path, measure=True, repeats=1)
    assert again.done["drop"].written == []
    assert again.faithfulness == first.faithfulness
    assert {p: p.read_bytes() for p in again.done["drop"].paths} == before
    other = explain_run(run, methods, out=tmp_path, measure=True, repeats=2)
    assert other.done["drop"].written == []
    assert other.faithfulness != first.faithfulness
    assert len(explain_run(run, [Explanation("drop", block=3)], out=tmp_path).done["drop"].written) == len(before)


def test_damaged_curves_are_computed_again(run, tmp_path):
    methods = [Explanation("gradient")]
    first = explain_run(run, methods, out=tmp_path, measure=True, repeats=1)
    for path, wrong in zip(first.done["gradient"].paths, ([], {"deletion": "x"}, {"deletion": [0.0]}), strict=False):
        one = Prediction.load(path)
        one.meta["faithfulness"] = {**one.meta["faithfulness"], **wrong} if wrong else wrong
        one.save(path)
    assert explain_run(run, methods, out=tmp_path, measure=True, repeats=1).faithfulness == first.faithfulness


def test_the_command_writes_maps_prints_the_table_and_says_what_failed(run, tmp_path, smmil_main):
    arguments = ["explain", run, "--method", "gradient", "--method", "integrated-gradients", "--out", tmp_path / "m"]
    code, told, _ = smmil_main(*arguments, "--faithfulness", "--repeats", "1")
    assert code == 0
    assert "gradient: 2 written, 0 there already, 0 failed" in told
    assert "the sum misses f(x) - f(baseline) by 0.0" in told
    assert "Faithfulness of sm_ap, 2 cases" in told
    assert (tmp_path / "m" / "faithfulness.csv").exists()
    shutil.copytree(run.parent / "study", tmp_path / "study")
    (tmp_path / "study" / "bags" / "slide_0003.h5").unlink()
    manifest = ["--manifest", tmp_path / "study" / "manifest.csv", "--out", tmp_path / "n"]
    code, told, noted = smmil_main("explain", run, "--method", "lrp", "--faithfulness", *manifest)
    assert code == 3
    assert "lrp: 11 written, 0 there already, 1 failed" in told
    assert "slide_0003.h5" in noted
    assert (tmp_path / "n" / "lrp" / "failures.csv").exists()
    (tmp_path / "study" / "bags" / "slide_0004.h5").unlink()
    code, told, noted = smmil_main("explain", run, "--method", "lrp", "--faithfulness", "--seed", "1", *manifest)
    assert code == 3
    assert "lrp: 0 written, 11 there already, 1 failed" in told
    assert "slide_0004.h5" in noted
    assert "slide_0004" in (tmp_path / "n" / "failures.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "give the --out folder of smmil train"),
        (["RUN", "--block", "4"], "--block: is for --method drop, which is not among integrated-gradients"),
        (["RUN", "--method", "drop", "--steps", "4"], "--steps: is for --method integrated-gradients"),
        (["RUN", "--method", "drop", "--block", "0"], "block: must be a whole number of at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(run, arguments, words, tmp_path, smmil_main):
    given = [str(run) if word == "RUN" else word for word in arguments]
    code, _, told = smmil_main("explain", *given, "--out", tmp_path)
    assert (code, told.count("\n")) == (2, 1)
    assert words in told


def test_evaluate_report_and_exports_read_the_maps(run, maps, tmp_path, smmil_main):
    for method in METHODS:
        found = summary(load_predictions(maps / method))
        assert found["instance"]["all"]["score_kind"] == (METHODS[method] or "attention logit")
    code, told, _ = smmil_main("evaluate", maps)
    assert code == 0
    assert "lrp" in told
    write_report([maps / "lrp", maps / "drop"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert METHODS["lrp"] in page
    assert METHODS["drop"] in page
    code, _, _ = smmil_main("export", maps / "lrp", "--to", "geojson", "--out", tmp_path / "geojson")
    assert code == 0
    assert METHODS["lrp"] in next((tmp_path / "geojson").glob("*.geojson")).read_text()
