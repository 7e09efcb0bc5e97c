import random
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from support.ct_makers import ORIGIN, SPACING, change, change_all, compress, series, voxels

from smmil.errors import ConfigError, DataError
from smmil.images.dicom_series import find_series
from smmil.images.volume import open_volume

TEST_FILES = Path(get_testdata_file("CT_small.dcm")).parent


def ras(position):
    return np.array([-position[0], -position[1], position[2]])


def test_a_written_series_comes_back_voxel_by_voxel_and_foot_first(tmp_path):
    hu, paths = series(tmp_path)
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, hu)
    assert volume.hu.dtype == np.float32
    assert volume.shape == hu.shape
    assert volume.spacing_mm == SPACING
    assert volume.orientation == "LPS"
    assert volume.positions_mm.tolist() == [30, 35, 40, 45, 50, 55]
    assert volume.notes == ()
    assert volume.sop_uids == tuple(pydicom.dcmread(p).SOPInstanceUID for p in paths)
    assert (volume.frame.patch, volume.frame.spacing, volume.frame.unit) == ((1,), (5.0,), "mm")


def test_the_affine_gives_the_place_of_any_voxel(tmp_path):
    series(tmp_path)
    column, row, index = 3, 5, 2
    expected = ras([ORIGIN[0] + 3 * 0.5, ORIGIN[1] + 5 * 0.75, ORIGIN[2] + 2 * 5.0])
    assert np.allclose((open_volume(tmp_path).affine @ [column, row, index, 1])[:3], expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_names_numbers_and_folders_of_the_files_do_not_matter(tmp_path, seed):
    hu, paths = series(tmp_path / "before")
    before = open_volume(tmp_path / "before")
    names = list(range(len(paths)))
    random.Random(seed).shuffle(names)
    for path, name in zip(paths, names, strict=True):
        change(path, InstanceNumber=name)
        target = tmp_path / "after" / str(name % 2) / f"{name}.dcm"
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    after = open_volume(tmp_path / "after")
    assert np.array_equal(after.hu, hu)
    assert np.array_equal(after.affine, before.affine)
    assert after.sop_uids == before.sop_uids


def test_a_list_of_files_in_any_order_is_a_volume_too(tmp_path):
    hu, paths = series(tmp_path)
    assert np.array_equal(open_volume(paths[1:4][::-1]).hu, hu[1:4])


def test_one_slice_is_read_without_touching_the_others(tmp_path):
    hu, paths = series(tmp_path)
    volume = open_volume(tmp_path)
    for path in paths[:2] + paths[3:]:
        path.unlink()
    assert np.array_equal(volume.slice_hu(2), hu[2])
    with pytest.raises(DataError, match="no such file"):
        volume.slice_hu(0)
    with pytest.raises(ConfigError, match="slices 0 to 5"):
        volume.slice_hu(6)


# Stored orientations of an axial scan: how the shown array must be flipped or transposed to get what was stored.
AXIAL = {
    "as shown": ((1, 0, 0, 0, 1, 0), lambda v: v),
    "turned by half": ((-1, 0, 0, 0, -1, 0), lambda v: v[:, ::-1, ::-1]),
    "head first, mirrored": ((-1, 0, 0, 0, 1, 0), lambda v: v[::-1, :, ::-1]),
    "upside down": ((1, 0, 0, 0, -1, 0), lambda v: v[::-1, ::-1]),
    "rows and columns exchanged": ((0, 1, 0, 1, 0, 0), lambda v: v[::-1].swapaxes(1, 2)),
    "quarter turn": ((0, 1, 0, -1, 0, 0), lambda v: v[:, :, ::-1].swapaxes(1, 2)),
}


@pytest.mark.parametrize("name", AXIAL)
def test_the_same_anatomy_stored_another_way_round_is_the_same_volume(tmp_path, name):
    orientation, stored = AXIAL[name]
    hu = voxels()
    first = np.argwhere(np.ones_like(hu, dtype=bool)).reshape(*hu.shape, 3)
    corner = stored(first)[0, 0, 0]  # slice, row, column of the voxel that is stored first
    origin = np.array(ORIGIN) + corner[::-1] * np.array(SPACING)
    swapped = orientation[0] == 0
    spacing = (SPACING[1], SPACING[0], SPACING[2]) if swapped else SPACING
    series(tmp_path, stored(hu), spacing, origin_mm=origin, orientation=orientation)
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, hu)
    assert volume.spacing_mm == SPACING
    series(tmp_path / "plain", hu)
    plain = open_volume(tmp_path / "plain")
    assert np.allclose(volume.affine, plain.affine, atol=1e-12)
    assert np.allclose(volume.positions_mm, plain.positions_mm)


