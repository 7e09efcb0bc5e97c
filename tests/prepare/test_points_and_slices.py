"""Crops around points, and slices of scans: pixels computed by hand."""

import shutil

import numpy as np
import pytest
from PIL import Image
from support import prepare_makers as makers
from support.ct_makers import series

from smmil.data.tables import read_instance_labels
from smmil.errors import ConfigError, DataError
from smmil.formats import read_bag, read_provenance
from smmil.graph import chain_graph, knn_graph
from smmil.images.quality import SLICE_FACTS, slice_facts
from smmil.images.volume import open_volume, window
from smmil.prepare import prepare_case
from smmil.prepare.selection import _check_classes, _read_points, _SlicePictures

POINTS = "image,x,y,label\nother,1,1,0\na,14,14,0\na,40.3,30.6,1\na,60,50,\na.png,20,60,1\n"


def crops(tmp_path, first_pixel=1, table=POINTS):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (70, 80, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    (tmp_path / "points.csv").write_text(table)
    chosen = makers.recipe(kind="points", first_pixel=first_pixel, neighbours=2, pixels=27)
    job = makers.job(tmp_path / "a.png", tmp_path / "out", chosen, points=tmp_path / "points.csv")
    prepared = prepare_case(job)
    return image, read_bag(job.bag_path), job, prepared


@pytest.mark.parametrize("first_pixel", [1, 0])
def test_a_crop_is_centred_on_the_pixel_that_the_point_names(tmp_path, first_pixel):
    image, bag, _, _ = crops(tmp_path, first_pixel)
    x, y = 14 - first_pixel, 14 - first_pixel  # the pixel, counted from 0
    assert bag.coords[0].tolist() == [x - 13, y - 13]
    padded = np.pad(image, ((13, 13), (13, 13), (0, 0)), constant_values=255)
    crop = padded[y : y + 27, x : x + 27]
    assert np.array_equal(crop[13, 13], image[y, x])
    assert bag.x[0].float().numpy() == pytest.approx(crop.mean((0, 1)) / 255, abs=2e-3)


def test_neighbours_are_the_nearest_points_and_the_size_may_be_unknown(tmp_path):
    _, bag, job, prepared = crops(tmp_path)
    exact = np.array([[14, 14], [40.3, 30.6], [60, 50], [20, 60]])
    assert bag.coords.numpy() == pytest.approx(exact - 14)
    assert bag.graph.same_as(knn_graph(exact, 2))
    assert bag.frame.patch == (27, 27)
    assert bag.frame.spacing is None
    assert prepared.labelled
    assert read_instance_labels(job.labels_path).tolist() == [0, 1, -1, 1]


def test_points_that_are_not_there_or_not_numbers_are_refused(tmp_path):
    (tmp_path / "p.csv").write_text("image,x,y\na,1,2\na,one,2\n")
    with pytest.raises(DataError, match="no points for image 'b'"):
        _read_points(tmp_path / "p.csv", "b")
    with pytest.raises(DataError, match="line 3: x and y must be numbers"):
        _read_points(tmp_path / "p.csv", "a")
    (tmp_path / "p.csv").write_text("image,x\na,1\n")
    with pytest.raises(DataError, match="column 'y' is missing"):
        _read_points(tmp_path / "p.csv", "a")


def ct(windows=("brain", "subdural", "40/400"), **options):
    return makers.recipe(kind="ct", windows=windows, **options)


def test_three_windows_of_a_slice_become_its_colours(tmp_path):
    series(tmp_path / "scan")
    volume = open_volume(tmp_path / "scan")
    pictures = list(_SlicePictures(volume, ct()))
    for hu, picture in zip(volume.hu, pictures, strict=True):
        assert picture.shape == (9, 9, 3)
        assert not picture[:, [0, 8]].any()  # 9 rows, 7 columns: one black column on either side
        for channel, (centre, width) in enumerate(((40, 80), (80, 200), (40, 400))):
            assert np.array_equal(picture[:, 1:8, channel], window(hu, centre, width))


def test_one_window_is_grey_and_a_triplet_shows_the_neighbours(tmp_path):
    series(tmp_path / "scan")
    volume = open_volume(tmp_path / "scan")
    shades = [window(hu, 40, 400) for hu in volume.hu]
    grey = list(_SlicePictures(volume, ct(("40/400",))))
    three = list(_SlicePictures(volume, ct(("40/400",), triplets=True)))
    for i in range(6):
        below, above = max(i - 1, 0), min(i + 1, 5)
        for channel, index in enumerate((below, i, above)):
            assert np.array_equal(grey[i][:, 1:8, channel], shades[i])
            assert np.array_equal(three[i][:, 1:8, channel], shades[index])


def test_a_scan_is_a_chain_in_millimetres(tmp_path):
    series(tmp_path / "scan")
    job = makers.job(tmp_path / "scan", tmp_path / "out", ct())
    assert prepare_case(job).instances == 6
    bag = read_bag(job.bag_path)
    assert bag.coords.tolist() == [[i] for i in range(6)]
    assert bag.frame.to_dict() == {"patch": [1.0], "spacing": [5.0], "stride": None, "unit": "mm"}
    assert bag.graph.same_as(chain_graph(6))
    assert read_provenance(job.bag_path)["positions_mm"] == pytest.approx([30, 35, 40, 45, 50, 55])
    assert job.preview_path.stat().st_size > 0
    assert read_provenance(job.bag_path)["quality"] == list(SLICE_FACTS)
    facts = [slice_facts(hu) for hu in open_volume(tmp_path / "scan").hu]
    np.testing.assert_array_equal(bag.quality.numpy(), np.stack(facts))


def test_shuffled_names_of_slices_give_the_same_bag_byte_for_byte(tmp_path):
    _, paths = series(tmp_path / "a" / "scan")
    (tmp_path / "b" / "scan").mkdir(parents=True)
    for number, index in enumerate(np.random.default_rng(1).permutation(len(paths))):
        shutil.copy(paths[index], tmp_path / "b" / "scan" / f"x{number:03}.dcm")
    jobs = [makers.job(tmp_path / name / "scan", tmp_path / f"out_{name}", ct()) for name in "ab"]
    assert [prepare_case(job).status for job in jobs] == ["written", "written"]
    assert jobs[0].bag_path.read_bytes() == jobs[1].bag_path.read_bytes()


def test_a_truncated_slice_is_named(tmp_path):
    _, paths = series(tmp_path / "scan")
    paths[2].write_bytes(paths[2].read_bytes()[:-60])
    job = makers.job(tmp_path / "scan", tmp_path / "out", ct())
    with pytest.raises(DataError, match=paths[2].name):
        prepare_case(job)
    assert not job.bag_path.exists()


NAMED = "image,x,y,class\na,14,14,Stroma\na,40,30,epithelial\na,60,50, Epithelial\na,20,60,other\n"


def test_classes_of_points_become_labels_when_the_lesions_are_named(tmp_path):
    (tmp_path / "p.csv").write_text(NAMED)
    assert _read_points(tmp_path / "p.csv", "a").labels is None
    assert _read_points(tmp_path / "p.csv", "a", ["epithelial"]).labels.tolist() == [0, 1, 1, 0]
    assert _check_classes(tmp_path / "p.csv", ["epithelial"]) is None


def test_classes_of_points_that_nobody_names_are_noted(tmp_path):
    (tmp_path / "p.csv").write_text(NAMED)
    assert "the column class is not used" in _check_classes(tmp_path / "p.csv", None)
    (tmp_path / "p.csv").write_text(POINTS)
    assert _check_classes(tmp_path / "p.csv", None) is None


def test_lesions_that_no_point_is_are_refused(tmp_path):
    (tmp_path / "p.csv").write_text(NAMED)
    with pytest.raises(DataError, match="no point is of the class 'epitelial'; did you mean Epithelial"):
        _check_classes(tmp_path / "p.csv", ["epitelial"])
    (tmp_path / "p.csv").write_text(POINTS)
    with pytest.raises(ConfigError, match=r"--positive: .* has labels in its column label already"):
        _check_classes(tmp_path / "p.csv", ["epithelial"])


def test_a_word_as_label_of_a_point_is_refused_and_not_taken_as_unknown(tmp_path):
    (tmp_path / "p.csv").write_text("image,x,y,label\na,1,2,0\na,1,2,tumour\n")
    with pytest.raises(DataError, match="line 3: label 'tumour'; expected -1 or nothing"):
        _read_points(tmp_path / "p.csv", "a")


def test_names_of_images_keep_their_zeros(tmp_path):
    (tmp_path / "p.csv").write_text("image,x,y\n007,1,2\n7,3,4\n")
    assert _read_points(tmp_path / "p.csv", "007").xy.tolist() == [[1, 2]]
