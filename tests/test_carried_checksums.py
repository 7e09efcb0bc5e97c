"""Checksums that files carry are compared: no flipped bit goes through, and good files pay once."""

import gzip
import json
import pickle
import random
import struct
import zipfile
import zlib

import nibabel
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from support import foreign_files as foreign
from support.ct_makers import change, series, voxels
from support.mutations import flip_bit
from support.pyramids import noise, slide_file
from support.sandbox import outcomes

from smmil import files
from smmil.annotations.masks import open_mask
from smmil.bag import Bag
from smmil.errors import DataError
from smmil.formats import read_bag, write_bag
from smmil.frame import Frame
from smmil.images import DamagedTile, open_slide, open_volume
from smmil.prediction import Prediction
from smmil.weights import read_foreign_weights

CELLS = foreign.cells()
X = foreign.features(len(CELLS))
LESION = np.zeros((160, 160), np.uint8)
LESION[40:90, 50:120] = 1


def pt_file(folder):
    return foreign.clam_files(folder, X, CELLS * 512).parent.parent / "pt_files" / "case.pt"


def native_file(folder):
    write_bag(folder / "case.h5", Bag("case", torch.from_numpy(X), torch.from_numpy(CELLS * 512), Frame((512, 512))))
    return folder / "case.h5"


def nifti_file(folder):
    smooth = np.add.outer(np.arange(24), np.arange(24))[..., None] * np.ones(12)
    nibabel.save(nibabel.Nifti1Image(smooth.astype(np.int16), np.diag([2.0, 2, 5, 1])), folder / "scan.nii.gz")
    return folder / "scan.nii.gz"


def png_file(folder):
    Image.fromarray(LESION).save(folder / "mask.png")
    return folder / "mask.png"


def bag_content(path):
    bag = read_bag(path)
    return bag.id, bag.x.tolist(), bag.coords.tolist(), bag.frame, bag.graph.indices.tolist()


def volume_content(path):
    volume = open_volume(path)
    return volume.hu.tolist(), volume.affine.tolist(), volume.notes


def mask_content(path):
    blocks = open_mask(path).lesions(np.array([[0.0, 0, 160, 160]]))
    return [(left, top, block.tolist()) for left, top, block in blocks]


def slide_content(path):
    with open_slide(path) as slide:
        return slide.size, slide.read(0, 0, 160, 160).tolist()


def weights_content(path):
    return {name: tensor.tolist() for name, tensor in read_foreign_weights(path, ()).items()}


def weights_file(folder):
    torch.save({"layer": torch.from_numpy(X)}, folder / "weights.pt")
    return folder / "weights.pt"


def prediction_file(folder):
    Prediction("case", np.array([0.25, 0.75]), X[:, 0], CELLS * 512).save(folder / "case.npz")
    return folder / "case.npz"


def prediction_content(path):
    found = Prediction.load(path)
    return found.id, found.probs.tolist(), found.scores.tolist(), found.coords.tolist()


KINDS = {
    "native": (native_file, bag_content),
    "pt": (pt_file, bag_content),
    "weights": (weights_file, weights_content),
    "nii.gz": (nifti_file, volume_content),
    "npz": (prediction_file, prediction_content),
    "mask.png": (png_file, mask_content),
    "slide.png": (png_file, slide_content),
}


def flips(path, read, count, seed=0):
    """What came of `count` copies with one wrong bit each, laid in the place of the file one after another."""
    good, truth = path.read_bytes(), read(path)

    def damaged(_):
        path.write_bytes(flip_bit(good, dice))
        return read(path)

    dice = random.Random(seed)
    found = outcomes(damaged, [path] * count, truth)
    path.write_bytes(good)
    return [outcome.kind for outcome in found]


@pytest.mark.parametrize("kind", KINDS)
def test_no_single_wrong_bit_goes_unnoticed(tmp_path, kind):
    make, read = KINDS[kind]
    found = flips(make(tmp_path), read, 300)
    assert set(found) <= {"error", "same"}, {kind: found.count(kind) for kind in found}
    assert found.count("error") >= 100


