"""Nuclei and scans in a real browser: dots over the lesion, and the slice under the hand."""

import numpy as np
import pytest
from support.lesion_cases import META, SIDE, TILE, save_all, scan_case, write_slide_picture
from support.screens import becomes, hottest, lesion_in, near, read_report, says, screen, settled, shows, slide, still

from smmil.frame import Frame
from smmil.prediction import Prediction
from smmil.report import write_report

nibabel = pytest.importorskip("nibabel", reason="needs nibabel: pip install 'smmil[ct]'")

PLACE = (14, 8)
WIDE = 13


def nuclei(name, seed=0, n=600):
    """Points anywhere; the hottest one is the middle of the lesion."""
    rng = np.random.default_rng((5, seed))
    middle = (np.array(PLACE) + 0.5) * TILE
    xy = np.vstack([middle - WIDE / 2, rng.uniform(150, SIDE * TILE - 160, (n - 1, 2))])
    lesion = np.hypot(*(xy + WIDE / 2 - middle).T) < 2.6 * TILE
    scores = np.where(np.arange(n) == 0, 9.0, 2.0 * lesion + rng.normal(size=n) * 0.4)
    return Prediction(name, [0.9], scores, coords=xy, frame=Frame((WIDE, WIDE), (0.5, 0.5), "um"), y=1,
                      y_inst=lesion.astype(int), meta=META)  # fmt: skip


def bright_scan(path):
    """A scan whose slice k has the brightness of 2 k Hounsfield units."""
    hu = np.broadcast_to(2 * np.arange(36), (48, 48, 36)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(hu, np.diag([-1.0, -1.0, 5.0, 1.0])), path)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for seed, name in enumerate(("first", "second")):
        (folder / name).mkdir()
        save_all(folder / name, [nuclei("nuclei", seed), nuclei("bare", seed), scan_case("scan")])
    (folder / "images").mkdir()
    write_slide_picture(folder / "images" / "nuclei.png", 1, place=PLACE)
    bright_scan(folder / "images" / "scan.nii.gz")
    how = {"slides": folder / "images", "window": "brain", "resamples": 0}
    write_report([folder / "first", folder / "second"], folder / "r.html", **how)
    return folder / "r.html"


@pytest.fixture
def page(browser, report):
    with read_report(browser, report) as opened:
        yield opened


def open_case(page, name):
    page.fill("#search", name)
    page.locator("#case-table tbody tr", has_text=name).first.click()
    settled(page, "0")


def middle_of(where):
    rows, columns = np.nonzero(where)
    return columns.mean(), rows.mean()


def test_the_hottest_dot_lies_over_the_planted_lesion_and_stays_there_when_zoomed(page):
    open_case(page, "nuclei")
    page.locator("#truth").uncheck()
    slide(page, "#opacity", 0)
    expected = lesion_in(screen(page, ".stage"))
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 1000)
    shows(page, ".above", "1 of 600")
    hot = hottest(page)
    # a disc as wide as a nucleus on the screen: 13 of about 550 level-0 pixels over 636 pixels
    assert 60 < hot.sum() < 400
    assert np.hypot(*np.subtract(middle_of(hot), expected)) < 45
    page.click("#zoom-in")
    still(page)
    zoomed = hottest(page)
    assert zoomed.sum() == pytest.approx(2.25 * hot.sum(), rel=0.2)
    height, width = hot.shape
    away = np.subtract(middle_of(hot), (width / 2, height / 2))
    np.testing.assert_allclose(np.subtract(middle_of(zoomed), (width / 2, height / 2)), 1.5 * away, atol=3)


def test_hovering_a_dot_reads_its_instance_and_the_note_says_what_dots_are(page):
    open_case(page, "nuclei")
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 1000)
    page.locator("#truth").uncheck()
    x, y = middle_of(hottest(page))
    page.locator(".stage").hover(position={"x": float(x), "y": float(y)})
    says(page, ".readout", ["score 9.000 · rank 1 of 600 · lesion"])
    shows(page, "#case-notes", "600 instances on no lattice")


