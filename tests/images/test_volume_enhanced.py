"""Multi-frame (enhanced) files: the same volume as the classic series of the same pixels, bit for bit."""

import numpy as np
import pydicom
import pytest
from pydicom.encaps import encapsulate_extended
from pydicom.sequence import Sequence
from support.ct_makers import PACKED, SPACING, change, change_all, series, voxels
from support.dicom_makers import LEGACY, enhanced, group, packed_frames

from smmil.errors import DataError
from smmil.images import dicom_pixels
from smmil.images.dicom_series import find_series
from smmil.images.volume import open_volume

TILT = np.radians(20)
OBLIQUE = (np.cos(TILT), np.sin(TILT), 0, -np.sin(TILT) * 0.8, np.cos(TILT) * 0.8, -0.6)


def same(one, other):
    assert np.array_equal(one.hu, other.hu)
    assert one.hu.dtype == other.hu.dtype
    assert np.array_equal(one.affine, other.affine)
    assert np.array_equal(one.positions_mm, other.positions_mm)
    assert (one.shape, one.spacing_mm, one.values) == (other.shape, other.spacing_mm, other.values)
    assert one.notes == other.notes


@pytest.mark.parametrize("orientation", [(1, 0, 0, 0, 1, 0), (0, 1, 0, -1, 0, 0), (1, 0, 0, 0, 0, -1), OBLIQUE])
@pytest.mark.parametrize("shared", [False, True])
def test_frames_in_any_order_are_the_classic_series(tmp_path, shared, orientation):
    _, files = series(tmp_path / "classic", orientation=orientation)
    order = np.random.default_rng(sum(map(int, orientation))).permutation(len(files))
    file = enhanced(tmp_path / "one" / "e.dcm", files, order, shared=shared)
    same(open_volume(file), open_volume(tmp_path / "classic"))
    same(open_volume(file.parent), open_volume(tmp_path / "classic"))


def test_slope_and_intercept_belong_to_each_frame(tmp_path):
    hu, files = series(tmp_path / "classic")
    change(files[1], RescaleSlope=2, RescaleIntercept=-2048)
    volume = open_volume(enhanced(tmp_path / "e.dcm", files, [5, 1, 0, 2, 4, 3]))
    same(volume, open_volume(tmp_path / "classic"))
    assert np.array_equal(volume.slice_hu(1), 2 * hu[1])


def test_gaps_tilt_and_wrapped_values_are_told_as_of_the_classic_series(tmp_path):
    hu, files = series(tmp_path / "classic", voxels(8))
    for path, pixels in zip(files, hu, strict=True):
        stored = (pixels.astype(int) % 4096).astype(np.uint16)
        change(path, PixelRepresentation=0, BitsStored=12, HighBit=11, PixelData=stored.tobytes(), RescaleIntercept=0)
    files.pop(3).unlink()
    volume = open_volume(enhanced(tmp_path / "e.dcm", files, shared=True))
    same(volume, open_volume(tmp_path / "classic"))
    assert len(volume.notes) == 2
    assert np.array_equal(volume.hu, np.delete(hu, 3, axis=0))


def test_mr_with_frames_is_mr(tmp_path):
    _, files = series(tmp_path / "classic")
    change_all(tmp_path / "classic", Modality="MR")
    volume = open_volume(enhanced(tmp_path / "e.dcm", files, shared=True))
    same(volume, open_volume(tmp_path / "classic"))
    assert volume.values == "MR"


def test_a_legacy_converted_file_knows_the_names_of_its_slices(tmp_path):
    _, files = series(tmp_path / "classic")
    uids = [pydicom.dcmread(file).SOPInstanceUID for file in files]
    source = [group("ConversionSourceAttributesSequence", ReferencedSOPInstanceUID=uid) for uid in uids]
    file = enhanced(tmp_path / "e.dcm", files, [2, 0, 1, 5, 4, 3], frames=source, sop_class=LEGACY)
    assert open_volume(file).sop_uids == open_volume(tmp_path / "classic").sop_uids == tuple(uids)
    plain = enhanced(tmp_path / "p.dcm", files)
    assert open_volume(plain).sop_uids == ()  # one name for all frames would give all the label of one slice


def test_one_frame_alone_is_a_slice(tmp_path):
    _, files = series(tmp_path / "classic", voxels(1))
    same(open_volume(enhanced(tmp_path / "e.dcm", files, shared=True)), open_volume(tmp_path / "classic"))


