"""Damaged, hostile and talkative DICOM and NIfTI files: an error that names the file, or a sane volume."""

import struct
import warnings

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.pixels import get_decoder
from support.ct_makers import change, compress, series, voxels

from smmil.errors import DataError
from smmil.images import dicom_file, dicom_pixels
from smmil.images.volume import open_volume

SECRETS = {
    "PatientName": "Secretname^Jane",
    "PatientID": "SECRETID77",
    "AccessionNumber": "SECRETACC9",
    "StudyDate": "19610417",
    "PatientBirthDate": "19610417",
    "InstitutionName": "SECRETCLINIC",
}


def outcome(path):
    """A finite volume, or the message of the DataError; any other exception is a failure of the test."""
    try:
        hu = open_volume(path).hu
    except DataError as problem:
        return named(str(problem), path)
    assert np.isfinite(hu).all()
    return hu


def named(message, path):
    assert path.name in message
    assert "\n" not in message
    return message


def damaged(original, rng):
    """The bytes with up to eight of them changed, half of the time in the header only; or a piece cut out."""
    data = bytearray(original)
    if rng.random() < 0.15:
        start = int(rng.integers(0, len(data)))
        del data[start : start + int(rng.integers(1, 200))]
    end = min(len(data), 1600) if rng.random() < 0.6 else len(data)
    for place in rng.integers(0, end, int(rng.integers(1, 9))):
        data[place] = rng.integers(0, 256)
    return bytes(data)


@pytest.mark.parametrize("kind", ["plain", "rle", "jpeg2000", "jpeg-lossless-sv1", "jpeg-ls"])
def test_changed_bytes_give_an_error_or_a_volume(tmp_path, kind):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    if kind != "plain":
        compress(paths[0], kind)
    original, rng = paths[0].read_bytes(), np.random.default_rng(5)
    errors = 0
    for _ in range(150):
        paths[0].write_bytes(damaged(original, rng))
        errors += isinstance(outcome(paths[0]), str)
    assert 20 < errors < 150


@pytest.mark.parametrize("kind", ["plain", "rle", "jpeg2000", "jpeg-lossless-sv1", "jpeg-ls"])
def test_a_file_cut_short_anywhere_is_an_error(tmp_path, kind):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    if kind != "plain":
        compress(paths[0], kind)
    whole = paths[0].read_bytes()
    expected = open_volume(paths[0]).hu
    end = 1 if kind == "plain" else 5  # the last four bytes of a compressed file hold nothing
    for length in [*range(0, len(whole) - end, 41), len(whole) - end]:
        paths[0].write_bytes(whole[:length])
        assert isinstance(outcome(paths[0]), str), length
    paths[0].write_bytes(whole)
    assert np.array_equal(open_volume(paths[0]).hu, expected)


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_nifti_file_is_an_error_or_a_volume(tmp_path, packed):
    path = tmp_path / ("scan.nii.gz" if packed else "scan.nii")
    nibabel.save(nibabel.Nifti1Image(voxels(4, 8, 8).astype(np.int16), np.diag([2.0, 2, 5, 1])), path)
    original, rng = path.read_bytes(), np.random.default_rng(6)
    for _ in range(200):
        path.write_bytes(damaged(original, rng))
        outcome(path)
    for length in range(0, len(original) - 8, 17):
        path.write_bytes(original[:length])
        assert isinstance(outcome(path), str), length


