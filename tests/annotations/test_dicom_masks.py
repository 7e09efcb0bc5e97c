"""DICOM masks: what highdicom wrote is read back exactly; contours against a test of every pixel in the patient."""

import time

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from pydicom.sequence import Sequence
from support.ct_makers import ORIGIN, SPACING, change, series, voxels
from support.dicom_makers import enhanced, item, segmentation, structure_set

from smmil.annotations.dicom_masks import read_dicom_mask
from smmil.bag import Bag
from smmil.errors import DataError
from smmil.frame import Frame
from smmil.images.volume import open_volume
from smmil.prepare.annotate import annotate_case

SLANT = np.radians(25)
ORIENTATIONS = {
    "as shown": (1, 0, 0, 0, 1, 0),
    "quarter turn": (0, 1, 0, -1, 0, 0),
    "upside down": (1, 0, 0, 0, -1, 0),
    "coronal": (1, 0, 0, 0, 0, -1),
    "turned in the plane": (np.cos(SLANT), np.sin(SLANT), 0, -np.sin(SLANT), np.cos(SLANT), 0),
    "oblique": (np.cos(SLANT), np.sin(SLANT), 0, -np.sin(SLANT) * 0.8, np.cos(SLANT) * 0.8, -0.6),
}


def truth(shape=(6, 9, 7), seed=1, share=0.3):
    """A mask without symmetry, with an empty slice, as its frames are left out."""
    mask = np.random.default_rng(seed).random(shape) < share
    mask[2] = False
    return mask


def masks(path, scan, kind="dicom-seg", positive=None):
    found, notes = read_dicom_mask(path, kind, scan, positive)
    return np.stack(list(found)), notes


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scan")
    hu, files = series(folder / "ct")
    return folder, hu, files, open_volume(folder / "ct")


def as_scan(tmp_path, mask, orientation, spacing=SPACING):
    """The mask written as if it were voxels, read as a scan: what every mask over these slices must look like."""
    series(tmp_path / "truth", mask.astype(np.float32), spacing, orientation=orientation)
    return open_volume(tmp_path / "truth").hu == 1


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
@pytest.mark.parametrize("name", ORIENTATIONS)
def test_a_segmentation_is_read_back_exactly_after_its_frames_were_shuffled(tmp_path, name, kind):
    orientation, mask = ORIENTATIONS[name], truth()
    _, files = series(tmp_path / "ct", orientation=orientation)
    pixels = mask.astype(np.float64) if kind == "FRACTIONAL" else mask.astype(np.uint8)
    file = segmentation(tmp_path / "m.dcm", files, pixels, kind=kind, shuffle=4)
    assert pydicom.dcmread(file).NumberOfFrames == 5  # the empty slice has none
    found, notes = masks(file, open_volume(tmp_path / "ct"))
    assert np.array_equal(found, as_scan(tmp_path, mask, orientation))
    assert notes == []


def test_a_fraction_of_more_than_half_is_lesion(scan):
    folder, _, files, volume = scan
    values = np.random.default_rng(2).integers(0, 255, (6, 9, 7), endpoint=True)
    values[0, 0, :4] = (127, 128, 254, 1)
    file = segmentation(folder / "f.dcm", files, values / 255, kind="FRACTIONAL", max_fractional_value=255)
    assert np.array_equal(masks(file, volume)[0], values > 127.5)
    values = values % 101
    file = segmentation(folder / "f.dcm", files, values / 100, kind="FRACTIONAL", max_fractional_value=100)
    assert (values == 50).any()
    assert np.array_equal(masks(file, volume)[0], values > 50)  # exactly one half is none


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_segments_are_chosen_by_number_by_name_or_all(scan, kind):
    folder, _, files, volume = scan
    codes = np.random.default_rng(3).integers(0, 4, (6, 9, 7)).astype(np.uint8)
    layers = np.stack([codes == n for n in (1, 2, 3)], axis=-1)
    pixels = {"LABELMAP": codes, "BINARY": layers.astype(np.uint8), "FRACTIONAL": layers.astype(float)}[kind]
    labels = ("blood", "Oedema Doe^Jane", "2")
    file = segmentation(folder / "s.dcm", files, pixels, kind=kind, labels=labels, shuffle=5)
    for positive, numbers in (
        (["1"], [1]),
        ([3], [3]),
        (["BLOOD", "3"], [1, 3]),
        (["any"], [1, 2, 3]),
        (["2"], [2, 3]),
    ):
        assert np.array_equal(masks(file, volume, positive=positive)[0], np.isin(codes, numbers)), positive
    with pytest.raises(DataError, match=r"s\.dcm: holds the segments 1, 2, 3; say which") as told:
        masks(file, volume)
    assert "Jane" not in str(told.value)
    with pytest.raises(DataError, match="no segment has the number or name 'tumour'; there are the numbers 1, 2, 3"):
        masks(file, volume, positive=["tumour"])