@pytest.mark.parametrize(
    ("orientation", "plane", "code"),
    [((1, 0, 0, 0, 0, -1), "coronal", "LIP"), ((0, 1, 0, 0, 0, -1), "sagittal", "PIR")],
)
def test_coronal_and_sagittal_series_keep_their_slices_and_say_so(tmp_path, orientation, plane, code):
    hu, _ = series(tmp_path, orientation=orientation)
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, hu)
    assert (volume.plane, volume.orientation) == (plane, code)
    assert volume.notes == (f"{plane} slices",)


def test_an_oblique_series_is_sorted_along_its_own_normal(tmp_path):
    tilt = np.radians(20)
    orientation = (1, 0, 0, 0, np.cos(tilt), -np.sin(tilt))
    hu, paths = series(tmp_path, orientation=orientation)
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, hu)
    assert volume.spacing_mm == pytest.approx(SPACING)
    assert np.allclose(np.diff(volume.positions_mm), 5.0)
    assert any("20.0 degrees oblique" in note for note in volume.notes)
    stored = pydicom.dcmread(paths[4])
    place = np.array(stored.ImagePositionPatient) + 2 * 0.5 * np.array(orientation[:3])
    assert np.allclose((volume.affine @ [2, 0, 4, 1])[:3], ras(place), atol=1e-6)


def test_gantry_tilt_stays_in_the_affine_and_the_distance_is_at_a_right_angle(tmp_path):
    hu, paths = series(tmp_path)
    for index, path in enumerate(paths):
        change(path, ImagePositionPatient=[ORIGIN[0], ORIGIN[1] + 1.5 * index, ORIGIN[2] + 5.0 * index])
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, hu)
    assert volume.spacing_mm == SPACING
    assert np.allclose(volume.affine[:3, 2], ras([0, 1.5, 5.0]))
    assert any("gantry tilt" in note and "16.7 degrees" in note for note in volume.notes)


def test_gaps_are_reported_with_their_places_and_refused_when_strict(tmp_path):
    hu, paths = series(tmp_path, voxels(8))
    paths[3].unlink()
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, np.delete(hu, 3, axis=0))
    assert volume.notes == ("1 gap(s) between slices otherwise 5.00 mm apart: from 40.00 to 50.00 mm",)
    assert volume.distance_mm == 5.0
    with pytest.raises(DataError, match=r"1 gap\(s\).*from 40.00 to 50.00 mm"):
        open_volume(tmp_path, strict=True)


def test_uneven_distances_and_sideways_steps_are_noted(tmp_path):
    _, paths = series(tmp_path)
    change(paths[-1], ImagePositionPatient=[ORIGIN[0], ORIGIN[1], 56.0])
    change(paths[2], ImagePositionPatient=[ORIGIN[0] + 3, ORIGIN[1], 40.0])
    notes = open_volume(tmp_path).notes
    assert "distances between slices vary from 5.00 to 6.00 mm" in notes
    assert "slices leave the straight line of the stack by up to 3.00 mm" in notes


def test_a_series_that_is_in_order_passes_the_strict_check(tmp_path):
    series(tmp_path)
    assert open_volume(tmp_path, strict=True).notes == ()


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"ImagePositionPatient": [-10, -20, 35]}, "lies in the same place as"),
        ({"ImageOrientationPatient": [0, 1, 0, -1, 0, 0]}, "orientation"),
        ({"PixelSpacing": [0.75, 0.9]}, "pixel spacing"),
        ({"Rows": 7, "Columns": 9}, "rows and columns"),
    ],
)
def test_mixtures_are_refused_by_name(tmp_path, tags, said):
    _, paths = series(tmp_path)
    change(paths[4], **tags)
    with pytest.raises(DataError, match=said) as error:
        open_volume(tmp_path)
    assert paths[4].name in str(error.value)