@pytest.mark.parametrize("tables", [False, True, "extended"])
@pytest.mark.parametrize("name", [name for name in PACKED if name != "jpeg-extended"])
def test_compressed_frames_are_the_same_frames(tmp_path, name, tables):
    hu, files = series(tmp_path / "classic", voxels(4, 48, 32), intercept=0)
    file = enhanced(tmp_path / "e.dcm", files, [2, 0, 3, 1])
    if tables == "extended":
        made, (syntax, encode) = pydicom.dcmread(file), PACKED[name]
        pixels, made.ExtendedOffsetTable, made.ExtendedOffsetTableLengths = encapsulate_extended(
            [encode(frame) for frame in made.pixel_array]
        )
        made.PixelData = pixels
        made["PixelData"].VR, made["PixelData"].is_undefined_length = "OB", True
        made.file_meta.TransferSyntaxUID = syntax
        made.save_as(file)
    else:
        packed_frames(file, name, tables)
    assert np.array_equal(open_volume(file).hu, hu)


def test_the_header_is_read_once_and_the_other_frames_never(tmp_path, monkeypatch):
    hu, files = series(tmp_path / "classic")
    file = enhanced(tmp_path / "e.dcm", files)
    volume, read, real = open_volume(file), [], pydicom.dcmread
    monkeypatch.setattr(pydicom, "dcmread", lambda *args, **options: read.append(real(*args, **options)) or read[-1])
    dicom_pixels._before_pixels.cache_clear()
    assert np.array_equal(volume.hu, hu)
    assert len(read) == 1
    assert "PixelData" not in read[0]


ECHOES = (3.5, 20.0)


def frames_of(tmp_path, *traits, n=3):
    """A file with `n` slices for every combination of traits, and the voxels by (slice, trait)."""
    hu, files = series(tmp_path / "classic", voxels(n * len(traits)))
    for index, file in enumerate(files):
        change(file, ImagePositionPatient=[-10, -20, 30 + 5 * (index % n)])
    return hu.reshape(len(traits), n, *hu.shape[1:]), files, [trait for trait in traits for _ in range(n)]


def test_echoes_in_one_place_are_series_to_choose_from(tmp_path):
    echoes = [group("MREchoSequence", EffectiveEchoTime=time) for time in ECHOES[::-1]]
    hu, files, frames = frames_of(tmp_path, *echoes)
    order = np.random.default_rng(0).permutation(6)
    file = enhanced(tmp_path / "one/e.dcm", files, order, frames=frames)
    with pytest.raises(DataError, match=r"2 series: \w{8} \(3 slices of 9 x 7, echo \d\), \w{8} \(3 slices"):
        open_volume(file)
    assert np.array_equal(open_volume(file, series="echo:1").hu, hu[1])  # numbered by time, not by their order
    assert np.array_equal(open_volume(file, series="echo:2").hu, hu[0])
    for found in find_series(file)[0]:
        volume = open_volume(file, series=found.key)
        assert volume.series == found.key
        assert np.array_equal(volume.hu, hu[2 - found.parts[0][1]])
    with pytest.raises(DataError, match="2 series fit"):
        open_volume(file, series="most-slices")
    with pytest.raises(DataError, match="not here"):
        open_volume(file, series="echo:3")


def test_times_and_echoes_are_chosen_together(tmp_path):
    traits = [
        group("FrameContentSequence", TemporalPositionIndex=time) | group("MREchoSequence", EffectiveEchoTime=echo)
        for time in (1, 2)
        for echo in ECHOES
    ]
    hu, files, frames = frames_of(tmp_path, *traits, n=2)
    file = enhanced(tmp_path / "e.dcm", files, frames=frames)
    assert np.array_equal(open_volume(file, series="time:2, echo:1").hu, hu[2])
    with pytest.raises(DataError, match="2 series fit what was asked for"):
        open_volume(file, series="time:2")


def test_what_differs_from_slice_to_slice_divides_nothing(tmp_path):
    _, files = series(tmp_path / "classic")
    frames = [group("FrameContentSequence", TemporalPositionIndex=n + 1, StackID="1") for n in range(6)]
    same(open_volume(enhanced(tmp_path / "e.dcm", files, frames=frames)), open_volume(tmp_path / "classic"))
    # and where something else divides, it is not needed
    echoes = [group("MREchoSequence", EffectiveEchoTime=time) for time in ECHOES]
    hu, files, traits = frames_of(tmp_path / "two", *echoes)
    frames = [one | group("FrameContentSequence", TemporalPositionIndex=n + 1) for n, one in enumerate(traits)]
    file = enhanced(tmp_path / "f.dcm", files, frames=frames)
    assert np.array_equal(open_volume(file, series="echo:2").hu, hu[1])