def test_overlapping_segments_are_joined(scan):
    folder, _, files, volume = scan
    one, two = truth(seed=1), truth(seed=2)
    layers = np.stack([one, two], axis=-1).astype(np.uint8)
    file = segmentation(folder / "o.dcm", files, layers, labels=("a", "b"), shuffle=1)
    assert np.array_equal(masks(file, volume, positive=["any"])[0], one | two)


def test_a_segmentation_of_a_tilted_uneven_series_lies_on_its_slices(tmp_path):
    _, files = series(tmp_path / "ct")
    for index, path in enumerate(files):
        change(
            path, ImagePositionPatient=[ORIGIN[0], ORIGIN[1] + 1.5 * index, ORIGIN[2] + 5.0 * index + (index > 3) * 4]
        )
    file = segmentation(tmp_path / "m.dcm", files, truth().astype(np.uint8), shuffle=2)
    assert np.array_equal(masks(file, open_volume(tmp_path / "ct"))[0], truth())


def test_a_segmentation_of_an_enhanced_file_is_that_of_the_classic_series(tmp_path):
    _, files = series(tmp_path / "ct")
    order = [3, 0, 5, 1, 4, 2]
    file = enhanced(tmp_path / "e.dcm", files, order, shared=True)
    mask = segmentation(tmp_path / "m.dcm", [file], truth()[order].astype(np.uint8), shuffle=6)
    assert np.array_equal(masks(mask, open_volume(file))[0], truth())


def test_the_same_mask_fits_the_scan_as_nifti(scan, tmp_path):
    _, hu, files, volume = scan
    nibabel.save(nibabel.Nifti1Image(hu.transpose(2, 1, 0).astype(np.int16), volume.affine), tmp_path / "a.nii.gz")
    nifti = open_volume(tmp_path / "a.nii.gz")
    file = segmentation(tmp_path / "m.dcm", files, truth().astype(np.uint8))
    assert np.array_equal(masks(file, nifti)[0], truth())
    drawing = structure_set(tmp_path / "r.dcm", files[0], {1: ("a", [square(volume, 1, 1.5, 5.5, 2.5, 6.5)])})
    assert np.array_equal(masks(drawing, nifti, "rtstruct")[0], masks(drawing, volume, "rtstruct")[0])


def moved(by):
    def change_all(made):
        for frame in made.PerFrameFunctionalGroupsSequence:
            place = frame.PlanePositionSequence[0]
            place.ImagePositionPatient = [float(a) + b for a, b in zip(place.ImagePositionPatient, by, strict=True)]

    return change_all


def shared(sequence, **values):
    def change_it(made):
        for name, value in values.items():
            setattr(made.SharedFunctionalGroupsSequence[0][sequence][0], name, value)

    return change_it


def referring(series_uid=None, reference=None):
    def change_it(made):
        if series_uid:
            made.ReferencedSeriesSequence[0].SeriesInstanceUID = series_uid
        if reference:
            made.FrameOfReferenceUID = reference

    return change_it


def twice(made):
    frames = made.PerFrameFunctionalGroupsSequence
    frames[1].PlanePositionSequence = frames[0].PlanePositionSequence