def test_several_series_are_listed_with_counts_and_one_can_be_chosen(tmp_path):
    one, _ = series(tmp_path / "a", voxels(3, seed=1))
    two, paths = series(tmp_path / "b", voxels(4, seed=2))
    with pytest.raises(DataError, match=r"2 series: \w{8} \(4 slices of 9 x 7\), \w{8} \(3 slices of 9 x 7\)") as error:
        open_volume(tmp_path)
    keys = [found.key for found in find_series(tmp_path)[0]]
    assert f"series='{keys[0]}'" in str(error.value)
    assert np.array_equal(open_volume(tmp_path, series=keys[1]).hu, one)
    uid = pydicom.dcmread(paths[0]).SeriesInstanceUID
    assert np.array_equal(open_volume(tmp_path, series=str(uid)).hu, two)
    assert str(uid) not in str(error.value)
    with pytest.raises(DataError, match="not here; there are"):
        open_volume(tmp_path, series="nonsense")


def test_other_files_are_passed_over_with_a_note_but_a_false_dcm_is_refused(tmp_path):
    hu, _ = series(tmp_path)
    (tmp_path / "readme.txt").write_text("hello")
    (tmp_path / ".hidden.dcm").write_text("hello")
    (tmp_path / "mr.dcm").write_bytes((TEST_FILES / "MR_small.dcm").read_bytes())
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, hu)
    assert volume.notes == ("other files passed over: 1 not DICOM", "1 other series passed over")
    (tmp_path / "false.dcm").write_text("hello")
    with pytest.raises(DataError, match=r"false\.dcm: not a DICOM file"):
        open_volume(tmp_path)


def test_a_link_to_nowhere_is_no_missing_slice_in_silence(tmp_path):
    _, paths = series(tmp_path)
    paths[2].unlink()
    paths[2].symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=paths[2].name):
        open_volume(tmp_path)


def test_no_files_no_folder_no_ct(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        open_volume(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no CT or MR slices found among 0"):
        open_volume(tmp_path)


@pytest.mark.parametrize("intercept", [-1024, 0])  # stored without and with negative numbers
@pytest.mark.parametrize("name", ["rle", "jpeg2000", "jpeg-ls", "jpeg-lossless", "jpeg-lossless-sv1"])
def test_compressed_slices_are_the_same_slices(tmp_path, name, intercept):
    hu, paths = series(tmp_path, voxels(3, 48, 32), intercept=intercept)
    for path in paths:
        compress(path, name)
    assert np.array_equal(open_volume(tmp_path).hu, hu)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", ["jpeg-lossless", "jpeg-lossless-sv1"])
def test_twelve_bits_in_lossless_jpeg_keep_their_sign(tmp_path, name, signed):
    low, high = (-2048, 2048) if signed else (0, 4096)
    values = np.random.default_rng(3).integers(low, high, (9, 11))
    _, (path,) = series(tmp_path, np.zeros((1, 9, 11)))
    stored = (values & 0x0FFF).astype(np.uint16)  # what scanners pack: twelve bits, nothing above them
    change(path, PixelRepresentation=int(signed), BitsStored=12, HighBit=11, PixelData=stored.tobytes())
    compress(path, name)
    assert np.array_equal(open_volume(path).hu[0], values - 1024)


def test_twelve_bits_of_lossy_jpeg_are_read_near_what_was_packed(tmp_path):
    y, x = np.mgrid[:32, :40]
    hu = (20 * x + 31 * y).astype(np.float32)[None]
    _, (path,) = series(tmp_path, hu)
    change(path, BitsStored=12, HighBit=11, PixelRepresentation=0)
    compress(path, "jpeg-extended")
    assert np.abs(open_volume(path).hu - hu).max() <= 3


def test_a_real_jpeg_ls_slice_has_the_pixels_of_its_plain_twin():
    packed = open_volume(TEST_FILES / "MR_small_jpeg_ls_lossless.dcm")
    assert np.array_equal(packed.hu, open_volume(TEST_FILES / "MR_small.dcm").hu)


def test_slope_and_intercept_belong_to_each_slice(tmp_path):
    hu, paths = series(tmp_path)
    change(paths[1], RescaleSlope=2, RescaleIntercept=-2048)
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.slice_hu(1), 2 * hu[1])
    assert np.array_equal(volume.slice_hu(2), hu[2])


def test_values_without_sign_and_inverted_display_change_nothing(tmp_path):
    hu, paths = series(tmp_path)
    values = (hu + 1024).astype(np.uint16) + 40000
    for path, pixels in zip(paths, values, strict=True):
        change(path, PixelRepresentation=0, RescaleIntercept=-41024, PixelData=pixels.tobytes())
    change_all(tmp_path, PhotometricInterpretation="MONOCHROME1")
    assert np.array_equal(open_volume(tmp_path).hu, hu)


def wrapped(folder, **tags):
    """A series whose negative HU were stored in 12 bits without sign, as in part of the RSNA set."""
    hu, paths = series(folder)
    for path, pixels in zip(paths, hu, strict=True):
        stored = (pixels.astype(int) % 4096).astype(np.uint16)
        change(path, PixelRepresentation=0, BitsStored=12, HighBit=11, PixelData=stored.tobytes(), RescaleIntercept=0)
        change(path, **tags)
    return hu


def test_values_that_wrapped_at_12_bits_are_repaired_and_noted(tmp_path):
    hu = wrapped(tmp_path)
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, hu)
    assert any("12-bit repair: in 6 slice(s)" in note for note in volume.notes)


