"""From annotation files to instance labels: one drawing, five formats, the same labels."""

import json

import nibabel
import numpy as np
import pytest
import tifffile
import torch
from support import drawings

from smmil.bag import Bag
from smmil.data.tables import read_instance_labels
from smmil.errors import ConfigError, DataError
from smmil.frame import Frame
from smmil.prepare.annotate import annotate_case, negative_case, read_labels, write_labels


def in_all_formats(folder, x, y, side, size):
    codes = np.zeros((size, size), np.uint8)
    codes[y : y + side, x : x + side] = 1
    tifffile.imwrite(folder / "m.tiff", codes, tile=(64, 64), compression="deflate")
    ring = drawings.square(x, y, side)
    return [
        drawings.asap(folder / "a.xml", [("_0", ring)]),
        drawings.geojson(folder / "g.geojson", [[ring]]),
        drawings.boxes(folder / "b.csv", [(x, y, side, side)]),
        drawings.mask(folder / "m.png", codes),
        folder / "m.tiff",
    ]


@pytest.mark.parametrize(("patch", "step"), [(16, 16), (32, 24), (20, 13)])
@pytest.mark.parametrize("place", [(48, 64, 80), (37, 51, 45), (0, 0, 48)])
def test_a_planted_square_gives_the_same_labels_in_every_format(tmp_path, patch, step, place):
    bag = drawings.lattice(12, 11, patch, step=step)
    size = int(bag.coords.max()) + patch
    codes = np.zeros((size, size))
    x, y, side = place
    codes[y : y + side, x : x + side] = 1
    share = np.array([codes[v : v + patch, u : u + patch].mean() for u, v in bag.coords.tolist()])
    for path in in_all_formats(tmp_path, *place, size):
        found = annotate_case(bag, path)
        assert np.allclose(found.share, share, atol=1e-8), path
        assert found.labels.tolist() == (share > 0.5).tolist(), path
    assert (share > 0.5).any()


def test_more_than_half_is_positive_and_exactly_half_is_not(tmp_path):
    bag = drawings.lattice(3, 1, 10)
    codes = np.zeros((10, 30), np.uint8)
    codes[:, :5], codes[:, 10:15], codes[0, 15], codes[:, 20:24] = 1, 1, 1, 1
    path = drawings.mask(tmp_path / "m.png", codes)
    found = annotate_case(bag, path)
    assert found.share.tolist() == [0.5, 0.51, 0.4]
    assert found.labels.tolist() == [0, 1, 0]
    assert annotate_case(bag, path, coverage=0.4).labels.tolist() == [1, 1, 0]
    assert annotate_case(bag, path, coverage=0).labels.tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match="coverage must be at least 0 and less than 1, got 1"):
        annotate_case(bag, path, coverage=1)


def test_the_sidecar_keeps_labels_shares_and_origin_and_reads_as_instance_labels(tmp_path):
    bag = drawings.lattice(4, 4, 10)
    path = drawings.asap(
        tmp_path / "tumor_001.xml", [("Tumor", drawings.square(3, 4, 21)), ("_2", drawings.square(5, 5, 3))]
    )
    found = annotate_case(bag, path, coverage=0.3)
    write_labels(tmp_path / "labels" / "case.csv", found)
    back = read_labels(tmp_path / "labels" / "case.csv")
    assert np.array_equal(back.labels, found.labels)
    assert np.array_equal(back.share, found.share)
    assert back.about == found.about
    assert back.about["coverage"] == 0.3
    assert back.about["annotation"] == "tumor_001.xml"
    assert str(tmp_path) not in json.dumps(back.about)
    assert np.array_equal(read_instance_labels(tmp_path / "labels" / "case.csv"), found.labels)


def test_origin_changes_with_the_annotation_and_with_the_tiling(tmp_path):
    one = drawings.boxes(tmp_path / "1.csv", [(0, 0, 10, 10)])
    other = drawings.boxes(tmp_path / "2.csv", [(0, 0, 10, 11)])
    bag, moved = drawings.lattice(2, 2, 10), drawings.lattice(2, 2, 10, origin=(1, 0))
    first = annotate_case(bag, one).about
    assert annotate_case(bag, one).about == first
    assert annotate_case(bag, other).about["digest"] != first["digest"]
    assert annotate_case(moved, one).about["coords"] != first["coords"]


def test_a_sidecar_that_was_tampered_with_is_refused(tmp_path):
    write_labels(tmp_path / "l.csv", negative_case(drawings.lattice(2, 1, 10)))
    text = (tmp_path / "l.csv").read_text()
    (tmp_path / "l.csv").write_text(text.replace("0.0", "7.0"))
    with pytest.raises(DataError, match="share and about make no sense"):
        read_labels(tmp_path / "l.csv")
    with pytest.raises(ConfigError, match=r"written as \.csv"):
        write_labels(tmp_path / "l.npy", negative_case(drawings.lattice(2, 1, 10)))


def test_a_normal_slide_has_zeros_and_a_partly_marked_one_unknowns(tmp_path):
    bag = drawings.lattice(3, 1, 10)
    assert negative_case(bag).labels.tolist() == [0, 0, 0]
    path = drawings.boxes(tmp_path / "b.csv", [(10, 0, 10, 10)])
    assert annotate_case(bag, path, complete=False).labels.tolist() == [-1, 1, -1]