def test_garbage_is_refused_by_name(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("noise.dcm", "noise.nii", "noise.nii.gz"):
        (tmp_path / name).write_bytes(rng.bytes(5000))
        assert isinstance(outcome(tmp_path / name), str)
    (tmp_path / "marked.dcm").write_bytes(bytes(128) + b"DICM" + rng.bytes(5000))
    assert isinstance(outcome(tmp_path / "marked.dcm"), str)


def test_a_slice_that_claims_to_be_huge_is_refused_before_decoding(tmp_path, monkeypatch):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    change(paths[0], Rows=65535, Columns=65535)
    monkeypatch.setattr(Dataset, "pixel_array", property(lambda _: pytest.fail("it was decoded")))
    assert "65,535 x 65,535 pixels" in outcome(paths[0])


def test_a_compressed_picture_larger_than_its_header_is_refused_before_decoding(tmp_path, monkeypatch):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    compress(paths[0], "jpeg2000")
    data = paths[0].read_bytes()
    start = data.index(b"\xff\x4f\xff\x51")
    bomb = data[: start + 8] + struct.pack(">II", 60000, 60000) + data[start + 16 :]
    paths[0].write_bytes(bomb)
    monkeypatch.setattr(Dataset, "pixel_array", property(lambda _: pytest.fail("it was decoded")))
    assert "60,000 x 60,000, the header says 32 x 32" in outcome(paths[0])


def test_sequences_a_thousand_deep_do_not_bring_it_down(tmp_path):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    data = paths[0].read_bytes()
    place = data.index(b"\x08\x00\x16\x00UI")
    sequence = b"\x08\x00\x15\x11SQ\x00\x00\xff\xff\xff\xff" + b"\xfe\xff\x00\xe0\xff\xff\xff\xff"
    for depth in (3, 5000):
        ends = (b"\xfe\xff\x0d\xe0" + bytes(4) + b"\xfe\xff\xdd\xe0" + bytes(4)) * depth
        paths[0].write_bytes(data[:place] + sequence * depth + ends + data[place:])
        found = outcome(paths[0])
    assert "RecursionError" in found


def test_a_deflated_file_is_refused_unopened(tmp_path):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    dataset = pydicom.dcmread(paths[0])
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1.99"
    dataset.save_as(paths[0])
    assert "deflated" in outcome(paths[0])


def test_a_nifti_file_that_promises_more_than_it_can_hold_is_refused(tmp_path):
    path = tmp_path / "bomb.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), dtype=np.int16), np.eye(4)), path)
    data = bytearray(path.read_bytes())
    data[42:48] = struct.pack("<3h", 1000, 1000, 900)
    path.write_bytes(bytes(data))
    assert "cannot be in" in outcome(path)
    data[42:48] = struct.pack("<3h", 30000, 30000, 30000)
    path.write_bytes(bytes(data))
    assert "27,000,000,000,000 voxels" in outcome(path)


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"ImagePositionPatient": None}, "ImagePositionPatient is missing"),
        ({"PixelSpacing": None}, "PixelSpacing is missing"),
        ({"PixelSpacing": [0, 1]}, "two positive distances"),
        ({"RescaleSlope": None}, "RescaleSlope is missing"),
        ({"RescaleSlope": 0}, "RescaleSlope is 0"),
        ({"RescaleType": "ED"}, "no Hounsfield units"),
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, "right angle"),
        ({"NumberOfFrames": 4}, "multi-frame"),
        ({"SamplesPerPixel": 3}, "colours"),
        ({"SeriesInstanceUID": None}, "SeriesInstanceUID is missing"),
        ({"PixelData": None}, "not readable as a DICOM slice"),
    ],
)
def test_what_a_slice_lacks_is_said(tmp_path, tags, said):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    change(paths[0], **tags)
    assert said in outcome(paths[0])


@pytest.mark.parametrize(
    ("name", "package", "syntax"),
    [
        ("jpeg-lossless", "imagecodecs", "1.2.840.10008.1.2.4.57"),
        ("jpeg-lossless-sv1", "imagecodecs", "1.2.840.10008.1.2.4.70"),
        ("jpeg-extended", "imagecodecs", "1.2.840.10008.1.2.4.51"),
        ("jpeg-ls", "pyjpegls", "1.2.840.10008.1.2.4.80"),
        ("jpeg2000", "pylibjpeg-openjpeg", "1.2.840.10008.1.2.4.90"),
    ],
)
def test_a_compression_without_decoder_names_the_package_and_the_syntax(tmp_path, monkeypatch, name, package, syntax):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    compress(paths[0], name)
    monkeypatch.setattr(dicom_pixels, "find_spec", lambda name: None)
    monkeypatch.setattr(get_decoder(syntax), "_available", {})
    assert f"({syntax}), which needs the package {package}: install it" in outcome(paths[0])


def test_a_film_is_refused_with_the_name_of_its_compression(tmp_path):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    compress(paths[0], "jpeg2000")
    dataset = pydicom.dcmread(paths[0])
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.102"
    dataset.save_as(paths[0])
    assert "(1.2.840.10008.1.2.4.102), which is not read here" in outcome(paths[0])


def test_nothing_that_identifies_a_person_is_ever_said(tmp_path):
    _, paths = series(tmp_path, voxels(3, 16, 16))
    for path in paths:
        change(path, **SECRETS)
    paths[1].with_name("readme.txt").write_text("x")
    volume = open_volume(tmp_path)
    heard = [repr(volume), *volume.notes, repr(volume.source)]
    rng, original = np.random.default_rng(7), paths[0].read_bytes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(90):
            paths[0].write_bytes(damaged(original, rng))
            try:
                volume = open_volume(tmp_path)
                heard += [repr(volume), *volume.notes]
                volume.slice_hu(0)
            except DataError as problem:
                heard.append(str(problem))
    heard += [str(warning.message) for warning in caught]
    for word in ("Secretname", "Jane", "SECRET", "19610417"):
        assert not any(word in text for text in heard), word


def test_the_tags_that_are_read_hold_no_person():
    assert not set(SECRETS) & set(dicom_file._HEADER)
    assert not any("Patient" in tag for tag in dicom_file._HEADER if not tag.startswith("Image"))


def test_rle_is_never_decoded_by_the_library_that_panics(tmp_path, monkeypatch):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    compress(paths[0], "rle")
    asked = []
    monkeypatch.setattr(Dataset, "pixel_array_options", lambda self, **options: asked.append(options))
    open_volume(paths[0]).slice_hu(0)
    assert asked == [{"decoding_plugin": "pydicom"}]


def test_names_and_dates_of_a_file_are_not_even_read(tmp_path, monkeypatch):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    change(paths[0], **SECRETS)
    read, real = [], pydicom.dcmread
    monkeypatch.setattr(pydicom, "dcmread", lambda *args, **options: read.append(real(*args, **options)) or read[-1])
    open_volume(paths[0]).slice_hu(0)
    assert len(read) == 2
    assert not any(keyword in dataset for dataset in read for keyword in SECRETS)