def test_dots_without_a_picture_say_so_and_show_truth_and_second_model(page):
    open_case(page, "bare")
    shows(page, "#case-notes", "no picture: no slide of this name was found")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    ringed = near(screen(page, ".stage"), (255, 255, 255), 2).sum()
    page.keyboard.press("t")
    assert ringed > 100
    assert near(screen(page, ".stage"), (255, 255, 255), 2).sum() < ringed / 5
    page.select_option("#right-model", "1")
    settled(page, "0,1")
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 1000)
    places = [middle_of(hottest(page, index=i)) for i in (0, 1)]
    np.testing.assert_allclose(*places, atol=1)


def brightness(page, index=0):
    shown = screen(page, ".slice", index)
    height, width = shown.shape[:2]
    return shown[2 * height // 5 : 3 * height // 5, 2 * width // 5 : 3 * width // 5].mean()


def slices(page, *numbers):
    """The panes come to show these slices."""
    becomes(
        page,
        "all => [...document.querySelectorAll('.slice')].map((e) => e.dataset.slice).join() === all.join()",
        list(numbers),
    )


def test_the_slice_under_the_hand_is_shown(page):
    open_case(page, "scan")
    slices(page, 20)  # the hottest one
    assert brightness(page) == pytest.approx(40 / 80 * 255, abs=5)
    box = page.locator(".bars").bounding_box()
    left, right = 56, box["width"] - 14
    page.locator(".bars").hover(position={"x": left + (right - left) * 31.5 / 36, "y": 100})
    slices(page, 31)
    assert brightness(page) == pytest.approx(62 / 80 * 255, abs=5)
    shows(page, ".slice-view figcaption", "slice 32 · score")
    page.locator(".bars").focus()
    page.keyboard.press("ArrowLeft")
    slices(page, 30)


def test_the_highest_slices_are_named_and_one_click_away(page):
    case = scan_case("scan")
    numbers = np.argsort(-np.ravel(case.scores), kind="stable")[:5]
    open_case(page, "scan")
    buttons = page.locator(".highest button")
    assert buttons.all_inner_texts() == [str(number + 1) for number in numbers]  # readers count from 1
    buttons.nth(3).click()
    slices(page, int(numbers[3]))


def test_both_models_show_the_same_slice(page):
    open_case(page, "scan")
    page.select_option("#right-model", "1")
    settled(page, "0,1")
    page.locator(".bars").nth(1).focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    slices(page, 23, 23)
    assert brightness(page, 0) == pytest.approx(46 / 80 * 255, abs=5)


def heights(folder, score):
    """Scans whose lesions lie around one relative height."""
    rng, cases = np.random.default_rng(0), []
    for i in range(12):
        height = np.linspace(0, 1, 20 + i)
        truth = (np.abs(height - 0.3 - 0.05 * rng.normal()) < 0.1).astype(int)
        coords, scores = np.arange(20 + i)[:, None], score(height, truth)
        cases.append(Prediction(f"c{i:02}", [0.5], scores, coords=coords, y=1, y_inst=truth, meta=META))
    return save_all(folder, cases)


def test_a_map_that_knows_only_positions_is_called_so_in_plain_sight(browser, tmp_path):
    models = [
        heights(tmp_path / "habit", lambda height, truth: -np.abs(height - 0.3)),
        heights(tmp_path / "finder", lambda height, truth: truth + 0.1 * np.cos(40 * height)),
    ]
    write_report(models, tmp_path / "r.html", resamples=200)
    with read_report(browser, tmp_path / "r.html") as page:
        first, second = (page.locator(".verdict").nth(i) for i in (0, 1))
        assert first.is_visible()
        assert first.inner_text().startswith("habit: This map is no better than knowing where lesions usually lie")
        assert first.locator("strong").count() == 1
        assert second.inner_text().startswith("finder: This map is better than knowing where lesions usually lie")
        assert second.locator("strong").count() == 0
        assert page.locator(".tile .beside").inner_text().startswith("position alone reaches 0.9")
        assert first.bounding_box()["y"] < page.locator("table.metrics:not(.paired)").bounding_box()["y"]
