"""Published slice attention of three trained models on real CT scans: known values must come out again."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from smmil.evaluate import bootstrap_ci, compare, instance_metrics, position_prior
from smmil.prediction import Prediction, load_predictions

FOLDER = Path(os.environ.get("SMMIL_DATA", "")) / "rsna_attention"
needs_data = pytest.mark.skipif(
    not os.environ.get("SMMIL_DATA") or not FOLDER.is_dir(), reason="set SMMIL_DATA to a folder with rsna_attention/"
)


def scans(model):
    truth = pd.read_csv(FOLDER / "testing_example.csv")
    said = pd.read_csv(FOLDER / f"att_{model}.csv").drop_duplicates(["instance_name", "bag_name"])
    rows = truth.merge(said, on=["instance_name", "bag_name"]).sort_values(["bag_name", "order"])
    return [
        Prediction(
            id=name,
            probs=[np.clip(scan.bag_cnn_probability.iloc[0], 0, 1)],
            scores=scan.cnn_prediction.to_numpy(),
            coords=scan[["order"]].to_numpy(),
            y=int(scan.bag_label.iloc[0]),
            y_inst=scan.instance_label.to_numpy(),
        )
        for name, scan in rows.groupby("bag_name")
    ]


@needs_data
@pytest.mark.parametrize(
    ("model", "pooled", "single"), [("baseline", 0.777, 0.799), ("0_5", 0.804, 0.829), ("0_9", 0.775, 0.802)]
)
def test_real_slice_attention_gives_its_known_auroc(model, pooled, single, tmp_path):
    for prediction in scans(model):
        prediction.save(tmp_path / f"{prediction.id}.npz")
    again = load_predictions(tmp_path)
    assert len(again) == 150
    assert instance_metrics(again, pool="positive_bags")["auroc"] == pytest.approx(pooled, abs=5e-4)
    positive = [p for p in again if p.y]
    assert instance_metrics(positive, pool="per_bag")["auroc"] == pytest.approx(single, abs=5e-4)


@needs_data
def test_real_scans_have_intervals_and_a_paired_difference():
    plain, smooth = scans("baseline"), scans("0_5")
    found = bootstrap_ci(smooth, "inst_auroc", pool="positive_bags", n=300)
    assert found["value"] == pytest.approx(0.804, abs=5e-4)
    assert 0.72 < found["low"] < 0.804 < found["high"] < 0.88
    gap = compare(smooth, plain, "inst_auroc", pool="positive_bags", n=300)
    assert gap["difference"] == pytest.approx(0.804 - 0.777, abs=1e-3)
    # the two models err on the same scans: paired, the difference is more certain than from two separate studies
    alone = bootstrap_ci(plain, "inst_auroc", pool="positive_bags", n=300)
    assert gap["std"] < 0.9 * np.hypot(found["std"], alone["std"])


@needs_data
@pytest.mark.parametrize("model", ["baseline", "0_5", "0_9"])
def test_on_real_scans_no_published_map_beats_knowing_where_bleedings_usually_lie(model):
    found = position_prior(scans(model), n=300)
    inside = found["per_bag"]
    assert inside["truth"] == pytest.approx(0.867, abs=5e-4)
    assert inside["difference_high"] < 0
    assert found["better"] is False
    assert inside["residual_low"] > 0.5  # they do look at the case
