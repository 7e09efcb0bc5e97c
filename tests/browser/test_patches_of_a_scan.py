"""A scan cut into patches in a real browser: the map lies over the slice, in the report and in the viewer."""

import numpy as np
import pytest
from support.lesion_cases import META, save_all
from support.screens import becomes, read_report, settled, shows, slide, top_colour, watched

from smmil.frame import Frame
from smmil.prediction import Prediction
from smmil.report import write_report

nibabel = pytest.importorskip("nibabel", reason="needs nibabel: pip install 'smmil[ct]'")

SLICES, ROWS, COLUMNS, PATCH = 12, 40, 56, 8
HOT = (24, 16)  # column and row of the hottest patch's first voxel, in slices 4 to 6
DEPTH = 3
# read from a copy, so that the page's own canvas stays as it is
COPY = """const copy = Object.assign(document.createElement('canvas'), { width: e.width, height: e.height });
    const pen = copy.getContext('2d', { willReadFrequently: true });
    pen.drawImage(e, 0, 0);"""
PIXEL = f"""(e, [x, y]) => {{ {COPY}
    return [...pen.getImageData(Math.floor(x * e.width), Math.floor(y * e.height), 1, 1).data]; }}"""
WHITES = f"""e => {{ {COPY}
    const {{ data }} = pen.getImageData(0, 0, e.width, e.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) count += Math.min(...data.subarray(i, i + 4)) > 252;
    return count; }}"""


def cut_scan(name="scan"):
    """Patches of three slices; those of one slice are no square, to show an exchange of x and y."""
    places = [(x, y, z) for z in range(1, 10, DEPTH) for y in range(0, 40, PATCH) for x in range(8, 56, PATCH)]
    coords = np.array(places)
    hot = (coords == (*HOT, 4)).all(1)
    scores = np.where(hot, 9.0, np.random.default_rng(3).normal(size=len(coords)) * 0.3)
    return Prediction(name, [0.9], scores, coords=coords, frame=Frame((PATCH, PATCH, DEPTH), (1.0, 1.0, 5.0), "mm"),
                      y=1, y_inst=hot.astype(int), meta=META)  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    save_all(folder / "model", [cut_scan(), cut_scan("bare")])
    (folder / "images").mkdir()
    hu = np.full((COLUMNS, ROWS, SLICES), 40, np.int16)
    image = nibabel.Nifti1Image(hu, np.diag([-1.0, -1.0, 5.0, 1.0]))
    image.header.set_xyzt_units("mm")
    nibabel.save(image, folder / "images" / "scan.nii.gz")
    return folder


def colour_of(page, selector, x, y):
    """Colour and opacity of a canvas at a voxel of the slice."""
    return np.array(page.locator(selector).evaluate(PIXEL, [(x + 0.5) / COLUMNS, (y + 0.5) / ROWS]))


def whites(page, selector):
    return page.locator(selector).evaluate(WHITES)


def has_map(page, selector):
    """The hot patch has the top colour on all sides of its middle, and its neighbours have not."""
    x, y = HOT
    for dx, dy in ((1, 1), (PATCH - 2, PATCH - 2)):
        assert np.abs(colour_of(page, selector, x + dx, y + dy)[:3] - top_colour("viridis")).max() < 12
    for beside in ((x - 3, y + 3), (x + PATCH + 2, y + 3), (x + 3, y - 3), (x + 3, y + PATCH + 2)):
        assert colour_of(page, selector, *beside)[0] < 150


def test_the_report_lays_the_map_of_each_slice_over_its_picture(browser, study):
    write_report([study / "model"], study / "r.html", slides=study / "images", resamples=0)
    with read_report(browser, study / "r.html") as page:
        page.fill("#search", "scan")
        page.locator("#case-table tbody tr", has_text="scan").first.click()
        settled(page, "0")
        slide(page, "#opacity", 100)
        becomes(page, "() => document.querySelector('.slice').dataset.slice === '4'")
        lined = whites(page, ".slice")
        page.locator("#truth").uncheck()
        assert lined > whites(page, ".slice") + 40
        has_map(page, ".slice")
        assert np.abs(colour_of(page, ".slice", 3, 20)[:3] - 128).max() < 6  # brain of 40 HU, where no patch lies
        shows(page, ".slice-view figcaption", "highest patch of slice 5 · score 9.000")
        page.locator(".bars").focus()
        for _ in range(3):  # out of the patches of the lesion
            page.keyboard.press("ArrowRight")
        becomes(page, "() => document.querySelector('.slice').dataset.slice === '7'")
        assert colour_of(page, ".slice", HOT[0] + 4, HOT[1] + 4)[0] < 200


def test_the_viewer_lays_the_map_of_each_slice_over_its_voxels_and_a_click_opens_a_patch(browser, study):
    pytest.importorskip("starlette", reason="needs the viewer: pip install 'smmil[view]'")
    from support.viewer_study import served

    from smmil.viewer.data import ViewerData

    case = cut_scan()
    with (
        served(ViewerData.read([study / "model"], slides=study / "images")) as (url, _),
        watched(browser, f"{url}/#case=scan", "#stage[data-ready]", (f"{url}/", f"blob:{url}/")) as page,
    ):
        page.locator("#cases li", has_text="scan").first.click()
        slide(page, "#opacity", 100)
        becomes(page, "() => document.querySelector('.slice-map')?.dataset.painted === '5'")  # the middle of the box
        has_map(page, ".slice-map")
        assert colour_of(page, ".slice-map", 3, 20)[3] == 0
        box = page.locator("canvas.slice").bounding_box()
        x, y = 40, 8
        page.mouse.click(box["x"] + (x + 4) / COLUMNS * box["width"], box["y"] + (y + 4) / ROWS * box["height"])
        number = int(np.flatnonzero((case.coords == (x, y, 4)).all(1))[0])
        becomes(page, "n => document.querySelector('#inspector').dataset.instance === String(n)", number)
        shows(page, "#inspector", f"slice 5 · #{number} · x {x}, y {y}")
        page.locator("#slice").fill("9")
        becomes(page, "() => document.querySelector('.slice-map').dataset.painted === '8'")
        assert colour_of(page, ".slice-map", HOT[0] + 4, HOT[1] + 4)[0] < 200
