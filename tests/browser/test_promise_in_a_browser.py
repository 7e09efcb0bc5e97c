"""A promised threshold in report and viewer: the sentence is read, and what it flags is what the screen shows."""

import numpy as np
import pytest
from support.lesion_cases import save_all, slide_case
from support.screens import read_report, shows, watched
from support.viewer_study import served

from smmil.evaluate.calibration import calibrate
from smmil.report import write_report
from smmil.viewer.data import ViewerData


@pytest.fixture(scope="module")
def promised(tmp_path_factory):
    """Slides of two models, each read at a threshold of its own that other slides gave."""
    folder, made = tmp_path_factory.mktemp("promise"), {}
    for name, noise in (("first", 0.5), ("second", 1.5)):
        (folder / name).mkdir()
        made[name] = calibrate([slide_case(f"c{i}", i, noise=noise) for i in range(12)])
        cases = [made[name].applied(slide_case(f"s{i}", 30 + i, y=i % 2, noise=noise)) for i in range(4)]
        save_all(folder / name, cases)
    return folder, made


def flagged(made, noise, number=1):
    """How many instances of a case reach the threshold, in the words of the page's end of line."""
    scores = slide_case(f"s{number}", 30 + number, y=number % 2, noise=noise).scores[:, 0]
    return f": {np.sum(scores.astype(np.float32) >= made.threshold)} of {len(scores)}"


def test_a_reader_of_the_report_sees_the_promise_and_what_it_flags(promised, browser):
    folder, made = promised
    write_report([folder / "first", folder / "second"], folder / "report.html", resamples=0)
    with read_report(browser, folder / "report.html") as page:
        said = page.locator(".promise").all_inner_texts()
        assert [text.split(":")[0] for text in said] == ["What is promised (first)", "What is promised (second)"]
        assert made["first"].sentence in said[0]
        assert page.locator(".conditions").all_inner_texts() == [
            f"Conditions: {made['first'].conditions}"
        ]  # once for both
        page.locator("#cases tbody tr", has_text="s1").first.click()
        page.wait_for_selector("dialog[data-ready]")
        shows(page, ".pane .above", flagged(made["first"], 0.5))
        assert page.locator("#threshold-value").inner_text() == "calibrated"
        shows(page, "#case-said", "negative and positive are both possible (negative never can be: too few patients")
        box = page.locator(".heat").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        shows(page, ".readout", " · calibrated probability ")
        page.locator("#left-model").select_option("1")
        page.wait_for_selector("dialog[data-ready]")
        shows(page, ".pane .above", flagged(made["second"], 1.5))


def test_a_reader_of_the_viewer_sees_the_promise_and_what_it_flags(promised, browser):
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'smmil[view]'")
    folder, made = promised
    study = ViewerData.read([folder / "first", folder / "second"])
    own = "#stage[data-ready]"
    with served(study) as (url, _), watched(browser, f"{url}/#case=s1", own, (f"{url}/", f"blob:{url}/")) as page:
        for name, calibration in made.items():
            shows(page, "#case-notes", f"{name}: {calibration.sentence} {calibration.conditions}")
        shows(page, "#stage", flagged(made["first"], 0.5))
        page.locator("#left-model").select_option("1")
        shows(page, "#stage", flagged(made["second"], 1.5))
