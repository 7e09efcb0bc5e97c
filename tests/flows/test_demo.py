"""The demo at toy size, in a folder named relative to where one stands, as the README names it."""

from functools import partial

import pytest
from typer.testing import CliRunner

from smmil import demo
from smmil.cli import app
from smmil.config import TrainingConfig
from smmil.prediction import load_predictions


def _toy(monkeypatch, processes):
    """Few and small images and two epochs; workers of their own cost more than all the rest."""
    monkeypatch.setattr(demo, "SLIDES", 14)
    monkeypatch.setattr(demo, "SCANS", 12)
    monkeypatch.setattr(demo, "PATCHES", (14, 20))
    monkeypatch.setattr(demo, "synthetic_ct_scans", partial(demo.synthetic_ct_scans, size=48))
    monkeypatch.setattr(demo, "SLICES", (12, 14))
    if not processes:
        monkeypatch.setattr(demo, "available_cores", lambda: 1)
        monkeypatch.setattr(demo, "run", lambda todo, **_given: _run_here(todo))
    monkeypatch.setattr(demo, "SLIDE_RECIPE", demo.SLIDE_RECIPE.model_copy(update={"encoder_pixels": 32}))
    monkeypatch.setattr(demo, "SCAN_RECIPE", demo.SCAN_RECIPE.model_copy(update={"encoder_pixels": 32}))
    monkeypatch.setattr(demo, "TrainingConfig", lambda **given: TrainingConfig(**{**given, "epochs": 2, "threads": 1}))


_run_here = partial(demo.run, executor="serial")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_the_demo_leaves_a_page_predictions_and_maps(tmp_path, monkeypatch, processes):
    monkeypatch.chdir(tmp_path)
    _toy(monkeypatch, processes)
    first = demo.run_demo("demo")
    page = (tmp_path / "demo/report.html").read_text(encoding="utf-8")
    assert "SmAP" in page
    assert page.count("data:image/png") == len(list((tmp_path / "demo/maps").glob("*.png")))
    assert "smmil view predictions/sm_ap --slides data/slides" in page
    for words in ("Maps next to the truth", "Which model leads", "comparisons abmil leads in", "What to do next"):
        assert words in page, words
    for name in demo.MODELS:
        auroc = first.results[name]["instance"]["positive_bags"]["auroc"]
        assert f">{auroc:.3f}<small>" in page
    assert page.count('<script type="text/plain" id="p') > 0  # slides below the maps
    assert str(tmp_path) not in page
    for name in demo.MODELS:
        test = load_predictions(tmp_path / "demo/predictions" / name)
        assert {p.y for p in test} == {0, 1}
        assert not {p.id for p in test} & {p.id for p in load_predictions(tmp_path / "demo/validation" / name)}
    assert len(list((tmp_path / "demo/maps").glob("*.png"))) >= 2
    assert "CT scans" in (tmp_path / "demo/ct.html").read_text(encoding="utf-8")
    for name in demo.MODELS:
        scans = load_predictions(tmp_path / "demo/ct/predictions" / name)
        assert all(p.y_inst is not None and p.coords.shape[1] == 1 for p in scans)
    told = CliRunner().invoke(app, ["demo", "--out", "demo"])  # goes on where everything is done
    assert told.exit_code == 0, told.output
    assert "labelled cases" in told.output
    assert (tmp_path / "demo/report.html").read_text(encoding="utf-8") == page
