"""Damaged slides: one clear error, or one damaged tile among good ones; never a crash, a hang or a flood of memory."""

import copy
import resource
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.pyramids import noise, qptiff, slide_file
from support.sandbox import outcomes
from support.slide_damage import spoil_tile

from smmil.errors import DataError
from smmil.images import DamagedTile, open_slide
from smmil.images.openslide_slide import OpenSlideSlide
from smmil.images.tiff_slide import check_tiff_directory


@pytest.mark.parametrize("fast", [True, False])
def test_a_damaged_tile_is_named_and_all_others_are_read(tmp_path, fast):
    path = slide_file(tmp_path, noise(256, 320), compression="jpeg", factors=(1,))
    with OpenSlideSlide(path, fast=False) as slide:
        good = {(x, y): slide.read(x, y, 64, 64) for x in range(0, 320, 64) for y in range(0, 256, 64)}
    spoil_tile(path, 2, 1)
    damaged = []
    with OpenSlideSlide(path, fast=fast) as slide:
        for (x, y), expected in good.items():
            try:
                assert np.array_equal(slide.read(x, y, 64, 64), expected)
            except DamagedTile as damage:
                damaged.append((damage.x, damage.y, str(damage).split(" (")[0]))
    assert damaged == [(128, 64, f"{path}: the region at x=128, y=64")]


def test_a_dicom_folder_survives_damage_too(tmp_path):
    folder = slide_file(tmp_path, noise(128, 128), "dicom", compression="jpeg", factors=(1,))
    file = folder / "level_0.dcm"
    content = bytearray(file.read_bytes())
    start = content.index(b"\xff\xd8\xff", content.index(b"\xff\xd8\xff") + 3)  # the second frame
    content[start : start + 400] = b"\0" * 400
    file.write_bytes(content)
    with open_slide(folder) as slide:
        with pytest.raises(DamagedTile):
            slide.read(64, 0, 64, 64)
        slide.read(0, 0, 64, 64)
        slide.read(0, 64, 64, 64)


def test_the_thumbnail_leaves_damage_white_and_lists_it(tmp_path):
    image = np.zeros((1024, 1024, 3), np.uint8)
    path = slide_file(tmp_path, image, compression="jpeg", factors=(1,))
    spoil_tile(path, 10, 3)
    with open_slide(path) as slide:
        thumbnail = slide.thumbnail(128)
    assert len(thumbnail.damaged) == 1
    x, y, width, height = thumbnail.damaged[0]
    assert x <= 640 < 704 <= x + width
    assert y <= 192 < 256 <= y + height
    assert width * height <= 256**2
    white = np.zeros((128, 128), bool)
    white[int(y / 8) : int((y + height) / 8), int(x / 8) : int((x + width) / 8)] = True
    assert np.array_equal((thumbnail.image > 128).all(-1), white)


def test_damage_travels_between_processes():
    damage = copy.copy(DamagedTile("a.svs", 12, 34, "bad Huffman code"))  # by the same protocol as pickling
    assert (damage.path, damage.x, damage.y, damage.reason) == ("a.svs", 12, 34, "bad Huffman code")
    assert isinstance(damage, DataError)


def test_a_path_that_is_no_slide_is_told_what_is_supported(tmp_path):
    (tmp_path / "notes.txt").write_text("not a slide")
    (tmp_path / "empty.svs").touch()
    (tmp_path / "folder").mkdir()
    for name, message in (("notes.txt", "svs, ndpi, mrxs"), ("empty.svs", "DICOM"), ("folder", "no DICOM slide")):
        with pytest.raises(DataError, match=message):
            open_slide(tmp_path / name)
    with pytest.raises(DataError, match="no such file"):
        open_slide(tmp_path / "absent.svs")


