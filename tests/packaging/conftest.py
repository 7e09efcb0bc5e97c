"""A run on slides prepared by smmil, with planted names of patients, people and folders; and packages of it."""

from types import SimpleNamespace

import pytest
from support import prepare_makers as makers
from support.package_makers import CASE, FOLDER, PATIENT, QUICK, slide

from smmil.config import load_config
from smmil.packaging import write_package
from smmil.predict import predict_run
from smmil.prepare import plan, run
from smmil.train import train


@pytest.fixture(scope="session")
def road(tmp_path_factory):
    """Slides, bags, a finished run on them and its test predictions, all below a folder that must not be told."""
    root = tmp_path_factory.mktemp("x") / FOLDER
    rows = ["id,label,patient"]
    for seed in range(12):
        slide(root / "slides" / f"{CASE}_{seed}.svs", seed, bool(seed % 2))
        rows.append(f"{CASE}_{seed},{seed % 2},{PATIENT}-{seed}")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    todo = plan([root / "slides"], root / "study", makers.recipe(16.0), labels=root / "labels.csv", device="cpu")
    manifest = run(todo).manifest
    train(load_config(None, [f"data.manifest={manifest}", *QUICK]), root / f"{FOLDER}_run")
    predict_run(root / f"{FOLDER}_run", out=root / "test", part="test")
    return SimpleNamespace(root=root, run=root / f"{FOLDER}_run", manifest=manifest, test=root / "test")


@pytest.fixture(scope="session")
def package(road, tmp_path_factory):
    """A package of that run with its metrics; tests that change it copy it first."""
    out = tmp_path_factory.mktemp("packages") / "lymph"
    write_package(road.run, out, predictions=road.test, resamples=50)
    return out
