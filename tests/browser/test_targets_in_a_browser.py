"""Targets other than classes in a real browser: rows of the report, the opened case, and the list of the viewer."""

import pytest
from support.screens import becomes, read_report, shows, watched
from support.target_cases import target_cohort
from support.viewer_study import served

from smmil.evaluate.case_words import case_words, predicted_values
from smmil.report import write_report


def saved(kind, folder):
    cases = target_cohort(kind, 24)
    for p in cases:
        p.save(folder / kind / f"{p.id}.npz")
    return cases, folder / kind


@pytest.mark.parametrize("kind", ["survival", "multilabel", "ordinal", "regression"])
def test_the_report_says_in_every_row_what_was_predicted(kind, browser, tmp_path):
    cases, folder = saved(kind, tmp_path)
    write_report([folder], tmp_path / "report.html", resamples=0)
    with read_report(browser, tmp_path / "report.html") as page:
        for p in cases[:3]:
            words = case_words(p, predicted_values(cases))
            row = page.locator("#case-table tbody tr", has_text=p.id)
            assert words.said in row.locator(".column-p").inner_text()
            assert row.locator(".column-y").inner_text() == (words.truth or "–")
        page.locator("#case-table tbody tr", has_text=cases[0].id).click()
        words = case_words(cases[0], predicted_values(cases))
        shows(page, "#case-facts", f"truth: {words.truth}")
        shows(page, "#case-facts", f"{kind}: {words.said}")


@pytest.mark.parametrize("kind", ["cox", "regression"])
def test_sorting_by_prediction_is_sorting_by_the_number(kind, browser, tmp_path):
    cases, folder = saved(kind, tmp_path)
    write_report([folder], tmp_path / "report.html", resamples=0)
    with read_report(browser, tmp_path / "report.html") as page:
        page.click('#case-table button[data-key="p"]')
        shown = page.locator("#case-table tbody .column-id").all_inner_texts()
        assert shown == [p.id for p in sorted(cases, key=lambda p: -p.value)]


@pytest.mark.parametrize("kind", ["survival", "multilabel"])
def test_the_list_of_the_viewer_says_what_was_predicted(kind, browser, tmp_path):
    pytest.importorskip("starlette", reason="needs the viewer: pip install 'smmil[view]'")
    from smmil.viewer.data import ViewerData

    cases, folder = saved(kind, tmp_path)
    with (
        served(ViewerData.read([folder])) as (url, _),
        watched(browser, url, "#stage[data-ready]", (f"{url}/", f"blob:{url}/")) as page,
    ):
        words = {p.id: case_words(p, predicted_values(cases)) for p in cases}
        for p in cases[:3]:
            row = page.locator("#cases li", has_text=p.id)
            assert words[p.id].said in row.text_content()
            assert words[p.id].truth in row.text_content()
        page.locator("#cases li", has_text=cases[1].id).click()
        becomes(page, "id => document.querySelector('#case-title').textContent === id", cases[1].id)
        shows(page, "#case-facts", words[cases[1].id].said)
        page.select_option("#sort", "worst")
        worst = max((p for p in cases if words[p.id].error is not None), key=lambda p: words[p.id].error)
        becomes(page, "id => document.querySelector('#cases .case-id').textContent === id", worst.id)
