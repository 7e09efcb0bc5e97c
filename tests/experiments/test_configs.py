"""Every study that ships can be read, and runs at toy size with its tables and figures."""

from pathlib import Path

import pytest

from smmil.experiments.figures import write_figures
from smmil.experiments.grid import _make_grid, toy_study
from smmil.experiments.paper import PAPER_TABLES, paper_table
from smmil.experiments.runner import run_study
from smmil.experiments.study import load_study
from smmil.experiments.tables import write_tables

FOLDER = Path(__file__).parents[2] / "configs"
STUDIES = sorted(FOLDER.glob("*/*.yaml"))


@pytest.fixture(autouse=True)
def _no_data_here(monkeypatch):
    for name in ("RSNA", "PANDA", "CAMELYON16", "CRCHISTO", "DIGITS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_every_study_becomes_a_toy_grid_with_models_that_exist(path, tmp_path):
    from smmil.models import create_model

    study = toy_study(load_study(path))
    grid = _make_grid(study, tmp_path)
    assert len(grid.runs) == len(study.datasets) * len(study.variants) * len(study.seeds) * 2
    for variant in study.variants:
        create_model(variant.model, 6, **variant.options)


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_every_study_runs_at_toy_size(path, tmp_path):
    run_toy(path, tmp_path)


def test_one_study_runs_at_toy_size(tmp_path):
    run_toy(FOLDER / "ablations/spectral-norm.yaml", tmp_path, most_variants=2)


def run_toy(path, out, most_variants=None):
    study = toy_study(load_study(path), most_sets=1)
    study = study.model_copy(update={"variants": study.variants[:most_variants]})
    report = run_study(study, out)
    assert report.failed == {}
    tables = write_tables(study, out, resamples=20)
    assert {t.name for t in study.tables} <= {p.stem for p in tables}
    assert all(p.read_text().startswith("## Toy size, numbers mean nothing: ") for p in tables if p.suffix == ".md")
    figures, failed = write_figures(study, out)
    assert failed == {}
    assert bool(figures) == bool(study.figures)


def test_all_tables_of_the_paper_are_covered_with_all_their_models_and_columns():
    shown = {}
    for path in STUDIES:
        study = load_study(path)
        for table in study.tables:
            if table.paper:
                columns = {(d.dataset, d.extractor) for d in study.datasets}
                shown[table.paper] = ({v.name for v in study.variants}, columns, set(table.metrics))
    assert set(shown) == set(PAPER_TABLES)
    for name, (models, columns, metrics) in shown.items():
        paper = paper_table(name)
        assert set(paper["model"]) <= models
        numbers = paper[paper["dataset"] != "ALL"]
        assert set(zip(numbers["dataset"], numbers["extractor"], strict=True)) <= columns
        ours = set(numbers["metric"].replace({"dirichlet_energy_norm": "energy_rayleigh"}))
        assert ours <= metrics
