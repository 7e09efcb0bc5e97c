import hashlib

import numpy as np
import pandas as pd
import pydicom
import pytest
from scipy.ndimage import binary_erosion, gaussian_filter
from sklearn.metrics import roc_auc_score

from smmil.errors import ConfigError, DataError
from smmil.images.volume import open_volume
from smmil.synthetic.ct import _head_phantom, _write_ct_series, synthetic_ct_scans

SMALL = {"size": 64, "slices": (14, 18)}


def fingerprint(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_the_same_seed_gives_the_same_bytes_and_a_scan_does_not_know_how_many_follow(tmp_path):
    for name, n, seed in (("a", 2, 3), ("b", 2, 3), ("more", 3, 3), ("other", 2, 4)):
        synthetic_ct_scans(tmp_path / name, n, seed=seed, **SMALL)
    one = fingerprint(tmp_path / "a")
    assert one == fingerprint(tmp_path / "b")
    more = fingerprint(tmp_path / "more")
    assert all(more[name] == value for name, value in one.items() if name != "labels.csv")
    other = fingerprint(tmp_path / "other")
    assert not any(one[name] == other.get(name) for name in one if name.endswith(".dcm"))


def test_the_table_agrees_with_the_files(tmp_path):
    table = synthetic_ct_scans(tmp_path, 5, positive=0.4, **SMALL)
    assert table.label.tolist() == [0, 0, 1, 0, 1]
    assert table.patient.tolist() == ["patient_0000", "patient_0001", "patient_0002", "patient_0002", "patient_0004"]
    assert pd.read_csv(tmp_path / "labels.csv").equals(table)
    for row in table.itertuples():
        volume, sick = open_volume(tmp_path / row.path, strict=True), np.load(tmp_path / row.instance_labels)
        assert len(volume) == len(sick)
        assert 14 <= len(volume) <= 18
        assert volume.shape[1:] == (64, 64)
        assert volume.orientation == "LPS"
        assert sick.max() == row.label


def phantoms(n, blood, seed=0, size=64):
    return [_head_phantom(np.random.default_rng([seed, i]), 24, size, blood) for i in range(n)]


def test_blood_fills_neighbouring_slices_and_nothing_else():
    for index in range(12):
        rng = [np.random.default_rng([1, index]) for _ in range(2)]
        _, sick = _head_phantom(rng[0], 24, 64, 1.0)
        _, healthy = _head_phantom(rng[1], 24, 64, None)
        assert 3 <= sick.sum() <= 8
        assert (np.diff(np.flatnonzero(sick)) == 1).all()
        assert not healthy.any()


def test_blood_is_brighter_than_brain_by_what_was_asked():
    for index in range(4):
        plain, strong = (_head_phantom(np.random.default_rng([2, index]), 24, 64, c) for c in (0.0, 1.0))
        difference = gaussian_filter((strong[0] - plain[0]).astype(float), (0, 0.5, 0.5))
        assert 22 <= difference.max() <= 47
        assert np.array_equal(plain[1], strong[1])
        assert np.abs(difference[~strong[1]]).max() == 0


def test_head_brain_and_skull_have_their_hounsfield_units():
    hu, _ = phantoms(1, None, size=128)[0]
    middle = hu[12].astype(float)
    assert np.median(middle[:6, :6]) == pytest.approx(-1000, abs=3)
    assert 750 < np.percentile(middle[middle > 400], 60) < 1010
    brain = middle[(middle > 0) & (middle < 80)]
    assert 29 < np.median(brain) < 41


def local(hu):
    """The brightest place of the brain once noise and dots are averaged away: looking at places, not at the mean."""
    inside = binary_erosion((hu > -20) & (hu < 200), np.ones((1, 3, 3)), iterations=2)
    return gaussian_filter(np.where(inside, hu, 30).astype(float), (1, 1.5, 1.5)).max()


def test_the_mean_of_a_scan_does_not_give_the_blood_away_but_places_do():
    scans = phantoms(24, None, seed=3) + phantoms(24, 1.0, seed=4)
    y = [0] * 24 + [1] * 24
    means = roc_auc_score(y, [hu.mean() for hu, _ in scans])
    assert 0.3 < means < 0.7
    assert roc_auc_score(y, [local(hu) for hu, _ in scans]) > 0.95


def test_a_written_file_is_a_valid_ct_image(tmp_path):
    hu = np.arange(24, dtype=np.int16).reshape(2, 3, 4) - 1000
    paths = _write_ct_series(tmp_path, hu, (0.5, 0.7, 2.5), origin_mm=(1, 2, 3))
    first, second = map(pydicom.dcmread, paths)
    assert first.SOPClassUID.name == "CT Image Storage"
    assert first.SeriesInstanceUID == second.SeriesInstanceUID
    assert first.SOPInstanceUID != second.SOPInstanceUID
    assert all(u.is_valid for u in (first.SOPInstanceUID, first.StudyInstanceUID, first.FrameOfReferenceUID))
    assert first.file_meta.MediaStorageSOPInstanceUID == first.SOPInstanceUID
    assert (first.InstanceNumber, second.InstanceNumber) == (2, 1)
    assert list(map(float, second.ImagePositionPatient)) == [1, 2, 5.5]
    assert list(map(float, first.PixelSpacing)) == [0.7, 0.5]
    assert np.array_equal(first.pixel_array - 1024, hu[0])


def test_writing_refuses_what_cannot_be_stored(tmp_path):
    with pytest.raises(DataError, match="16 bits"):
        _write_ct_series(tmp_path, np.full((1, 2, 2), 1e6), (1, 1, 1))
    with pytest.raises(DataError, match="16 bits"):
        _write_ct_series(tmp_path, np.full((1, 2, 2), np.nan), (1, 1, 1))
    with pytest.raises(DataError, match="slices, rows, columns"):
        _write_ct_series(tmp_path, np.zeros((2, 2)), (1, 1, 1))
    _write_ct_series(tmp_path, np.zeros((3, 2, 2)), (1, 1, 1))
    with pytest.raises(DataError, match="another series"):
        _write_ct_series(tmp_path, np.zeros((2, 2, 2)), (1, 1, 1))


@pytest.mark.parametrize("options", [{"n": 0}, {"slices": (30, 20)}, {"size": 8}, {"positive": 2}])
def test_senseless_requests_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match="synthetic CT"):
        synthetic_ct_scans(tmp_path, **{"n": 1, **options})


def test_no_two_scans_of_a_set_are_alike(tmp_path):
    table = synthetic_ct_scans(tmp_path, 3, positive=0, size=48, slices=(12, 12))
    assert len({open_volume(tmp_path / path).hu.tobytes() for path in table.path}) == 3
