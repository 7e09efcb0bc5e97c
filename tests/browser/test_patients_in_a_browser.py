"""Patients in a real browser: a row above the slides of each in the report, a heading in the viewer, and the keys."""

from dataclasses import replace

import pytest
from support.lesion_cases import save_all, slide_case
from support.screens import becomes, read_report, settled, shows, watched
from support.viewer_study import served

from smmil.report import write_report
from smmil.viewer.data import ViewerData


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two slides of one patient, of whom only the second is positive, and one of another."""
    folder = tmp_path_factory.mktemp("patients") / "model"
    folder.mkdir()
    cases = [("a", 0, 0.1, "x"), ("b", 1, 0.7, "x"), ("c", 0, 0.2, "y")]
    found = [slide_case(id_, n, y=y, p=p) for n, (id_, y, p, _) in enumerate(cases)]
    save_all(folder, [replace(p, meta={**p.meta, "group": who}) for p, (*_, who) in zip(found, cases, strict=True)])
    return folder


def rows(page, selector):
    return page.evaluate(
        f"() => [...document.querySelectorAll('{selector}')].map((row) => row.className + row.innerText)"
    )


def test_a_report_has_a_row_for_every_patient_above_the_slides(browser, folder, tmp_path):
    write_report([folder], tmp_path / "report.html", by="patient", aggregate="max", resamples=0)
    with read_report(browser, tmp_path / "report.html") as page:
        shows(page, "#count", "3 of 3 cases, 2 patients")
        found = rows(page, "#case-table tbody tr")
        assert [text.startswith("patient") for text in found] == [True, False, False, True, False]
        assert "Patient of a · 2 cases" in found[0]
        assert "0.700" in found[0]
        assert "true positive" in found[0]
        assert "Patient of c · 1 case" in found[3]
        assert [text.split("	")[1] for text in found] == [
            "Patient of a · 2 cases",
            "b",
            "a",
            "Patient of c · 1 case",
            "c",
        ]
        assert "0.700	true positive	0.300" in found[1]  # each slide what was said of it alone
        assert "0.100	true negative	0.100" in found[2]
        assert "of 2 patients (1 positive)" in page.locator("#summary").inner_text()
        page.locator("#case-table tbody tr.patient").first.click()  # a heading opens nothing
        assert not page.locator("dialog#case").is_visible()
        page.locator("#case-table tbody tr[tabindex='0']").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")  # over the row of the second patient
        page.keyboard.press("Enter")
        settled(page, "0")
        assert page.locator("#case-title").inner_text().startswith("c")
        page.click("#previous")
        said = "this case P(positive) 0.100, true negative; patient of a: P(positive) 0.700, true positive"
        shows(page, "#case-facts", f"model: {said}")
        page.keyboard.press("Escape")
        page.fill("#search", "b")
        shows(page, "#count", "1 of 3 cases, 1 patient")


def test_the_viewer_has_a_heading_for_every_patient(browser, folder):
    with (
        served(ViewerData.read([folder], by="patient")) as (address, _),
        watched(browser, address, "#cases li", (f"{address}/", f"blob:{address}/")) as page,
    ):
        becomes(page, "() => document.querySelectorAll('#cases li').length === 5")
        found = rows(page, "#cases li")
        assert [text.startswith("patient") for text in found] == [True, False, False, True, False]
        assert "Patient of a · 2 cases" in " ".join(found[0].split())
        page.locator("#cases li.patient").first.click()
        page.locator("#cases li[data-case]").last.click()
        becomes(page, "() => document.querySelector('#cases li[aria-selected=\"true\"]').dataset.case !== undefined")