def test_plain_images_of_too_many_pixels_are_refused_before_decoding(tmp_path, monkeypatch):
    Image.fromarray(noise(40, 50)).save(tmp_path / "large.png")
    monkeypatch.setattr("smmil.images.opening.MAX_PIXELS", 1999)
    with pytest.raises(DataError, match="50 × 40 pixels"):
        open_slide(tmp_path / "large.png")


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_a_bomb_is_refused_in_little_memory(tmp_path):
    """A few kilobytes that say 60,000 × 60,000: as a plain image, and as a single tile of a slide."""
    header, rows = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0), zlib.compress(bytes(1000))
    chunks = [png_chunk(b"IHDR", header), png_chunk(b"IDAT", rows), png_chunk(b"IEND", b"")]
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    path = slide_file(tmp_path, noise(64, 64), compression="jpeg", factors=(1,))
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as file:
        for name in ("ImageWidth", "ImageLength", "TileWidth", "TileLength"):
            at = file.pages[0].tags[name].valueoffset
            content[at : at + 2] = (59_904).to_bytes(2, "little")
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("bomb.png", path.name):
        with pytest.raises(DataError, match=r"pixels|bomb"):
            open_slide(tmp_path / name)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_tile_whose_jpeg_claims_another_size_is_not_decoded_directly(tmp_path):
    path = slide_file(tmp_path, noise(128, 128), compression="jpeg", factors=(1,))
    with OpenSlideSlide(path) as slide:
        level = slide._tiles.levels[0]
        data = path.read_bytes()[int(level.offsets[0]) :][: int(level.counts[0])]
        frame = data.index(b"\xff\xc0")
        claimed = data[: frame + 5] + (60_000).to_bytes(2, "big") * 2 + data[frame + 9 :]
        with pytest.raises((ValueError, RuntimeError)):
            level.decode(claimed)


def test_a_table_that_promises_more_bytes_than_the_file_has_is_refused(tmp_path):
    """OpenSlide would try to allocate them and abort the whole process."""
    path = slide_file(tmp_path, noise(64, 64), "leica", factors=(1,))
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].tags["TileByteCounts"].valueoffset
    content = bytearray(path.read_bytes())
    content[at + 5] = 200
    path.write_bytes(content)
    with pytest.raises(DataError, match="the file has"):
        open_slide(path)


def test_tiles_of_two_billion_columns_are_refused(tmp_path):
    """OpenSlide does not say how large the tiles of a Leica file are, and aborts the process when it reads one."""
    path = slide_file(tmp_path, noise(64, 64), "leica", factors=(1,))
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].tags["TileWidth"].valueoffset
    content = bytearray(path.read_bytes())
    content[at + 3] = 127
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"tiles of 2130706.* pixels are decoded at once"):
        open_slide(path)


@pytest.mark.parametrize("offset", [7, 1000, 2**31])
def test_a_table_of_frames_that_points_elsewhere_is_refused(tmp_path, offset):
    """OpenSlide follows it wherever it leads, and the process ends with a segmentation fault."""
    folder = slide_file(tmp_path, noise(128, 128), "dicom", factors=(1,), tile=64, compression="jpeg")
    (level,) = folder.glob("*.dcm")
    content = bytearray(level.read_bytes())
    at = content.index(b"\xe0\x7f\x10\x00OB\0\0\xff\xff\xff\xff") + 20  # first entry of the table
    assert content[at : at + 4] == bytes(4)
    content[at + 4 : at + 8] = (int.from_bytes(content[at + 4 : at + 8], "little") + offset).to_bytes(4, "little")
    level.write_bytes(content)
    with pytest.raises(DataError, match=r"level_0.dcm: its table of frames points beside them") as found:
        open_slide(folder)
    assert str(found.value).count("level_0") == 1


@pytest.mark.parametrize("flavour", ["aperio", "generic", "leica"])
def test_a_tile_of_two_widths_is_an_error_or_read(tmp_path, flavour):
    path = slide_file(tmp_path, noise(64, 64), flavour, factors=(1,))
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].tags["TileWidth"].offset + 4
        assert file.byteorder == "<"
    content = bytearray(path.read_bytes())
    content[at] = 2  # values that it has, wherever they are then looked for
    path.write_bytes(content)
    with suppress(DataError), open_slide(path) as slide:
        slide.read(0, 0, 64, 64)


def test_a_reason_of_two_lines_becomes_one():
    assert str(DamagedTile("a.svs", 1, 2, "wrong\nvery")) == str(DamagedTile("a.svs", 1, 2, r"wrong\nvery"))


