"""Several models, or one with dropout at work, as one prediction: means, deviations, and what is refused."""

import numpy as np
import pytest
from typer.testing import CliRunner

from smmil.cli import app
from smmil.config import load_config
from smmil.errors import ConfigError
from smmil.predict import predict_ensemble, predict_run
from smmil.predict.inference import _combined, _scale
from smmil.prediction import Prediction, load_predictions
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train import train


def trained(folder, name, model="sm_ap", *changes):
    usual = ["training.epochs=2", "training.threads=1", "model.options.dim=8", "data.folds=2", "data.val_share=0.5"]
    manifest = f"data.manifest={folder / 'study' / 'manifest.csv'}"
    train(load_config(None, [manifest, f"model.name={model}", *usual, *changes]), folder / name)
    return folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_synthetic(folder / "study", synthetic_slides(12, seed=3, size=(12, 20), dim=5))
    return [trained(folder, f"seed{seed}", "sm_ap", f"training.seed={seed}") for seed in range(2)]


def case(scores, probs, kind="attention logit", **meta):
    return Prediction("a", probs, np.array(scores, np.float32), meta={"score_kind": kind, "weights": "w", **meta})


def test_means_and_deviations_by_hand():
    members = [case([1.0, 3.0], [0.2]), case([10.0, 20.0], [0.4])]
    scales = [_scale([p]) for p in members]
    assert scales == [(2.0, 1.0), (15.0, 5.0)]
    found = _combined([members[0], case([20.0, 10.0], [0.4])], scales)
    # brought to one scale: (-1, 1) and (1, -1)
    assert found.scores[:, 0].tolist() == [0, 0]
    assert found.uncertainty.tolist() == pytest.approx([2**0.5, 2**0.5])
    assert found.probs.tolist() == pytest.approx([0.3])
    assert found.meta["score_kind"] == "standardised attention logit"
    assert found.meta["ensemble"]["probs_deviation"] == pytest.approx([0.1 * 2**0.5])


def test_scores_that_mean_the_same_in_every_run_keep_their_scale():
    members = [case([1.0, 3.0], [0.2], "instance logit"), case([3.0, 7.0], [0.4], "instance logit")]
    found = _combined(members, [_scale([p]) for p in members])
    assert found.scores[:, 0].tolist() == [2, 5]
    assert found.meta["score_kind"] == "instance logit"


def test_an_ensemble_is_the_mean_of_what_its_runs_predict(runs, tmp_path):
    done = predict_ensemble(runs, out=tmp_path / "both")
    alone = [{p.id: p for p in load_predictions(predict_run(r, out=tmp_path / r.name).paths)} for r in runs]
    scales = [_scale(load_predictions(predict_run(r, out=tmp_path / f"{r.name}_val", part="val").paths)) for r in runs]
    found = load_predictions(tmp_path / "both")
    assert [p.id for p in found] == sorted(alone[0])
    assert len(done.written) == len(found)
    for prediction in found:
        members = [member[prediction.id] for member in alone]
        scaled = [(p.scores - low) / size for p, (low, size) in zip(members, scales, strict=True)]
        assert np.allclose(prediction.scores, sum(scaled) / 2, atol=1e-6)
        assert np.allclose(prediction.uncertainty, np.abs(scaled[0] - scaled[1])[:, 0] / 2**0.5, atol=1e-6)
        assert np.allclose(prediction.probs, (members[0].probs + members[1].probs) / 2)
        assert prediction.meta["split"] == members[0].meta["split"]
        assert "seed" not in prediction.meta
        assert prediction.meta["model"] == "ensemble of 2: sm_ap"
        assert np.array_equal(prediction.coords, members[0].coords)


def test_a_case_scores_the_same_in_any_company(runs, tmp_path):
    found = {}
    for part in ("test", "val", "all"):
        predict_ensemble(runs, out=tmp_path / part, part=part)
        found |= {(part, p.id): p for p in load_predictions(tmp_path / part)}
    for (part, id_), p in found.items():
        assert np.array_equal(p.scores, found["all", id_].scores), part
        assert np.array_equal(p.uncertainty, found["all", id_].uncertainty)
        assert p.meta["ensemble"]["scaled_on"] == ["validation cases of the run"] * 2
    val = np.concatenate([p.scores for (part, _), p in found.items() if part == "val"])
    assert abs(val.mean()) < 1e-5


def test_without_the_bags_of_the_runs_the_predicted_cases_give_the_scale_and_the_file_says_so(runs, tmp_path):
    write_synthetic(tmp_path / "other", synthetic_slides(3, seed=9, size=(12, 20), dim=5))
    manifest = runs[0].parent / "study" / "manifest.csv"
    gone = manifest.rename(tmp_path / "gone.csv")
    try:
        predict_ensemble(runs, out=tmp_path / "both", manifest=tmp_path / "other" / "manifest.csv")
    finally:
        gone.rename(manifest)
    found = load_predictions(tmp_path / "both")
    scores = np.concatenate([p.scores for p in found])
    assert len(found) == 3
    assert abs(scores.mean()) < 1e-5
    here = "the cases predicted here: validation cases cannot be read"
    assert all(p.meta["ensemble"]["scaled_on"] == [here] * 2 for p in found)


def test_repeating_keeps_what_is_done(runs, tmp_path):
    first = predict_ensemble(runs, out=tmp_path)
    before = {p: p.read_bytes() for p in first.written}
    first.written[0].unlink()
    again = predict_ensemble(runs, out=tmp_path)
    assert again.written == first.written[:1]
    assert sorted(again.kept) == sorted(first.written[1:])
    assert {p: p.read_bytes() for p in before} == before


def test_the_command_says_what_it_did(runs, tmp_path):
    done = CliRunner().invoke(app, ["predict", "--ensemble", *map(str, runs), "--out", str(tmp_path / "both")])
    assert done.exit_code == 0, done.output
    assert "2 written, 0 there already, 0 failed" in done.output.replace("\n", "")


def test_runs_that_were_split_in_other_ways_are_refused(runs, tmp_path):
    other = trained(runs[0].parent, "other", "sm_ap", "data.fold=1")
    with pytest.raises(ConfigError, match="belongs to another part of its split"):
        predict_ensemble([runs[0], other], out=tmp_path / "all", part="all")
    assert len(predict_ensemble([runs[0], other], out=tmp_path / "test").written) == 2  # these neither has seen


def test_one_run_is_no_ensemble(runs, tmp_path):
    with pytest.raises(ConfigError, match="at least two runs"):
        predict_ensemble(runs[:1], out=tmp_path)


def test_dropout_at_work_gives_a_mean_and_a_deviation(runs, tmp_path):
    run = trained(runs[0].parent, "clam", "clam")
    drawn = load_predictions(predict_run(run, out=tmp_path / "mc", mc_dropout=20).paths)
    plain = load_predictions(predict_run(run, out=tmp_path / "plain").paths)
    for a, b in zip(drawn, plain, strict=True):
        assert b.uncertainty is None
        assert a.uncertainty.min() > 0
        assert a.meta == {**b.meta, "mc_dropout": 20, "probs_deviation": a.meta["probs_deviation"]}
        assert np.abs(a.scores - b.scores).mean() < 3 * a.uncertainty.mean()
    assert len(predict_run(run, out=tmp_path / "mc", mc_dropout=20).kept) == len(drawn)
    assert len(predict_run(run, out=tmp_path / "mc").written) == len(drawn)
    with pytest.raises(ConfigError, match="model sm_ap has no layer of dropout"):
        predict_run(runs[0], out=tmp_path / "no", mc_dropout=4)