def beyond(made):
    made.SharedFunctionalGroupsSequence[0].SegmentIdentificationSequence[0].ReferencedSegmentNumber = 9


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (moved((0, 0, 2.0)), r"frame 1 lies up to 2 mm from the nearest slice of the scan, one every 5 mm"),
        (moved((0, 0, 100.0)), "from the nearest slice"),
        (moved((0.5, 0, 0)), r"frame 1 lies 1 pixels beside the slice"),
        (moved((0, 3.0, 0)), r"frame 1 lies 4 pixels beside"),
        (shared("PixelMeasuresSequence", PixelSpacing=[0.5, 0.5]), r"frame 1 lies 2\.67 pixels beside"),
        (
            shared("PlaneOrientationSequence", ImageOrientationPatient=[np.cos(0.2), 0, np.sin(0.2), 0, 1, 0]),
            "from the nearest slice",
        ),
        (referring(series_uid="1.2.3"), r"is a mask of the series \w{8}, the scan has \w{8}"),
        (referring(reference="1.2.3"), r"is a mask of the frame of reference \w{8}, the scan has \w{8}"),
        (twice, "frame 2 is the second of its segment in one slice"),
        (beyond, "frame 1 is of a segment that is not described"),
        (lambda made: setattr(made, "SegmentationType", "OTHER"), "SegmentationType is none of"),
        (lambda made: setattr(made, "SegmentSequence", Sequence()), "holds no segment"),
        (lambda made: setattr(made, "NumberOfFrames", 2**30), "NumberOfFrames is 1,073,741,824"),
        (lambda made: setattr(made, "NumberOfFrames", 70_000), "NumberOfFrames is 70,000, but 5 are described"),
        (lambda made: setattr(made, "PixelData", made.PixelData[:10]), "PixelData has 10 bytes, 5 frames need 40"),
        (lambda made: delattr(made, "SharedFunctionalGroupsSequence"), "PixelSpacing is missing"),
        (moved((0, 0, float("nan"))), "ImagePositionPatient is not 3 finite"),
    ],
)
def test_a_segmentation_that_does_not_fit_is_refused_in_one_line(scan, tmp_path, damage, said):
    _, _, files, volume = scan
    file = segmentation(tmp_path / "m.dcm", files, truth().astype(np.uint8), change=damage)
    with pytest.raises(DataError, match=said) as told:
        masks(file, volume)
    assert str(told.value).count("m.dcm: ") == 1
    assert "\n" not in str(told.value)
    assert not any(uid in str(told.value) for uid in ("1.2.3", str(pydicom.dcmread(files[0]).SeriesInstanceUID)))


def test_a_mask_of_another_size_is_refused(scan, tmp_path):
    _, _, files, _ = scan
    file = segmentation(tmp_path / "m.dcm", files, truth().astype(np.uint8))
    series(tmp_path / "other", voxels(6, 18, 14))
    for path in (tmp_path / "other").iterdir():
        change(path, SeriesInstanceUID=pydicom.dcmread(files[0]).SeriesInstanceUID)
        change(path, FrameOfReferenceUID=pydicom.dcmread(files[0]).FrameOfReferenceUID)
    with pytest.raises(DataError, match="frame 1 has 9 x 7 pixels, a slice of the scan 18 x 14"):
        masks(file, open_volume(tmp_path / "other"))


# Contours: patient coordinates of points given in columns and rows of a slice as shown.


def patient(volume, index, points):
    """(n, 3) LPS of (column, row) points on a slice, or at a fraction between two."""
    points = np.asarray(points, float)
    homogeneous = np.column_stack([points, np.full(len(points), index), np.ones(len(points))])
    return (homogeneous @ volume.affine.T)[:, :3] * (-1, -1, 1)


def square(volume, index, left, right, top, bottom):
    return patient(volume, index, [(left, top), (right, top), (right, bottom), (left, bottom)])


def inside(point, ring):
    """Whether a ray from the point to the right crosses the ring an odd number of times; plane coordinates."""
    odd = False
    for (x, y), (u, v) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        if (y > point[1]) != (v > point[1]) and point[0] < x + (point[1] - y) / (v - y) * (u - x):
            odd = not odd
    return odd


