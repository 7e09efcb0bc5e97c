"""Promises of every model on synthetic slides, real nuclei and real CT: kept over a thousand random calibrations.

Patients are split at random, which makes them exchangeable whatever the model has learned; so a short training will do.
"""

import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from support import prepare_makers as makers

import smmil
from smmil.data import Manifest
from smmil.evaluate.conformal import _MissedShares, _patient_values
from smmil.models import list_models
from smmil.prediction import Prediction
from smmil.prepare import load_recipe, plan, run
from smmil.synthetic import synthetic_scans, synthetic_slides

DATA = Path(os.environ.get("SMMIL_DATA", "/nowhere"))
TARGETS = (0.05, 0.1, 0.2)
# Hundreds of comparisons, some of promises that are exhausted exactly: three standard errors are passed by chance.
ERRORS, SURE = 4, 0.9999


def predictions_of(name, bags, n_train=12, n_val=8):
    """Predictions of the bags that neither trained nor selected the model."""
    options = {"epochs": 1, "warmup_epochs": 0, "lr": 1e-3, "threads": 1}
    model = smmil.fit(name, bags[:n_train], bags[n_train : n_train + n_val], **options).model
    return smmil.predict(model, bags[n_train + n_val :])


def check_promises(predictions, kind, runs, seed=0):
    """Mean realised risk within the target; a tested threshold above it in no more than delta of the calibrations."""
    values, rng = list(_patient_values(predictions, kind).values()), np.random.default_rng(seed)
    n, total = max(19, len(values) // 2), len(values)
    assert total > n + 5
    scores = np.unique(np.concatenate(values))
    losses = np.stack([np.searchsorted(np.sort(v), scores) / len(v) for v in values])  # of each patient at each score
    for target in TARGETS:
        risks = []
        for _ in range(runs):
            order = rng.permutation(total)
            t = _MissedShares([values[i] for i in order[:n]]).controlled(target)
            risks.append(losses[order[n:], np.searchsorted(scores, t)].mean())
        assert np.mean(risks) <= target + ERRORS * np.std(risks) / math.sqrt(runs), (kind, target, np.mean(risks))
    fails, delta, target = 0, 0.1, 0.2
    for _ in range(runs):
        chosen = _MissedShares([values[i] for i in rng.integers(0, total, 40)])
        t = chosen.tested(target, delta, binary=kind == "patients")
        fails += t is not None and losses[:, np.searchsorted(scores, t)].mean() > target
    assert fails <= binom.ppf(SURE, runs, delta), (kind, fails)


def slides(seed=0):
    return synthetic_slides(84, seed=seed, size=(40, 80), dim=16, positive=0.75)


def test_promises_of_a_short_training_are_kept():
    check_promises(predictions_of("abmil", slides()), "patients", 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_promises_of_every_model_are_kept_on_synthetic_slides_and_scans(name):
    for bags in (slides(), synthetic_scans(84, seed=1, slices=(24, 40), dim=16, positive=0.75)):
        predictions = predictions_of(name, bags)
        for kind in ("instances", "lesions", "patients"):
            check_promises(predictions, kind, 1000)


@pytest.fixture(scope="module")
def nuclei(tmp_path_factory):
    """Images of CRCHistoPhenotypes as bags of nuclei, described by their mean colour; epithelial ones are positive."""
    folder = DATA / "crchisto"
    if not folder.is_dir():
        pytest.skip("set SMMIL_DATA to a folder with crchisto/")
    out = tmp_path_factory.mktemp("nuclei")
    table = pd.read_csv(folder / "nuclei.csv")
    positive = table.groupby("image")["class"].apply(lambda c: int((c == "epithelial").any()))
    (out / "labels.csv").write_text("id,label\n" + "".join(f"{i},{y}\n" for i, y in positive.items()))
    recipe = load_recipe(None, {"encoder": makers.ENCODER})
    options = {"points": folder / "nuclei.csv", "labels": out / "labels.csv", "positive": ["epithelial"]}
    done = run(plan([folder / "png"], out / "study", recipe, **options))
    manifest = Manifest.read(done.manifest)
    ids = np.random.default_rng(0).permutation(manifest.ids)
    both = sorted(ids, key=lambda i: manifest.labels[i])  # a few of both classes train and validate
    first = [*both[:10], *both[-10:]]
    return [manifest.bag(i) for i in [*first[::2], *first[1::2], *(i for i in ids if i not in first)]]


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_promises_of_every_model_are_kept_on_real_nuclei(name, nuclei):
    predictions = predictions_of(name, nuclei, 10, 10)
    for kind in ("instances", "lesions", "patients"):
        check_promises(predictions, kind, 1000)


@pytest.mark.parametrize("model", ["baseline", "0_5", "0_9"])
def test_promises_are_kept_on_real_scans(model):
    folder = DATA / "rsna_attention"
    if not folder.is_dir():
        pytest.skip("set SMMIL_DATA to a folder with rsna_attention/")
    truth = pd.read_csv(folder / "testing_example.csv")
    said = pd.read_csv(folder / f"att_{model}.csv").drop_duplicates(["instance_name", "bag_name"])
    rows = truth.merge(said, on=["instance_name", "bag_name"])
    scans = [
        Prediction(str(name), [0.5], scan["cnn_prediction"].to_numpy(), y_inst=scan["instance_label"].to_numpy())
        for name, scan in rows.groupby("bag_name")
    ]
    check_promises(scans, "instances", 200)
