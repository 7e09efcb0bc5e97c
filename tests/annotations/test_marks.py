"""Marks of experts: which instances they mean, and what is refused because it could mean something else."""

import json

import numpy as np
import pytest

from smmil.annotations.marks import WANTED, find_marks
from smmil.errors import DataError

PATCH = (100.0, 100.0)
COORDS = np.array([(x, y) for y in range(0, 400, 100) for x in range(0, 400, 100)], dtype=np.float64)


def feature(name, *rings, kind="Polygon", coordinates=None):
    shape = {"type": kind, "coordinates": coordinates if coordinates is not None else [list(r) for r in rings]}
    return {"type": "Feature", "geometry": shape, "properties": {"classification": {"name": name}}}


def box(left, top, right, bottom):
    return [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]


def drawing(path, *features):
    path.write_text(json.dumps({"type": "FeatureCollection", "features": list(features)}))


def labels(folder, corner=(0, 0), id_="a"):
    found, _ = find_marks(folder, [id_])
    return found[id_].labels(len(COORDS), COORDS, PATCH, corner)


def test_drawings_mark_the_patches_they_cover_by_more_than_half_and_leave_the_rest_open(tmp_path):
    lesion, clear = feature("Tumor", box(0, 0, 151, 100)), feature("Normal", box(300, 250, 400, 400))
    drawing(tmp_path / "a.geojson", lesion, clear, feature(WANTED, box(0, 300, 100, 400)))
    expected = np.full(16, -1)
    expected[[0, 1]], expected[15] = 1, 0  # patch 11 is covered by exactly one half
    assert labels(tmp_path).tolist() == expected.tolist()


def test_drawings_count_from_the_corner_of_the_scanned_area(tmp_path):
    drawing(tmp_path / "a.geojson", feature("lesion", box(0, 0, 100, 100)))
    assert np.flatnonzero(labels(tmp_path, corner=(200, 100)) == 1).tolist() == [6]


def test_a_point_marks_the_patch_it_lies_in(tmp_path):
    one = feature("positive", kind="Point", coordinates=[250, 120])
    many = feature("negative", kind="MultiPoint", coordinates=[[1, 1], [399, 399]])
    drawing(tmp_path / "a.geojson", one, many)
    found = labels(tmp_path)
    assert np.flatnonzero(found == 1).tolist() == [6]
    assert np.flatnonzero(found == 0).tolist() == [0, 15]


def test_tables_mark_by_number_by_place_or_by_both_and_rows_without_label_are_open(tmp_path):
    rows = ["a,3,,,lesion", "a,,210,199,0", "a,7,300,100,not lesion", "a,9,,,", "b,0,,,1"]
    (tmp_path / "m.csv").write_text("id,instance,x,y,label\n" + "\n".join(rows))
    found = labels(tmp_path)
    assert np.flatnonzero(found == 1).tolist() == [3]
    assert np.flatnonzero(found == 0).tolist() == [6, 7]
    assert set(find_marks(tmp_path, ["a"])[0]) == {"a", "b"}


def test_of_overlapping_patches_the_one_whose_middle_is_nearest_is_meant(tmp_path):
    (tmp_path / "m.csv").write_text("id,x,y,label\na,60,0,1\n")
    found = find_marks(tmp_path / "m.csv", [])[0]["a"]
    assert found.labels(2, np.array([[0.0, 0.0], [40.0, 0.0]]), PATCH).tolist() == [1, -1]


def test_slices_are_marked_by_their_height_and_ids_a_spreadsheet_would_compute_come_back(tmp_path):
    (tmp_path / "m.csv").write_text("id,z,label\n'=scan,4,1\n")
    found = find_marks(tmp_path, [])[0]["=scan"]
    assert found.labels(6, np.arange(6.0)[:, None], (1.0,)).tolist() == [-1, -1, -1, -1, 1, -1]


def test_ids_with_strange_characters_are_found_by_the_name_of_their_file(tmp_path):
    drawing(tmp_path / "a%2Fb.geojson", feature("lesion", box(0, 0, 100, 100)))
    drawing(tmp_path / "other.geojson", feature("lesion", box(0, 0, 100, 100)))
    found, strays = find_marks(tmp_path, ["a/b"])
    assert list(found) == ["a/b"]
    assert strays == ["other.geojson"]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("id,instance,label\na,3,1\na,3,0\n", "instance 3 of 'a' is marked both as lesion and as not"),
        ("id,instance,label\na,16,1\n", "instance 16, but 'a' has only 16"),
        ("id,instance,of,label\na,3,99,1\n", "another tiling"),
        ("id,instance,x,y,label\na,3,0,0,1\n", "instance 3 of 'a' lies at 300, 0: the marks are of another tiling"),
        ("id,x,y,label\na,4000,0,1\n", "no instance of 'a' lies at 4000, 0"),
        ("id,instance,label\na,3,maybe\n", "line 2: class 'maybe' says neither lesion"),
        ("id,instance,label\na,-1,1\n", "expected its number, counted from 0"),
        ("id,instance,label\na,one,1\n", "'one' is no place"),
        ("id,instance,label\na,,1\n", "has a label but neither instance nor place"),
        ("id,label\na,1\n", "says not where the marks are"),
        ("instance,label\n1,1\n", "column 'id' is missing"),
    ],
)
def test_what_could_mean_something_else_is_refused_in_one_line(tmp_path, rows, problem):
    (tmp_path / "m.csv").write_text(rows)
    with pytest.raises(DataError) as found:
        labels(tmp_path)
    assert problem in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("Stroma", box(0, 0, 100, 100), "class 'Stroma' says neither lesion"),
        (None, box(0, 0, 100, 100), "class '' says neither lesion"),
        ("Tumor", box(0, 0, 30, 30), "its lesions cover no patch by more than half"),
    ],
)
def test_drawings_that_would_be_lost_are_refused(tmp_path, name, shape, problem):
    drawing(tmp_path / "a.geojson", feature(name, shape))
    with pytest.raises(DataError, match=r"a\.geojson") as found:
        labels(tmp_path)
    assert problem in str(found.value)


def test_a_folder_without_marks_and_one_that_is_not_there_are_named(tmp_path):
    with pytest.raises(DataError, match="holds no marks; expected"):
        find_marks(tmp_path, [])
    with pytest.raises(DataError, match="no such file or folder"):
        find_marks(tmp_path / "gone", [])