def reference(volume, contours):
    """Pixel by pixel through the affine: is the middle, in the patient, inside an odd number of its slice's rings?"""
    marked = np.zeros(volume.shape, bool)
    across, down = (volume.affine[:3, k] * (-1, -1, 1) for k in (0, 1))
    across, down = across / np.linalg.norm(across), down / np.linalg.norm(down)
    normal = np.cross(across, down)
    for index in range(len(volume)):
        middle = patient(volume, index, [(0, 0)])[0]
        rings = [ring for ring in contours if abs((ring[0] - middle) @ normal) < volume.distance_mm / 2]
        flat = [np.column_stack([ring @ across, ring @ down]) for ring in rings]
        for row in range(volume.shape[1]):
            for column in range(volume.shape[2]):
                place = patient(volume, index, [(column, row)])[0]
                point = (place @ across, place @ down)
                marked[index, row, column] = sum(inside(point, ring) for ring in flat) % 2
    return marked


def blob(rng, volume, index, corners=14):
    """A wild ring around the middle of a slice, some of it outside."""
    turn = np.sort(rng.uniform(0, 2 * np.pi, corners))
    size = rng.uniform(0.3, 1.3, (corners, 1)) * np.array(volume.shape[:0:-1]) / 2
    middle = (np.array(volume.shape[:0:-1]) - 1) / 2
    return patient(volume, index, middle + size * np.column_stack([np.cos(turn), np.sin(turn)]))


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_contours_mark_the_pixels_whose_middle_they_enclose_in_the_patient(tmp_path, name):
    _, files = series(tmp_path / "ct", voxels(4, 12, 15), orientation=ORIENTATIONS[name])
    volume, rng = open_volume(tmp_path / "ct"), np.random.default_rng(len(name))
    rings = [blob(rng, volume, index) for index in (0, 2, 2, 3)]  # two rings in a slice, one inside the other or across
    rng.shuffle(rings)
    file = structure_set(tmp_path / "r.dcm", files[0], {4: ("any name", rings)})
    found, notes = masks(file, volume, "rtstruct")
    expected = reference(volume, rings)
    assert expected[[0, 2, 3]].any((1, 2)).all()
    assert not expected[1].any()
    assert np.array_equal(found, expected)
    assert notes == []


def test_a_ring_inside_another_is_a_hole_and_regions_are_joined(scan, tmp_path):
    _, _, files, volume = scan
    outer, inner = square(volume, 1, 0.5, 5.5, 0.5, 7.5), square(volume, 1, 1.5, 3.5, 2.5, 4.5)
    filling = square(volume, 1, 1.5, 2.5, 2.5, 4.5)
    regions = {2: ("GTV Doe^Jane", [outer, inner]), 5: ("node", [filling])}
    file = structure_set(tmp_path / "r.dcm", files[0], regions)
    ring = np.zeros((9, 7), bool)
    ring[1:8, 1:6] = True
    ring[3:5, 2:4] = False
    joined = ring.copy()
    joined[3:5, 2] = True
    for positive, expected in ((["gtv doe^jane"], ring), (["2"], ring), (["any"], joined), (["2", "node"], joined)):
        found = masks(file, volume, "rtstruct", positive)[0]
        assert np.array_equal(found[1], expected), positive
        assert found.any((1, 2)).tolist() == [False, True, False, False, False, False]
    with pytest.raises(DataError, match=r"holds the regions 2, 5; say which") as told:
        masks(file, volume, "rtstruct")
    assert "Jane" not in str(told.value)