def test_the_repair_starts_at_exactly_3096(tmp_path):
    stored = np.array([[[0, 1000, 1500, 3095, 3096, 4095]]], dtype=np.uint16)
    _, paths = series(tmp_path, np.zeros((1, 1, 6)))
    change(paths[0], PixelRepresentation=0, BitsStored=12, HighBit=11, PixelData=stored.tobytes(), RescaleIntercept=0)
    assert open_volume(tmp_path).hu.ravel().tolist() == [0, 1000, 1500, 3095, -1000, -1]


@pytest.mark.parametrize("tags", [{"RescaleIntercept": -100}, {"BitsStored": 16, "HighBit": 15}])
def test_the_repair_is_made_under_its_condition_only(tmp_path, tags):
    hu = wrapped(tmp_path, **tags)
    volume = open_volume(tmp_path)
    assert np.array_equal(volume.hu, hu.astype(int) % 4096 + tags.get("RescaleIntercept", 0))
    assert not any("12-bit" in note for note in volume.notes)


def test_the_bundled_slice_has_the_values_computed_by_hand():
    raw = pydicom.dcmread(TEST_FILES / "CT_small.dcm").PixelData
    expected = np.frombuffer(raw, dtype="<i2").reshape(128, 128).astype(np.float32) - 1024
    volume = open_volume(TEST_FILES / "CT_small.dcm")
    assert np.array_equal(volume.hu[0], expected)
    assert volume.spacing_mm == pytest.approx((0.661468, 0.661468, 5.0))
    assert np.allclose(volume.affine[:3, 3], [158.135803, 179.035797, -75.699997])


def test_bundled_compressed_slices_read_in_hounsfield_units():
    tilted = open_volume(TEST_FILES / "J2K_pixelrep_mismatch.dcm")
    assert (tilted.hu.min(), tilted.hu.max()) == (-2000, 1896)
    assert any("22.0 degrees oblique" in note for note in tilted.notes)
    lossy = open_volume(TEST_FILES / "693_J2KI.dcm")
    assert lossy.shape == (1, 512, 512)
    assert np.median(lossy.hu[0, 200:300, 200:300]) == pytest.approx(30, abs=30)


def test_a_real_series_of_five_slices_lies_foot_first():
    volume = open_volume(TEST_FILES / "dicomdirtests" / "98892001" / "CT5N")
    assert volume.positions_mm.tolist() == [-1.2375, 1.2625, 3.7625, 6.2625, 8.7625]
    raw = pydicom.dcmread(TEST_FILES / "dicomdirtests" / "98892001" / "CT5N" / "3353").PixelData
    assert np.array_equal(volume.slice_hu(0), np.frombuffer(raw, dtype="<i2").reshape(16, 16) - 1024.0)


def test_real_scouts_and_a_real_gap_are_seen():
    with pytest.raises(DataError, match=r"2 series: .*5 slices of 16 x 16.*localizer"):
        open_volume(TEST_FILES / "dicomdirtests" / "98892001")
    with pytest.raises(DataError, match="orientation"):
        open_volume(TEST_FILES / "dicomdirtests" / "98892001" / "CT2N")
    gap = open_volume(TEST_FILES / "dicomdirtests" / "77654033" / "CT2")
    assert gap.notes == ("1 gap(s) between slices otherwise 1.25 mm apart: from -99.48 to 103.02 mm",)