def test_geojson_of_qupath_counts_from_the_scanned_area_and_xml_from_the_slide(tmp_path):
    bag = drawings.lattice(4, 4, 10, origin=(100, 200))
    drawn = drawings.geojson(tmp_path / "g.geojson", [[drawings.square(10, 20, 10)]])
    assert np.flatnonzero(annotate_case(bag, drawn, bounds=(100, 200, 40, 40)).labels).tolist() == [9]
    assert not annotate_case(bag, drawn).labels.any()
    xml = drawings.asap(tmp_path / "a.xml", [("_1", drawings.square(110, 220, 10))])
    assert np.flatnonzero(annotate_case(bag, xml, bounds=(100, 200, 40, 40)).labels).tolist() == [9]


def test_a_small_mask_needs_its_pixel_size_and_then_lies_right(tmp_path):
    bag = drawings.lattice(6, 5, 64, spacing=0.25)
    codes = np.zeros((20, 24), np.uint8)
    codes[8:12, 4:12] = 255
    path = drawings.mask(tmp_path / "m.png", codes)
    with pytest.raises(DataError, match="instances lie outside the 24 x 20 mask; if it is smaller"):
        annotate_case(bag, path)
    assert np.flatnonzero(annotate_case(bag, path, mpp=4.0).labels).tolist() == [13, 14]
    with pytest.raises(DataError, match="pixel size of the slide is not known"):
        annotate_case(drawings.lattice(6, 5, 64), path, mpp=4.0)


def test_a_mask_of_the_scanned_area_begins_where_that_does(tmp_path):
    bag = drawings.lattice(3, 2, 10, origin=(50, 70))
    codes = np.zeros((20, 30), np.uint8)
    codes[10:, 20:] = 1
    path = drawings.mask(tmp_path / "m.png", codes)
    assert np.flatnonzero(annotate_case(bag, path, bounds=(50, 70, 30, 20)).labels).tolist() == [5]
    with pytest.raises(DataError, match="lie outside"):
        annotate_case(bag, path)


def ct_bag(n):
    return Bag("scan", torch.zeros(n, 2), torch.arange(n)[:, None], Frame((1,), (5.0,), "mm"))


def test_a_label_volume_marks_every_slice_that_holds_a_voxel_whichever_way_it_was_stored(tmp_path):
    codes = np.zeros((8, 9, 5), np.uint8)
    codes[2, 3, 3] = 1
    affine = np.diag([-1.0, -1, 5, 1])
    nibabel.save(nibabel.Nifti1Image(codes, affine), tmp_path / "m.nii.gz")
    found = annotate_case(ct_bag(5), tmp_path / "m.nii.gz")
    assert found.labels.tolist() == [0, 0, 0, 1, 0]
    assert found.share[3] == pytest.approx(1 / 72)
    assert found.about["coverage"] == 0
    upside_down = affine @ np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 4], [0, 0, 0, 1.0]])
    nibabel.save(nibabel.Nifti1Image(codes[:, :, ::-1], upside_down), tmp_path / "u.nii.gz")
    assert annotate_case(ct_bag(5), tmp_path / "u.nii.gz").labels.tolist() == [0, 0, 0, 1, 0]
    with pytest.raises(DataError, match="5 slices for a scan of 4"):
        annotate_case(ct_bag(4), tmp_path / "m.nii.gz")


def test_slice_labels_follow_the_order_of_the_scan_not_of_the_table(tmp_path):
    rows = {"ID_c": 1, "ID_a": 0, "ID_b": 1}
    text = "".join(f"{s}_any,{v}\n{s}_epidural,{v if s == 'ID_b' else 0}\n" for s, v in rows.items())
    (tmp_path / "s.csv").write_text("ID,Label\n" + text)
    bag = ct_bag(3)
    assert annotate_case(bag, tmp_path / "s.csv", slices=["ID_b", "ID_a", "ID_c"]).labels.tolist() == [1, 0, 1]
    chosen = annotate_case(bag, tmp_path / "s.csv", slices=["ID_a", "ID_b", "ID_c"], positive=["epidural"])
    assert chosen.labels.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="no label for 1 of 3 slices, such as 'ID_d'"):
        annotate_case(bag, tmp_path / "s.csv", slices=["ID_a", "ID_b", "ID_d"])
    with pytest.raises(DataError, match="need the name of each of 3 slices, got none"):
        annotate_case(bag, tmp_path / "s.csv")


def test_kinds_are_told_by_name_and_never_guessed(tmp_path):
    bag = drawings.lattice(2, 2, 10)
    drawings.mask(tmp_path / "x_mask.tiff", np.zeros((20, 20)))
    with pytest.raises(DataError, match="codes differ between its two providers; give the kind: panda-radboud"):
        annotate_case(bag, tmp_path / "x_mask.tiff")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="neither ID,Label of slices nor x,y,width,height"):
        annotate_case(bag, tmp_path / "x.csv")
    (tmp_path / "x.doc").write_text("")
    with pytest.raises(DataError, match="cannot tell what kind"):
        annotate_case(bag, tmp_path / "x.doc")
    with pytest.raises(ConfigError, match="did you mean geojson"):
        annotate_case(bag, tmp_path / "x.csv", kind="geojsn")
    with pytest.raises(DataError, match="no such file"):
        annotate_case(bag, tmp_path / "absent.xml")
    with pytest.raises(DataError, match="areas need coordinates"):
        annotate_case(ct_bag(3), drawings.boxes(tmp_path / "b.csv", [(0, 0, 1, 1)]))