def test_contours_between_slices_go_to_the_nearest_and_do_not_cut_each_other(scan, tmp_path):
    _, _, files, volume = scan
    rings = [square(volume, z, 0.5, 3.5, 0.5, 3.5) for z in (1.0, 1.2, 1.4)]  # drawn on slices of a fifth
    rings.append(square(volume, -0.4, 2.5, 4.5, 2.5, 4.5))
    found, _ = masks(structure_set(tmp_path / "r.dcm", files[0], {1: ("a", rings)}), volume, "rtstruct")
    expected = np.zeros(volume.shape, bool)
    expected[1, 1:4, 1:4] = expected[0, 3:5, 3:5] = True
    assert np.array_equal(found, expected)
    beyond = structure_set(tmp_path / "b.dcm", files[0], {1: ("a", [square(volume, 5.6, 0.5, 3.5, 0.5, 3.5)])})
    with pytest.raises(DataError, match=r"contour 1 of region 1 lies up to 3 mm from the nearest slice"):
        masks(beyond, volume, "rtstruct")


def test_neighbours_that_share_a_line_through_middles_share_no_pixel(scan, tmp_path):
    _, _, files, volume = scan
    left, right = square(volume, 0, 1, 3, 1, 6), square(volume, 0, 3, 5, 1, 6)
    found = []
    for ring in (left, right):
        file = structure_set(tmp_path / "r.dcm", files[0], {1: ("a", [ring])})
        found.append(masks(file, volume, "rtstruct")[0][0])
    assert not (found[0] & found[1]).any()
    whole = np.zeros((9, 7), bool)
    whole[1:6, 1:5] = True
    assert np.array_equal(found[0] | found[1], whole)


def test_points_lines_and_specks_are_passed_over_with_a_note(scan, tmp_path):
    _, _, files, volume = scan
    speck, good = square(volume, 1, 2.2, 2.6, 3.2, 3.6), square(volume, 1, 0.5, 1.5, 0.5, 1.5)
    contours = [("POINT", good[:1]), ("OPEN_PLANAR", good), good[:2], speck, good]
    found, notes = masks(structure_set(tmp_path / "r.dcm", files[0], {1: ("a", contours)}), volume, "rtstruct")
    assert np.argwhere(found).tolist() == [[1, 1, 1]]
    assert notes == [
        "2 contour(s) are points or open lines and were passed over",
        "2 contour(s) enclose no middle of a pixel and count for nothing",
    ]


def contour(made, place=0):
    return made.ROIContourSequence[0].ContourSequence[place]


def rewritten(**values):
    def change_it(made):
        for name, value in values.items():
            setattr(contour(made), name, value)

    return change_it


def raw(text):
    def change_it(made):
        del contour(made).ContourData, contour(made).NumberOfContourPoints
        contour(made).add_new("ContourData", "UN", text)

    return change_it


def many(points, times=1):
    """Contours of so many points each, as text: pydicom would need minutes to check them."""

    def change_it(made):
        zigzag = b"\\".join(b"%d\\%d\\40" % (n % 2, n % 5) for n in range(points))
        one = item(ContourGeometricType="CLOSED_PLANAR", NumberOfContourPoints=points)
        one.add_new("ContourData", "UN", zigzag + b" " * (len(zigzag) % 2))
        made.ROIContourSequence[0].ContourSequence = Sequence([one] * times)

    return change_it


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (rewritten(ContourData=["1", "2", "nan"] * 4), "contour 1 of region 1 has a point that is no number"),
        (rewritten(ContourData=["1", "2", "1e400"] * 4), "lies far from any patient"),
        (rewritten(ContourData=["1e30", "2", "40"] * 4), "lies far from any patient"),
        (rewritten(ContourData=["1", "2", "40", "3"]), "not three for each point"),
        (rewritten(NumberOfContourPoints=17), "not three for each point"),
        (raw(b"1\\2\\" + b"7" * 40), "holds what is no number"),
        (raw(b""), None),
        (many(1_000_000), "has 1,000,000 points, at most 100,000"),
        (lambda made: setattr(made, "ROIContourSequence", Sequence()), None),
        (lambda made: setattr(made, "StructureSetROISequence", Sequence()), "holds no region"),
        (lambda made: setattr(made, "Modality", "RTDOSE"), "is another DICOM file, not rtstruct"),
    ],
)
def test_a_structure_set_that_makes_no_sense_is_refused_in_one_line(scan, tmp_path, damage, said):
    _, _, files, volume = scan
    file = tmp_path / "r.dcm"
    with pydicom.config.disable_value_validation():
        structure_set(file, files[0], {1: ("a", [square(volume, 1, 0.5, 3.5, 0.5, 3.5)])}, change=damage)
    if said is None:
        assert not masks(file, volume, "rtstruct")[0].any()
        return
    with pytest.raises(DataError, match=said) as told:
        masks(file, volume, "rtstruct")
    assert str(told.value).count("r.dcm: ") == 1
    assert "\n" not in str(told.value)


