"""Layers of the report: how sure each score is, beside the scores, in small maps and large ones."""

from dataclasses import replace

import numpy as np
import pytest
from support.lesion_cases import save_all, scan_case, slide_case
from support.screens import becomes, expected_colours, painted, read_report, says, settled, shows, slide, still

from smmil.prediction import LAYERS
from smmil.report import numbers, write_report


def unsure(case, low=0.1, high=2.0):
    """The case with deviations that fall from its first instance to its last."""
    return replace(case, uncertainty=np.linspace(high, low, case.n).astype(np.float32))


CASES = [unsure(slide_case("s1", 1, p=0.2, noise=0.4)), unsure(scan_case("scan")), slide_case("s3", 3)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    save_all(folder / "prob", CASES)
    save_all(folder / "plain", [replace(case, uncertainty=None) for case in CASES])
    write_report([folder / "prob", folder / "plain"], folder / "r.html", threshold=1.5, resamples=0)
    write_report([folder / "plain"], folder / "plain.html", resamples=0)
    return folder / "r.html"


@pytest.fixture
def page(browser, report):
    with read_report(browser, report) as opened:
        yield opened


def open_case(page, name, models="0"):
    page.fill("#search", name)
    page.locator("#case-table tbody tr", has_text=name).first.click()
    settled(page, models)


def test_every_tile_of_the_second_layer_has_the_colour_of_its_deviation(page):
    open_case(page, "s1")
    scores = painted(page)
    page.select_option("#controls select.layer", label="uncertainty")
    says(page, ".pane .score-kind", ["uncertainty: standard deviation"])
    expected = expected_colours(CASES[0].layer("uncertainty"))
    shown = painted(page)
    assert np.abs(shown.astype(int) - expected).max() <= 4  # 8 bits of numbers: a step of colour at most
    assert np.abs(shown.astype(int) - scores).max() > 100
    page.keyboard.press("l")
    says(page, ".pane .score-kind", ["attention logit"])
    assert np.array_equal(painted(page), scores)


def test_the_legend_says_in_words_which_end_is_sure(page):
    open_case(page, "s1")
    page.select_option("#controls select.layer", "uncertainty")
    shows(page, ".colour-legend .low", "sure 0.")
    shows(page, ".colour-legend .high", " unsure")
    page.select_option("#controls select.layer", "score")
    becomes(page, "() => !document.querySelector('.colour-legend').textContent.includes('sure')")


def test_a_threshold_of_scores_does_not_cut_it_and_the_slider_does(page):
    open_case(page, "s1")
    page.click("#use-threshold")
    shows(page, ".above", "≥ 1.500")
    page.select_option("#controls select.layer", "uncertainty")
    says(page, ".above", [""])
    shows(page, "#threshold-value", "off")
    slide(page, "#threshold", 500)
    middle = (CASES[0].uncertainty.min() + CASES[0].uncertainty.max()) / 2
    shows(page, ".above", f"≥ {middle:.3f}: {CASES[0].n // 2} of {CASES[0].n}")


def test_the_zoom_stays_when_the_layer_changes(page):
    open_case(page, "s1")
    page.click("#zoom-in")
    page.click("#zoom-in")
    still(page)
    before = page.locator(".heat").bounding_box()
    page.keyboard.press("l")
    says(page, ".pane .score-kind", ["uncertainty: standard deviation"])
    still(page)
    assert page.locator(".heat").bounding_box() == before


def test_a_model_without_the_layer_says_so_and_shows_its_scores(page):
    open_case(page, "s1")
    page.select_option("#right-model", "1")
    settled(page, "0,1")
    page.keyboard.press("l")
    says(page, ".pane .score-kind", ["uncertainty: standard deviation", "attention logit"])
    shows(page, "#case-notes", "plain holds no uncertainty of this case: its scores are shown")


def test_small_maps_and_strips_change_with_it(page):
    row = "#case-table tbody tr:has-text('s1') canvas"
    page.locator(row).scroll_into_view_if_needed()
    page.wait_for_selector(f"{row}[data-layer=score]")
    page.select_option("#filters select.layer", label="uncertainty")
    page.wait_for_selector(f"{row}[data-layer=uncertainty]")
    page.locator(row.replace("s1", "s3")).scroll_into_view_if_needed()
    page.wait_for_selector(f"{row.replace('s1', 's3')}[data-layer=score]")  # holds no other
    open_case(page, "scan")
    says(page, ".pane .score-kind", ["uncertainty: standard deviation"])
    page.locator(".bars").hover(position={"x": 70, "y": 100})
    shows(page, ".readout", "standard deviation 2.000 · rank 1 of 36")


def test_a_report_without_layers_offers_none(browser, report):
    with read_report(browser, report.with_name("plain.html")) as page:
        assert page.locator("#filters select.layer").is_hidden()
        open_case(page, "s1")
        assert page.locator("#controls select.layer").is_hidden()
        page.keyboard.press("l")
        says(page, ".pane .score-kind", ["attention logit"])


def test_what_the_layer_is_worth_stands_above_it(browser, tmp_path, monkeypatch):
    """In bold when it ranks backwards; where nothing was measured, that is said."""
    verdicts = {"wrong": "ranks backwards; do not read it as certainty", "good": "tells wrong calls", "bare": ""}
    measured = numbers._measure

    def judged(*places, **options):
        return {
            name: {**found, "uncertainty": {"verdict": verdicts[name]}}
            for name, found in measured(*places, **options).items()
        }

    monkeypatch.setattr(numbers, "_measure", judged)
    for name in verdicts:
        save_all(tmp_path / name, CASES[:1])
    write_report([tmp_path / name for name in verdicts], tmp_path / "r.html", resamples=0)
    with read_report(browser, tmp_path / "r.html") as page:
        open_case(page, "s1")
        assert page.locator(".layer-verdict").is_hidden()
        page.keyboard.press("l")
        says(
            page,
            ".layer-verdict.warning",
            ["In all cases here, uncertainty ranks backwards; do not read it as certainty."],
        )
        page.select_option("#left-model", "1")
        says(page, ".layer-verdict:not(.warning)", ["In all cases here, uncertainty tells wrong calls."])
        page.select_option("#left-model", "2")
        shows(page, ".layer-verdict", "What it is worth was not measured")


def test_long_names_are_never_cut(browser, tmp_path):
    names = ["a_model_with_" + "a_long_name_" * 6 + end for end in ("one", "two")]
    for name in names:
        save_all(tmp_path / name, [replace(CASES[0], id="case_" * 30)])
    write_report([tmp_path / name for name in names], tmp_path / "r.html", resamples=0)
    with read_report(browser, tmp_path / "r.html") as page:
        page.set_viewport_size({"width": 800, "height": 700})
        open_case(page, "case_")
        page.select_option("#right-model", "1")
        settled(page, "0,1")
        names_shown = ".tile .who, .metrics th, .column-id, .pane h3, #case-title, .legend li"
        cut = "all => all.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)"
        assert page.locator(names_shown).evaluate_all(cut) == []
        assert page.locator("#left-model").get_attribute("title") == names[0]


def test_every_layer_is_a_field_with_words():
    for layer in LAYERS:
        assert all((layer.name, layer.title, layer.kind, layer.low, layer.high, layer.source))
        assert getattr(CASES[2], layer.name) is None