def test_a_zeroed_block_cannot_remove_a_lesion(tmp_path):
    path = png_file(tmp_path)
    data = path.read_bytes()
    start = data.index(b"IDAT") + 24
    path.write_bytes(data[:start] + bytes(16) + data[start + 16 :])
    with pytest.raises(DataError, match=r"mask.png: .*checksum"):
        mask_content(path)


def test_a_png_that_ends_early_or_lies_about_a_length_is_refused(tmp_path):
    path = png_file(tmp_path)
    data = path.read_bytes()
    place = data.index(b"IEND") - 4
    liar = data[:place] + struct.pack(">I", 2**31 - 1) + b"tEXt" + data[place:]
    for wrong in (data[:place], data[: place + 6], liar):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=r"mask.png"):
            mask_content(path)


def test_a_packed_tensor_that_would_fill_the_memory_is_refused(tmp_path):
    path = pt_file(tmp_path)
    torch.save(torch.zeros(10_000, 500), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match=r"case.pt: .*more than the file can hold"):
        read_bag(path)


def test_a_packed_scan_that_never_ends_is_refused(tmp_path):
    path = nifti_file(tmp_path)
    with gzip.open(path) as file:
        volume = file.read()
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    path.write_bytes(packer.compress(volume) + packer.compress(bytes(200 * 2**20)) + packer.flush())
    with pytest.raises(DataError, match=r"scan.nii.gz: .*behind the volume"):
        open_volume(path)


def test_a_file_is_verified_once_and_again_when_it_changes(tmp_path, monkeypatch):
    asked = []
    path = tmp_path / "file"
    path.write_bytes(b"content")
    monkeypatch.setattr(files, "_SETTLED", -1)  # as if it had been written long ago
    for _ in range(3):
        files.check_once(path, asked.append)
    assert asked == [path]
    path.write_bytes(b"other content")
    files.check_once(path, asked.append)
    assert asked == [path, path]


def test_a_file_written_just_now_is_verified_every_time(tmp_path):
    """Clocks of file systems are coarse: a second write may leave size and time as they were."""
    asked = []
    path = tmp_path / "file"
    path.write_bytes(b"content")
    files.check_once(path, asked.append)
    files.check_once(path, asked.append)
    assert len(asked) == 2


