"""The drift alarm in report and viewer: banner, mark, layer, and the promise that is withdrawn."""

import pytest
from support.drift_cases import study
from support.screens import read_report, says, shows, still, watched
from support.viewer_study import served

from smmil.report import write_report
from smmil.viewer.data import ViewerData


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
        says(page, ".pane .score-kind", ["strangeness"])
        says(page, ".pane .colour-legend .low", ["usual 0.000"])
        says(page, ".pane .colour-legend .high", ["1.000 unlike training"])
        assert page.locator(".pane .layer-verdict").is_hidden()
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


def test_the_report_withdraws_the_promise_on_the_page_of_a_usual_case_of_a_strange_folder(tmp_path, browser):
    (tmp_path / "sm_ap").mkdir()
    study(tmp_path / "sm_ap", {"s0", "s1", "s3", "s4", "s5"})
    write_report([tmp_path / "sm_ap"], tmp_path / "report.html", resamples=0)
    with read_report(browser, tmp_path / "report.html") as page:
        assert page.locator("#case-table .unlike").count() == 5
        page.locator("#case-table tbody tr", has_text="s2").click()
        page.wait_for_selector("dialog[data-ready]")
        shows(page, "#case-alarm", "The promise is withdrawn: as a whole these cases look unlike")
        assert "This case looks unlike" not in page.locator("#case-alarm").inner_text()


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
        says(page, ".colour-legend .low", ["usual 0.000"])
        says(page, ".colour-legend .high", ["1.000 unlike training"])
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
