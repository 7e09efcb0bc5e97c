import nibabel
import numpy as np
import pytest
from nibabel.orientations import axcodes2ornt, inv_ornt_aff, io_orientation, ornt_transform
from support.ct_makers import ORIGIN, series, voxels

from smmil.errors import ConfigError, DataError
from smmil.images.volume import open_volume

SPACING = (0.5, 0.75, 5.0)
# Columns to the left, rows to the back, slices to the head, in nibabel's RAS.
AFFINE = np.array([[-0.5, 0, 0, -ORIGIN[0]], [0, -0.75, 0, -ORIGIN[1]], [0, 0, 5.0, ORIGIN[2]], [0, 0, 0, 1]])


def write(path, array, affine=AFFINE, unit="mm", code=1):
    image = nibabel.Nifti1Image(array, affine)
    image.header.set_xyzt_units(unit)
    image.set_sform(affine, code)
    image.set_qform(None, 0)
    nibabel.save(image, path)
    return path


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz"])
def test_the_same_scan_as_dicom_and_as_nifti_is_the_same_volume(tmp_path, name):
    hu, _ = series(tmp_path / "dicom")
    one = open_volume(tmp_path / "dicom")
    two = open_volume(write(tmp_path / name, hu.transpose(2, 1, 0).astype(np.int16)))
    assert np.array_equal(two.hu, one.hu)
    assert np.array_equal(two.affine, one.affine)
    assert np.array_equal(two.positions_mm, one.positions_mm)
    assert (two.shape, two.spacing_mm, two.orientation, two.plane) == (one.shape, SPACING, "LPS", "axial")
    assert two.notes == two.sop_uids == ()


@pytest.mark.parametrize("code", ["RAS", "LPS", "LAI", "PSR", "SAR", "IRP", "ARS", "SLA"])
def test_however_the_voxels_are_stored_the_volume_is_the_same(tmp_path, code):
    hu = voxels()
    array = hu.transpose(2, 1, 0)
    change = ornt_transform(io_orientation(AFFINE), axcodes2ornt(code))
    stored = nibabel.orientations.apply_orientation(array, change)
    affine = AFFINE @ inv_ornt_aff(change, array.shape)
    path = write(tmp_path / "scan.nii", stored.astype(np.int16), affine)
    assert "".join(nibabel.aff2axcodes(nibabel.load(path).affine)) == code
    volume = open_volume(path)
    assert np.array_equal(volume.hu, hu)
    assert np.allclose(volume.affine, AFFINE, atol=1e-9)
    assert np.allclose(volume.positions_mm, ORIGIN[2] + 5 * np.arange(len(hu)))


def test_an_oblique_dicom_series_equals_its_nifti_twin(tmp_path):
    tilt = np.radians(15)
    hu, _ = series(tmp_path / "dicom", orientation=(1, 0, 0, 0, np.cos(tilt), -np.sin(tilt)))
    one = open_volume(tmp_path / "dicom")
    two = open_volume(write(tmp_path / "scan.nii", hu.transpose(2, 1, 0).astype(np.int16), one.affine))
    assert np.array_equal(two.hu, one.hu)
    assert np.allclose(two.affine, one.affine, atol=1e-5)
    assert np.allclose(two.positions_mm, one.positions_mm, atol=1e-4)
    assert two.spacing_mm == pytest.approx(one.spacing_mm, abs=1e-5)


def test_scaled_values_are_hounsfield_units(tmp_path):
    image = nibabel.Nifti1Image(np.array([[[0], [10]]], dtype=np.int16), AFFINE)
    image.header.set_slope_inter(2, -1024)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, tmp_path / "scan.nii")
    raw = bytearray((tmp_path / "scan.nii").read_bytes())
    raw[352:356] = np.array([0, 10], dtype="<i2").tobytes()
    (tmp_path / "scan.nii").write_bytes(bytes(raw))
    assert open_volume(tmp_path / "scan.nii").hu.ravel().tolist() == [-1024, -1004]


def test_metres_become_millimetres(tmp_path):
    small = AFFINE.copy()
    small[:3] /= 1000
    path = write(tmp_path / "scan.nii", voxels().transpose(2, 1, 0).astype(np.int16), small, unit="meter")
    assert open_volume(path).spacing_mm == pytest.approx(SPACING, rel=1e-6)


def test_a_file_that_hides_its_orientation_or_unit_is_noted_and_refused_when_strict(tmp_path):
    array = voxels().transpose(2, 1, 0).astype(np.int16)
    path = write(tmp_path / "scan.nii", array, unit="unknown", code=0)
    notes = open_volume(path).notes
    assert "states no orientation" in notes[0]
    assert "taken as mm" in notes[1]
    with pytest.raises(DataError, match="states no orientation"):
        open_volume(path, strict=True)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 4, 2)])
def test_only_one_volume_per_file(tmp_path, shape):
    nibabel.save(nibabel.Nifti1Image(np.zeros(shape, dtype=np.int16), np.eye(4)), tmp_path / "scan.nii")
    with pytest.raises(DataError, match="expected one volume with three axes"):
        open_volume(tmp_path / "scan.nii")


def test_a_fourth_axis_of_one_is_no_axis(tmp_path):
    hu = voxels()
    assert np.array_equal(open_volume(write(tmp_path / "s.nii", hu.transpose(2, 1, 0)[..., None])).hu, hu)


def test_voxels_that_are_no_numbers_are_refused_by_slice(tmp_path):
    hu = voxels()
    hu[2, 0, 0] = np.nan
    volume = open_volume(write(tmp_path / "scan.nii", hu.transpose(2, 1, 0)))
    assert np.isfinite(volume.slice_hu(1)).all()
    with pytest.raises(DataError, match=r"scan\.nii: slice 2 holds values"):
        volume.slice_hu(2)


def test_a_series_cannot_be_chosen_in_a_nifti_file(tmp_path):
    path = write(tmp_path / "scan.nii", voxels().transpose(2, 1, 0))
    with pytest.raises(ConfigError, match="makes no sense for a NIfTI file"):
        open_volume(path, series="a")