def test_letters_among_the_points_are_not_repeated(scan, tmp_path):
    _, _, files, volume = scan
    file = structure_set(tmp_path / "r.dcm", files[0], {1: ("a", [square(volume, 1, 0.5, 3.5, 0.5, 3.5)])})
    data = file.read_bytes()
    assert b"-9.75\\" in data
    file.write_bytes(data.replace(b"-9.75\\", b"Jane \\"))
    with pytest.raises(DataError, match=r"not readable as a DICOM RTSTRUCT \(ValueError\)"):
        masks(file, volume, "rtstruct")


def test_a_million_points_in_many_contours_take_seconds(scan, tmp_path):
    _, _, files, volume = scan
    file = structure_set(
        tmp_path / "r.dcm", files[0], {1: ("a", [square(volume, 2, 0, 1, 0, 1)])}, change=many(50_000, 20)
    )
    begun = time.process_time()
    masks(file, volume, "rtstruct")
    assert time.process_time() - begun < 20


def test_contours_in_other_coordinates_are_refused(scan, tmp_path):
    _, _, files, volume = scan
    ring = square(volume, 1, 0.5, 3.5, 0.5, 3.5)
    file = structure_set(tmp_path / "r.dcm", files[0], {1: ("a", [ring])}, reference="1.2.3")
    with pytest.raises(DataError, match=r"is a mask of the frame of reference \w{8}, the scan has \w{8}"):
        masks(file, volume, "rtstruct")


# The road into bags: a slice is positive as soon as one voxel of it is marked.


@pytest.fixture
def bag():
    return Bag("scan", torch.zeros(6, 2), torch.arange(6)[:, None], Frame((1,), (5.0,), "mm"))


def test_slices_get_the_share_of_the_mask_and_the_kind_is_seen_from_the_file(scan, bag, tmp_path):
    _, _, files, volume = scan
    seg = segmentation(tmp_path / "mask", files, truth().astype(np.uint8))  # a name without ending, as a PACS gives
    found = annotate_case(bag, seg, scan=volume)
    assert found.about["kind"] == "dicom-seg"
    assert np.array_equal(found.share, truth().mean((1, 2)))
    assert found.labels.tolist() == [1, 1, 0, 1, 1, 1]
    ring = square(volume, 3, 0.5, 1.5, 0.5, 1.5)
    drawing = structure_set(tmp_path / "r.dcm", files[0], {1: ("a", [ring, ("POINT", ring[:1])])})
    found = annotate_case(bag, drawing, scan=volume)
    assert found.about["kind"] == "rtstruct"
    assert found.labels.tolist() == [0, 0, 0, 1, 0, 0]
    assert found.share[3] == pytest.approx(1 / 63)
    assert found.about["notes"] == ["1 contour(s) are points or open lines and were passed over"]


def test_a_dicom_mask_without_its_scan_or_a_slice_as_mask_is_refused(scan, bag, tmp_path):
    _, _, files, volume = scan
    seg = segmentation(tmp_path / "m.dcm", files, truth().astype(np.uint8))
    with pytest.raises(DataError, match="needs the scan of 6 slices it was drawn on, got none"):
        annotate_case(bag, seg)
    with pytest.raises(DataError, match="is a DICOM file, but no mask; expected SEG or RTSTRUCT"):
        annotate_case(bag, files[0], scan=volume)
    with pytest.raises(DataError, match="is dicom-seg, not rtstruct"):
        annotate_case(bag, seg, kind="rtstruct", scan=volume)