def test_damage_is_not_remembered_as_good(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SETTLED", -1)
    path = png_file(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    for _ in range(2):
        with pytest.raises(DataError, match="checksum"):
            mask_content(path)


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_chunks_with_checksums_and_parquet_pages_are_compared(tmp_path, version):
    import pyarrow.parquet as pq
    import zarr
    from numcodecs import CRC32
    from zarr.codecs import Crc32cCodec

    store = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC, version=version)
    group = zarr.open_group(store)["tables/uni_tiles"]
    del group["X"]
    group.create_array("X", data=X, chunks=X.shape, compressors=[Crc32cCodec()] if version == 3 else CRC32())
    shapes = store / "shapes" / "tiles" / "shapes.parquet"
    pq.write_table(pq.read_table(shapes), shapes, write_page_checksum=True, compression="none")
    chunk = next(p for p in (store / "tables" / "uni_tiles" / "X").rglob("0*") if p.is_file())
    footer = struct.unpack("<I", shapes.read_bytes()[-8:-4])[0] + 8
    for path, length in ((chunk, chunk.stat().st_size), (shapes, shapes.stat().st_size - footer)):
        good, truth = path.read_bytes(), bag_content(store)

        def damaged(_, path=path, good=good, length=length, dice=random.Random(1)):
            path.write_bytes(flip_bit(good[:length], dice) + good[length:])
            return bag_content(store)

        found = [outcome.kind for outcome in outcomes(damaged, [store] * 100, truth)]
        path.write_bytes(good)
        assert set(found) <= {"error", "same"}, (path.name, {kind: found.count(kind) for kind in found})
        assert found.count("error") >= 50, path.name


def test_a_zarr_store_that_asks_for_unpickling_is_refused(tmp_path):
    store = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC, version=2)
    folder, marker = store / "tables" / "uni_tiles" / "X", tmp_path / "executed"
    stated = json.loads((folder / ".zarray").read_text())
    stated |= {"compressor": None, "dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}, {"id": "pickle"}]}
    (folder / ".zarray").write_text(json.dumps(stated))
    call = type("Call", (), {"__reduce__": lambda self: (marker.touch, ())})
    for chunk in folder.glob("[0-9]*"):
        chunk.write_bytes(pickle.dumps(call()))
    with pytest.raises(DataError, match=r"case.zarr: .*pickle"):
        read_bag(store)
    assert not marker.exists()


def zero_end(data, start, length):
    """The second half of a stretch of bytes as a file system leaves it after a crash."""
    half = start + length // 2
    return data[:half] + bytes(start + length - half) + data[start + length :]


def test_a_jpeg_whose_end_was_lost_is_refused(tmp_path):
    path = tmp_path / "slide.jpg"
    Image.fromarray(noise(160, 160)).save(path)
    slide_content(path)
    path.write_bytes(zero_end(data := path.read_bytes(), 0, len(data)))
    with pytest.raises(DataError, match=r"slide\.jpg: .*JPEG stream is cut off"):
        slide_content(path)


@pytest.mark.parametrize("taller", [49, 2_000_000])
def test_a_picture_that_claims_more_rows_than_its_parts_hold_is_refused(tmp_path, taller):
    """Pillow shows the rest black; of two million rows it takes gigabytes for a file of 7 kB."""
    path = tmp_path / "slide.tiff"
    Image.fromarray(noise(48, 48)).save(path)
    slide_content(path)
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags["ImageLength"].overwrite(taller, dtype="I")
    with pytest.raises(DataError, match=rf"slide\.tiff: its parts do not cover its 48 × {taller} pixels"):
        slide_content(path)


def test_a_jpeg_with_restarts_out_of_order_is_refused(tmp_path):
    path = tmp_path / "slide.jpg"
    Image.fromarray(noise(160, 160)).save(path, restart_marker_rows=1)
    slide_content(path)
    first, second = b"\xff\xd1", b"\xff\xd2"
    data = path.read_bytes()
    assert first in data
    path.write_bytes(data.replace(first, second, 1))
    with pytest.raises(DataError, match=r"slide\.jpg: .*JPEG stream"):
        slide_content(path)


@pytest.mark.parametrize("reader", ["openslide", "tifffile"])
def test_a_tile_whose_end_was_lost_is_damaged_and_the_others_read(tmp_path, reader):
    path = slide_file(tmp_path, noise(512, 512), "aperio", compression="jpeg")
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        start, length, side = page.dataoffsets[0], page.databytecounts[0], page.tilewidth
    with open_slide(path, reader=reader) as slide:
        other = slide.read(side, side, 64, 64)
    path.write_bytes(zero_end(path.read_bytes(), start, length))
    with open_slide(path, reader=reader) as slide:
        with pytest.raises(DamagedTile, match="JPEG stream is cut off"):
            slide.read(0, 0, side, side)
        assert np.array_equal(slide.read(side, side, 64, 64), other)
        assert slide.thumbnail(512).damaged


def test_zeroed_sizes_of_the_tiles_of_a_mask_are_not_empty_tissue(tmp_path):
    path = tmp_path / "mask.tif"
    tifffile.imwrite(path, LESION, tile=(80, 80), compression="zlib")
    with tifffile.TiffFile(path) as file:
        sizes = file.pages[0].tags["TileByteCounts"]
    data = path.read_bytes()
    end = sizes.valueoffset + 4 * sizes.count
    path.write_bytes(data[: sizes.valueoffset] + bytes(end - sizes.valueoffset) + data[end:])
    with pytest.raises(DataError, match=r"mask\.tif: segment 0"):
        mask_content(path)


def test_a_slice_with_more_pixels_than_it_states_is_refused(tmp_path):
    _, paths = series(tmp_path, voxels(1, 32, 32))
    open_volume(paths[0]).slice_hu(0)
    change(paths[0], Rows=16)
    with pytest.raises(DataError, match=r"PixelData has 2,048 bytes, 16 x 32 pixels need 1,024"):
        open_volume(paths[0]).slice_hu(0)
