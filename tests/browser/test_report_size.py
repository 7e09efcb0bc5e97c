"""A report about two hundred cases: small enough to send, fast enough to open."""

import time

import numpy as np
import pytest
from browser.screens import CHROMIUM, FLAGS
from report.lesion_cases import write_slide_picture

from smmil.prediction import Prediction
from smmil.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


def seconds_to_open(path):
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = running.new_page()
        start = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        page.wait_for_selector("#case-table tbody tr:first-child")
        taken = time.perf_counter() - start
        running.close()
    return taken


@pytest.mark.slow
def test_two_hundred_cases_stay_small_and_open_fast(tmp_path):
    (tmp_path / "m").mkdir()
    picture = write_slide_picture(tmp_path / "one.png", 1)
    side = np.arange(140)
    coords = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2) * 5
    rng = np.random.default_rng(0)
    for i in range(200):
        scores = rng.normal(size=len(coords))
        Prediction(f"case {i}", [rng.random()], scores, coords=coords, y=i % 2).save(tmp_path / "m" / f"{i:03}.npz")
    rows = "".join(f"case {i},{picture.name}\n" for i in range(200))
    (tmp_path / "slides.csv").write_text(f"id,slide\n{rows}", encoding="utf-8")
    done = write_report([tmp_path / "m"], tmp_path / "r.html", slides=tmp_path / "slides.csv", resamples=0)
    assert done.without_picture == {}
    assert 5e6 < done.n_bytes < 30e6
    assert seconds_to_open(tmp_path / "r.html") < 3
