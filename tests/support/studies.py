"""Tiny studies for the tests of the experiments; in a module so that other processes can import what they run."""

import contextlib
import os
import shutil
from pathlib import Path

import pandas as pd

from smmil.experiments.grid import _make_grid
from smmil.experiments.paper import paper_table
from smmil.experiments.runner import run_study
from smmil.experiments.study import Dataset, Study, Synthetic, Variant

SLIDES = Synthetic(kind="slides", bags=12, options={"size": [10, 16], "dim": 4, "lesion": [0.1, 0.3]})


def tiny_set(name="tiny", **changes):
    shares = {"folds": 2, "val_share": 0.5, "test_share": 0.3}
    return Dataset(**{"name": name, "synthetic": SLIDES, **shares, **changes})


def variant(name, model="abmil", **changes):
    return Variant(**{"name": name, "model": model, "options": {"dim": 6, "att_dim": 3}, **changes})


def tiny_study(**changes):
    content = {
        "name": "tiny",
        "datasets": [tiny_set()],
        "variants": [variant("ABMIL"), variant("SmAP", "sm_ap", family="local")],
        "learning_rates": [1e-2, 1e-3],
        "folds": [0, 1],
        "training": {"epochs": 2, "warmup_epochs": 0},
    }
    return Study(**{**content, **changes})


def manifest_study(manifest, **changes):
    """A study on a table of bags that lies somewhere."""
    return tiny_study(datasets=[tiny_set(synthetic=None, manifest=str(manifest))], **changes)


def run_quietly(out):
    """What runs in a process that is killed."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        run_study(tiny_study(), out)


def table_bytes(out, name="tiny"):
    return [(Path(out) / name / f"results.{kind}").read_bytes() for kind in ("csv", "parquet")]


def epochs_trained(out):
    """How many epochs each run was trained, counted from the clock file of its folder."""
    return {
        path.parts[-3]: len(path.read_text().splitlines()) - 1 for path in Path(out).glob("runs/*/train/timing.csv")
    }


def grid_of(study, out):
    return _make_grid(study, Path(out) / "data")


def copied(source, target):
    shutil.copytree(source, target)
    return target


def results_for(values, metrics=("inst_auroc", "inst_f1"), dataset="CAMELYON16", extractor="ResNet50-BT", group=None):
    """Rows of results: {variant: [value of each fold]} for every metric."""
    rows = []
    for name, folds in values.items():
        for fold, value in enumerate(folds):
            facts = {"run": f"{name}{fold}", "set": dataset, "dataset": dataset, "extractor": extractor, "lr": 1e-4}
            facts |= {"group": (group or {}).get(name, "no_global"), "family": "local", "variant": name, "seed": 0}
            numbers = {"val_auroc": 0.5, "val_loss": 0.5, **dict.fromkeys(metrics, value)}
            rows.append({**facts, "fold": fold, **numbers})
    return pd.DataFrame(rows)


def long_rows(values, dataset="CAMELYON16", extractor="ResNet50-BT", metric="inst_auroc", group="no_global", std=0.01):
    """Rows of numbers: {model: mean} of one column."""
    facts = {
        "dataset": dataset,
        "extractor": extractor,
        "group": group,
        "metric": metric,
        "std": std,
        "family": "local",
    }
    return pd.DataFrame([{**facts, "model": model, "mean": mean, "n": 5} for model, mean in values.items()])


def table_study(names, **changes):
    """A study on CAMELYON16 with these variants, for tables; it cannot be run."""
    there = Dataset(name="CAMELYON16", extractor="ResNet50-BT", manifest="m.csv")
    return tiny_study(datasets=[there], variants=[variant(n, family="local") for n in names], **changes)


def feature_tables():
    """The numbers behind the ranks of the paper's table 6."""
    names = [f"feat_ext_{level}_{score}" for level in ("inst", "bag") for score in ("auroc", "f1")]
    return pd.concat([paper_table(name) for name in names])