@pytest.mark.parametrize("level_first", [True, False])
def test_tiles_of_two_levels_are_never_confused(tmp_path, level_first):
    path = slide_file(tmp_path, noise(256, 320), compression="jpeg")
    requests = [(0, 0, 256, 64), (0, 0, 64, 64), (64, 64, 64, 64), (64, 0, 256, 64)]
    with OpenSlideSlide(path) as direct, OpenSlideSlide(path, fast=False) as composed:
        for request in requests if level_first else requests[::-1]:
            assert np.array_equal(direct.read(*request), composed.read(*request))
        assert direct._trusts(0)
        assert direct._trusts(1)


def test_a_tile_that_the_file_leaves_out_is_left_to_openslide(tmp_path):
    path = slide_file(tmp_path, noise(128, 128), compression="jpeg", factors=(1,))
    with tifffile.TiffFile(path) as file:
        tag = file.pages[0].tags["TileByteCounts"]
        at, width = tag.valueoffset, tag.valuebytecount // tag.count
    content = bytearray(path.read_bytes())
    content[at : at + width] = bytes(width)
    path.write_bytes(content)
    with OpenSlideSlide(path) as direct, OpenSlideSlide(path, fast=False) as composed:
        assert direct._tiles.region(0, 0, 0, 64, 64) is None
        for x in (64, 0):
            assert np.array_equal(direct.read(x, 0, 64, 64), composed.read(x, 0, 64, 64))


@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("tile", [None, (16, 16)])
def test_more_strips_or_tiles_than_a_tiff_can_list_are_refused_at_once(tmp_path, bigtiff, byteorder, tile):
    """tifffile would make a list of two billion."""
    path = tmp_path / "a.tif"
    options = {"bigtiff": bigtiff, "byteorder": byteorder, "photometric": "minisblack"}
    tifffile.imwrite(path, np.zeros((64, 64), np.uint8), tile=tile, rowsperstrip=None if tile else 1, **options)
    check_tiff_directory(path)
    with tifffile.TiffFile(path) as file:
        height = file.pages[0].tags["ImageLength"]
        at, width = height.valueoffset, {1: 1, 3: 2, 4: 4, 16: 8}[int(height.dtype)]
    content = bytearray(path.read_bytes())
    content[at : at + width] = (2 ** (8 * width - 1) - 1).to_bytes(width, "little" if byteorder == "<" else "big")
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a.tif: promises more tiles or strips than it can list"):
        check_tiff_directory(path)


@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("tag", ["TileOffsets", "TileByteCounts"])
@pytest.mark.parametrize("where", ["beyond the end", "in the header"])
def test_a_list_of_tiles_that_does_not_lie_in_the_file_is_refused(tmp_path, bigtiff, tag, where):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, noise(16, 16), tile=(16, 16), bigtiff=bigtiff, photometric="rgb")
    wide = 8 if bigtiff else 4
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].tags[tag].offset + 4
    count, place = (2**20 + 1, None) if where == "beyond the end" else (3, 0)
    _relist(path, at, wide, count, place)
    with pytest.raises(DataError, match=r"a.tif: the list of its tiles does not lie in the file"):
        check_tiff_directory(path)


def test_one_wrong_bit_in_the_length_of_a_list_of_tiles_does_not_end_the_process(tmp_path):
    """tifffile passes over such a list; OpenSlide took the bytes of a picture for sizes and aborted."""
    path = qptiff(tmp_path / "a.qptiff", noise(96, 96), compression="jpeg")
    with tifffile.TiffFile(path) as file:
        single = next(page for page in file.pages if page.is_tiled and len(page.dataoffsets) == 1)
        assert file.is_bigtiff
    _relist(path, single.tags["TileByteCounts"].offset + 4, 8, 2**20 + 1)

    def every_level(file):
        with open_slide(file) as slide:
            return [slide._pixels(level, 0, 0, 8, 8) for level in range(len(slide.level_sizes))]

    (found,) = outcomes(every_level, [path], None)
    assert found.kind == "error", found


def _relist(path, at, wide, count, place=None):
    """Another number of entries, and another place of them."""
    content = bytearray(path.read_bytes())
    content[at : at + wide] = count.to_bytes(wide, "little")
    if place is not None:
        content[at + wide : at + 2 * wide] = place.to_bytes(wide, "little")
    path.write_bytes(content)
