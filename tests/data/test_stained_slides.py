"""Synthetic stained slides: real files, known truth, and a lesion that colour does not give away."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from smmil.errors import ConfigError, DataError
from smmil.evaluate.ranking import OperatingPoints
from smmil.images import open_slide
from smmil.synthetic.slides import CELL, MPP, _boxes_of, _stained_picture, stained_slides


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stained")
    return stained_slides(folder, 4, seed=1, patches=(10, 14))


def test_the_table_names_slides_that_open_and_lesions_that_lie_on_tissue(slides):
    table = pd.read_csv(slides, keep_default_na=False)
    assert sorted(table["label"]) == [0, 0, 1, 1]
    for row in table.itertuples():
        with open_slide(slides.parent / "slides" / f"{row.id}.svs") as slide:
            assert slide.mpp == pytest.approx(MPP)
            assert bool(row.annotation) == bool(row.label)
            for box in _boxes(slides.parent / row.annotation) if row.label else []:
                tile = slide.read(box.x, box.y, CELL, CELL)
                assert tile.mean() < 235  # stained, not glass


def _boxes(path):
    return list(pd.read_csv(path).itertuples())


def test_the_same_arguments_give_the_same_bytes_with_any_number_of_workers(slides, tmp_path):
    again = stained_slides(tmp_path, 4, seed=1, patches=(10, 14), workers=2)
    for path in sorted((slides.parent / "slides").iterdir()):
        assert path.read_bytes() == (again.parent / "slides" / path.name).read_bytes()


def test_processes_that_draw_slides_load_no_torch():
    code = "import sys, smmil.synthetic.slides; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_slides_of_another_set_are_not_taken_for_these(slides):
    with pytest.raises(DataError, match="another set"):
        stained_slides(slides.parent, 5, seed=1, patches=(10, 14))
    with pytest.raises(ConfigError, match="n >= 1"):
        stained_slides(slides.parent / "none", 0)


def test_a_lost_slide_is_drawn_again_as_it_was(slides):
    path = sorted((slides.parent / "slides").iterdir())[0]
    before = path.read_bytes()
    path.unlink()
    stained_slides(slides.parent, 4, seed=1, patches=(10, 14))
    assert path.read_bytes() == before


def test_mean_colour_hardly_tells_a_lesion_but_the_size_of_nuclei_does():
    rng = np.random.default_rng(0)
    tissue = np.ones((12, 12), dtype=bool)
    lesion = np.zeros_like(tissue)
    lesion[:, 6:] = True
    picture = _stained_picture(rng, tissue, lesion, np.zeros_like(tissue), CELL).astype(float)
    tiles = picture.reshape(12, CELL, 12, CELL, 3).swapaxes(1, 2)[1:-1, 1:-1].reshape(-1, CELL, CELL, 3)
    sick = lesion[1:-1, 1:-1].ravel()
    for colour in tiles.mean((1, 2)).T:
        assert 0.3 < OperatingPoints.of(colour, sick).roc_area() < 0.7
    red = tiles[..., 0]
    edges = np.abs(np.diff(red, axis=1)).mean((1, 2))  # larger nuclei of the same area have less edge
    assert OperatingPoints.of(-edges, sick).roc_area() > 0.75


def test_boxes_cover_exactly_the_cells_of_a_mask():
    mask = np.random.default_rng(3).random((7, 9)) < 0.5
    painted = np.zeros((7 * 4, 9 * 4), dtype=int)
    for x, y, width, height in _boxes_of(mask, 4):
        painted[y : y + height, x : x + width] += 1
    assert np.array_equal(painted, np.kron(mask, np.ones((4, 4), dtype=int)))