def test_stacks_of_different_directions_are_series(tmp_path):
    axial, one = series(tmp_path / "a", voxels(3))
    coronal, two = series(tmp_path / "b", voxels(3, seed=5), orientation=(1, 0, 0, 0, 0, -1))
    frames = [group("FrameContentSequence", StackID=name) for name in "112333"]
    frames[2] = frames[0]
    file = enhanced(tmp_path / "e.dcm", [*one, *two], frames=frames)
    assert np.array_equal(open_volume(file, series="stack:1").hu, axial)
    assert np.array_equal(open_volume(file, series="stack:2").hu, coronal)


def test_frames_in_one_place_that_nothing_tells_apart_are_refused(tmp_path):
    _, files, _ = frames_of(tmp_path, 1, 2)
    with pytest.raises(DataError, match=r"e\.dcm \(frame 1\): lies in the same place as .*e\.dcm \(frame 4\) \(3 such"):
        open_volume(enhanced(tmp_path / "e.dcm", files))


def test_beside_classic_slices_a_file_with_frames_is_one_series_of_two(tmp_path):
    hu, files = series(tmp_path / "both")
    file = enhanced(tmp_path / "both/e.dcm", files[:4], [2, 0, 1, 3])
    with pytest.raises(DataError, match=r"2 series: \w{8} \(6 slices of 9 x 7\), \w{8} \(4 slices"):
        open_volume(tmp_path / "both")
    assert np.array_equal(open_volume(tmp_path / "both", series="most-slices").hu, hu)
    uid = pydicom.dcmread(file).SeriesInstanceUID
    assert np.array_equal(open_volume(tmp_path / "both", series=str(uid)).hu, hu[:4])


def test_frames_of_several_files_of_a_series_are_one_volume(tmp_path):
    hu, files = series(tmp_path / "classic")
    uid = pydicom.dcmread(files[0]).SeriesInstanceUID
    for name, part in (("a", files[:2]), ("b", files[2:])):
        enhanced(tmp_path / f"two/{name}.dcm", part, change=lambda made: setattr(made, "SeriesInstanceUID", uid))
    assert np.array_equal(open_volume(tmp_path / "two").hu, hu)


def lose(name):
    return lambda made: delattr(made, name)


def shorter(made):
    made.PixelData = made.PixelData[:-200]


def fewer(made):
    made.PerFrameFunctionalGroupsSequence = Sequence(made.PerFrameFunctionalGroupsSequence[:-1])


def placed(*values):
    def make(made):
        made.PerFrameFunctionalGroupsSequence[2].PlanePositionSequence[0].ImagePositionPatient = list(values)

    return make


def frames_claimed(count):
    return lambda made: setattr(made, "NumberOfFrames", count)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lose("PerFrameFunctionalGroupsSequence"), "does not say where its frames lie"),
        (fewer, "NumberOfFrames is 6, but 5 are described"),
        (frames_claimed(2**30), r"NumberOfFrames is 1,073,741,824, expected a number"),
        (frames_claimed(10**5), "NumberOfFrames is 100,000, but 6 are described"),
        (frames_claimed(0), "NumberOfFrames is 0"),
        (frames_claimed(-1), "NumberOfFrames is -1"),
        (shorter, "PixelData has 556 bytes, 6 frames need 756"),
        (lose("PixelData"), "not readable as a DICOM slice|PixelData is missing"),
        (placed(1, 2), "ImagePositionPatient is not 3 finite"),
        (placed(1, 2, float("nan")), "ImagePositionPatient is not 3 finite"),
        (placed(1, 2, float("inf")), "ImagePositionPatient is not 3 finite"),
    ],
)
def test_damage_of_frames_is_one_line(tmp_path, damage, said):
    _, files = series(tmp_path / "classic")
    with pytest.raises(DataError, match=said) as told:
        _ = open_volume(enhanced(tmp_path / "e.dcm", files, change=damage)).hu
    assert "e.dcm: " in str(told.value)
    assert "\n" not in str(told.value)


def test_a_place_in_the_shared_groups_is_that_of_every_frame_unless_it_has_its_own(tmp_path):
    hu, files = series(tmp_path / "classic")

    def sharing(made):
        made.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence = Sequence(
            [made.PerFrameFunctionalGroupsSequence[0].PixelMeasuresSequence[0]]
        )
        for frame in made.PerFrameFunctionalGroupsSequence[1:]:
            del frame.PixelMeasuresSequence
        made.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SliceThickness = 9

    volume = open_volume(enhanced(tmp_path / "e.dcm", files, change=sharing))
    assert np.array_equal(volume.hu, hu)
    assert volume.spacing_mm == SPACING
