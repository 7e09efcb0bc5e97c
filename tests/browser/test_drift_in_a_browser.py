"""The drift alarm in report and viewer: banner, mark, layer, and the promise that is withdrawn."""

from dataclasses import replace

import numpy as np
import pytest
from support.lesion_cases import save_all, slide_case
from support.screens import read_report, says, shows, still, watched
from support.viewer_study import served

from smmil.evaluate.calibration import calibrate
from smmil.report import write_report
from smmil.viewer.data import ViewerData

STATED = {"share": 0.4, "level": 0.05, "patients": 30, "digest": "d"}


def compared(case, alarm, p):
    """A case as smmil predict writes it with a drift summary; its upper half is strange when the alarm is raised."""
    facts = {**STATED, "p": p, "alarm": alarm, "why": ["look", "gap"] if alarm else []}
    strange = np.where(np.arange(case.n) < case.n // 2, 0.95 if alarm else 0.5, 0.2).astype(np.float32)
    return replace(case, strangeness=strange, meta={**case.meta, "drift": facts})


def study(folder, strange):
    """Six calibrated cases, some of which raise the alarm."""
    made = calibrate([slide_case(f"c{i}", i) for i in range(12)])
    cases = [made.applied(slide_case(f"s{i}", 30 + i, y=i % 2)) for i in range(6)]
    ranks = iter((0.4, 0.9, 0.6, 0.3, 0.7, 0.5))
    save_all(folder, [compared(c, c.id in strange, 1 / 31 if c.id in strange else next(ranks)) for c in cases])
    return made


@pytest.fixture(scope="module")
def one_strange(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift") / "sm_ap"
    folder.mkdir()
    return folder, study(folder, {"s1"})


@pytest.fixture(scope="module")
def all_strange(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift") / "sm_ap"
    folder.mkdir()
    return folder, study(folder, {f"s{i}" for i in range(6)})


BANNER = "This case looks unlike the cases that the model learned from: of 30 comparison patients none looked"


def test_the_report_warns_marks_and_withdraws_the_promise_of_the_case(one_strange, browser):
    folder, made = one_strange
    write_report([folder], folder.parent / "report.html", resamples=0)
    with read_report(browser, folder.parent / "report.html") as page:
        shows(page, "#summary .alarm", "1 of 6 cases looks unlike the cases that the model learned from")
        shows(page, "#summary .alarm", "Unlike: s1.")
        shows(page, ".promise", made.sentence)
        shows(page, ".promise", "Withdrawn for cases that look unlike those the model learned from: s1.")
        assert page.locator("#case-table .unlike").count() == 1
        page.locator("#case-table tbody tr", has_text="s1").click()
        page.wait_for_selector("dialog[data-ready]")
        shows(page, "#case-alarm", BANNER)
        shows(page, "#case-alarm", "staining, scanner")
        shows(page, "#case-alarm", "No promise for this case")
        assert page.locator("#case-alarm").inner_text().count("This case looks unlike") == 1
        page.select_option("#controls select.layer", label="strangeness")
        shows(page, ".pane .score-kind", "strangeness")
        shows(page, ".pane .colour-legend .high", "unlike training")
        page.locator("#close").click()
        page.locator("#case-table tbody tr", has_text="s2").click()
        page.wait_for_selector("dialog[data-ready]")
        assert page.locator("#case-alarm").is_hidden()


def test_the_report_of_a_strange_folder_promises_nothing(all_strange, browser):
    folder, made = all_strange
    write_report([folder], folder.parent / "report.html", resamples=0)
    with read_report(browser, folder.parent / "report.html") as page:
        shows(page, "#summary .alarm", "as a whole they differ from them")
        shows(page, ".promise", "Nothing is promised (sm_ap): The promise is withdrawn")
        assert made.sentence not in page.locator("#summary").inner_text()


def test_the_viewer_warns_marks_and_withdraws_the_promise(one_strange, browser):
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'smmil[view]'")
    folder, made = one_strange
    own = "#stage[data-ready]"
    served_study = served(ViewerData.read([folder]))
    with served_study as (url, _), watched(browser, f"{url}/#case=s1", own, (f"{url}/", f"blob:{url}/")) as page:
        shows(page, "#notice-text", "1 of 6 cases looks unlike the cases that the model learned from")
        shows(page, "#case-alarm", BANNER)
        shows(page, "#case-notes", "No promise for this case")
        assert made.sentence not in page.locator("#case-notes").inner_text()
        assert page.locator("#cases .unlike").count() == 1
        says(page, "#left-model option", ["sm_ap", "sm_ap strangeness"])
        page.select_option("#left-model", label="sm_ap strangeness")
        still(page)
        says(page, ".above", [""])
        page.locator("#cases li", has_text="s2").click()
        still(page)
        shows(page, "#case-notes", made.sentence)
        assert page.locator("#case-alarm").is_hidden()


def test_the_viewer_of_a_strange_folder_promises_nothing(all_strange, browser):
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'smmil[view]'")
    folder, made = all_strange
    own = "#stage[data-ready]"
    served_study = served(ViewerData.read([folder]))
    with served_study as (url, _), watched(browser, f"{url}/#case=s2", own, (f"{url}/", f"blob:{url}/")) as page:
        shows(page, "#notice-text", "as a whole they differ from them")
        shows(page, "#case-notes", "No promise for this case")
        assert made.sentence not in page.locator("#case-notes").inner_text()
