"""Score maps as images: tiled float TIFF of slides, NIfTI of CT scans, PNG of both."""

import gzip
import json
import warnings
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import ConfigError, MissingExtra
from smmil.exports import geometry
from smmil.exports.case import ExportCase
from smmil.exports.geometry import ALL, SlideFacts, boxes, paint, slide_facts
from smmil.exports.registry import ExportFormat, register_export
from smmil.files import replacing
from smmil.frame import Frame
from smmil.images.matching import display_window
from smmil.images.volume import Volume, window
from smmil.maps import canvas
from smmil.maps.raster import between_cells, interpolated_words, rasterize, scattered, truth_values
from smmil.redact import RESEARCH, plain

OPACITY = 0.55
_PAPER = np.array([246, 245, 242], np.float32)


def _write_png(case: ExportCase, path: Path) -> None:
    """Write scores as colours over the image (viridis, 2nd to 98th percentile of all cases written together;
    strangeness 0 to 1); with a threshold what reaches it.
    """
    try:
        from PIL import Image, PngImagePlugin
    except ModuleNotFoundError:
        raise MissingExtra("Pillow", "slides", "writing pictures") from None
    picture = _overlay_on_slide(case) if case.axes == 2 else _contact_sheet(case)
    about = PngImagePlugin.PngInfo()
    for key, value in (("Software", case.facts["software"]), ("Comment", json.dumps(case.facts))):
        about.add_text(key, value)
    with replacing(path) as temporary:
        Image.fromarray(np.rint(picture).astype(np.uint8)).save(temporary, "PNG", pnginfo=about)


register_export(ExportFormat(
    "png", _write_png, (".png",), "colours over thumbnail or slices; with a threshold only what reaches it",
    "everything", slide="optional", scan="image", threshold="optional", sized=True, extra="slides",
))  # fmt: skip


def _overlay_on_slide(case: ExportCase) -> np.ndarray:
    """Thumbnail and heat map, pixel on pixel: column j covers x from j · scale to (j + 1) · scale."""
    facts = slide_facts(case)
    rectangles = boxes(case, facts)
    with case.slide() as slide:
        if slide is not None:
            small = slide.thumbnail(case.size)
            base, scale = small.image.astype(np.float32), small.scale
            if small.damaged:
                case.notes.append(f"{len(small.damaged)} damaged part(s) of the slide were left white")
        else:
            size = geometry._extent(rectangles, facts.size)
            scale = max(1.0, max(size) / case.size)
            width, height = (max(1, min(case.size, ceil(side / scale - 1e-6))) for side in size)
            base = np.broadcast_to(_PAPER, (height, width, 3)).copy()
    rows = ALL if case.positive is None else case.positive
    heat = paint(rectangles[rows] / scale, case.score[rows], base.shape[:2])
    if case.interpolate:
        heat = np.where(np.isnan(heat), np.nan, _between_patches(case, rectangles, facts, scale, heat))
    return _tinted(base, heat, case)


def _between_patches(
    case: ExportCase, rectangles: np.ndarray, facts: SlideFacts, scale: float, heat: np.ndarray
) -> np.ndarray:
    """The heat with scores that go over into each other between the middles of patches; says so in the notes."""
    frame = case.prediction.frame
    if frame is None or scattered(case.prediction):
        case.notes.append("instances lie on no lattice: nothing is interpolated")
        return heat
    sizes = rectangles[0, 2:] - rectangles[0, :2]
    unit = sizes / np.array((frame.patch * 2)[:2])
    step = np.array((frame.step * 2)[:2]) * unit
    plain_frame = Frame((float(sizes[0]), float(sizes[1])), None, "px", (float(step[0]), float(step[1])))
    image, extent = rasterize(replace(case.prediction, coords=rectangles[:, :2], frame=plain_frame), case.score)
    case.notes.append(interpolated_words(float(step[0]), facts.mpp, "um"))
    x, y = (np.arange(side) + 0.5 for side in heat.shape[::-1])
    fine = between_cells(image, extent, x * scale, y * scale)
    return np.where(np.isnan(fine), heat, fine)


def _colours(case: ExportCase, heat: np.ndarray) -> np.ndarray:
    """RGB from 0 to 255 for each value, on the scale of the whole case, so that a threshold changes no colour."""
    low, high, _ = canvas.limits_of(case.score.astype(np.float64), case.limits or case.prediction.fixed_scale)
    shades = canvas.colours("viridis")((np.nan_to_num(heat, nan=low) - low) / (high - low))
    return shades[..., :3].astype(np.float32) * 255


def _tinted(base: np.ndarray, heat: np.ndarray, case: ExportCase) -> np.ndarray:
    """The heat over the picture; where there is none the picture stays as it is."""
    mixed = (1 - OPACITY) * base + OPACITY * _colours(case, heat)
    return np.where(np.isnan(heat)[..., None], base, mixed)


def _contact_sheet(case: ExportCase) -> np.ndarray:
    """All slices from foot to head, row by row, each in a frame of its score's colour; boxes are tinted.

    Slices are numbered from 1; a white corner marks those of the truth; the colour scale stands below.
    """
    volume = case.volume("a picture of a scan")
    across = ceil(len(volume) ** 0.5)
    cell = max(4, case.size // across)
    sheet = np.zeros((cell * ceil(len(volume) / across), cell * across, 3), np.float32)
    rows = ALL if case.positive is None else case.positive
    heat = geometry.scan_heat(case, volume, rows) if case.axes == 3 else None
    scores = geometry._slice_scores(case, len(volume), rows) if case.axes == 1 else np.full(len(volume), np.nan)
    border, shades = max(1, cell // 24), display_window(case.prediction, volume)
    for index in range(len(volume)):
        top, left = (place * cell for place in divmod(index, across))
        if not np.isnan(scores[index]):
            sheet[top : top + cell, left : left + cell] = _colours(case, scores[index : index + 1])
        grey = window(volume.slice_hu(index), *shades) * 255
        picture = np.repeat(grey[..., None], 3, axis=2)
        picture = picture if heat is None else _tinted(picture, heat[index], case)
        inside = slice(top + border, top + cell - border), slice(left + border, left + cell - border)
        sheet[inside] = _fitted(picture, cell - 2 * border)
    return np.vstack([_numbered(sheet, cell, across, len(volume), case), _scale_below(case, sheet.shape[1])])


_TRUTH = "white corner: truth"


def _numbered(sheet: np.ndarray, cell: int, across: int, count: int, case: ExportCase) -> np.ndarray:
    """The sheet with the number of every slice, and a white corner where an instance of the slice is known positive."""
    from PIL import Image, ImageDraw

    truth, coords = truth_values(case.prediction), case.prediction.coords
    assert coords is not None  # `axes` was asked before
    deep = ceil(case.prediction.frame.patch[-1]) if case.prediction.frame is not None and case.axes == 3 else 1
    first = [] if truth is None else np.rint(coords[truth == 1, -1]).astype(int).tolist()
    marked = {index for start in first for index in range(start, start + deep)}
    image = Image.fromarray(np.rint(sheet).astype(np.uint8))
    draw, size = ImageDraw.Draw(image), max(8, cell // 9)
    for index in range(count):
        top, left = (place * cell for place in divmod(index, across))
        if index in marked:
            corner = [(left + cell - 1, top), (left + cell - 1 - size, top), (left + cell - 1, top + size)]
            draw.polygon(corner, fill="white", outline="black")
        place = left + max(2, cell // 20), top + max(2, cell // 20)
        draw.text(place, str(index + 1), fill="white", stroke_width=1, stroke_fill="black", font_size=size)
    return np.asarray(image, np.float32)


def _scale_below(case: ExportCase, width: int) -> np.ndarray:
    """The colour scale with its ends, what the scores are, and what marks the truth."""
    from PIL import Image, ImageDraw

    low, high, _ = canvas.limits_of(case.score.astype(np.float64), case.limits or case.prediction.fixed_scale)
    size = max(9, min(22, width // 40))
    strip = Image.new("RGB", (width, 3 * size), "white")
    draw, bar = ImageDraw.Draw(strip), max(8, width // 4)
    colours = _colours(case, np.linspace(low, high, bar)[None])
    kind = plain(str(case.prediction.meta.get("score_kind", "score")), 40)
    truth = "" if truth_values(case.prediction) is None else f"   {_TRUTH}"
    layer = case.prediction.shown_layer
    least, most = ("", "") if layer is None else (f"{layer.low} ", f" {layer.high}")
    words = f"{least}{low:.3g}", f"{high:.3g}{most}  {kind}{truth}"
    left = size + draw.textlength(words[0], font_size=size) + size // 2
    draw.text((size, size), words[0], fill="black", font_size=size)
    strip.paste(Image.fromarray(np.repeat(np.rint(colours).astype(np.uint8), size, axis=0)), (int(left), size))
    draw.text((left + bar + size // 2, size), words[1], fill="black", font_size=size)
    return np.asarray(strip, np.float32)


def _fitted(picture: np.ndarray, side: int) -> np.ndarray:
    """The picture in a black square, proportions kept."""
    from PIL import Image

    rows, columns = picture.shape[:2]
    height, width = (max(1, round(side * n / max(rows, columns))) for n in (rows, columns))
    small = Image.fromarray(np.rint(picture).astype(np.uint8)).resize((width, height), Image.Resampling.BILINEAR)
    square = np.zeros((side, side, 3), np.float32)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = np.asarray(small)
    return square


_TILE_SIDE = 512
_LOWEST, _HIGHEST, _NO_DATA = 340, 341, 42113  # SMinSampleValue and SMaxSampleValue, which ASAP reads; GDAL_NODATA


def _write_tiff(case: ExportCase, path: Path) -> None:
    """Write the whole slide, bounds not cut off, one map pixel per 2^k level-0 pixels; nan where there is no instance.

    ASAP lays a map over a slide whose sides are a power of two larger. See `geometry._reduction` for the choice of k.
    Smaller levels follow, halved until they fit into one tile.
    """
    try:
        import tifffile
    except ModuleNotFoundError:
        raise MissingExtra("tifffile", "slides", "writing TIFF") from None
    case.need_slide("a TIFF map")
    facts = slide_facts(case)
    rectangles = boxes(case, facts)
    size = geometry._extent(rectangles, facts.size)
    if facts.size is None:
        case.notes.append("the size of the slide is not known: the map ends with the last tile")
    heat, r, exact = geometry._slide_heat(case, rectangles, size)
    about = _about(case, facts, size, r, exact)
    levels = [heat]
    while max(levels[-1].shape) > _TILE_SIDE:
        levels.append(_halved(levels[-1]))
    with replacing(path) as temporary, tifffile.TiffWriter(temporary) as file:
        for depth, level in enumerate(levels):
            tags = _tags(case, facts, r * 2**depth)
            file.write(level, description=about if depth == 0 else None, subfiletype=1 if depth else 0, **tags)


register_export(ExportFormat(
    "tiff", _write_tiff, (".tif", ".tiff"), "float32 pyramid of scores", "ASAP, ImageJ, tifffile",
    slide="optional", extra="slides",
))  # fmt: skip


def _halved(heat: np.ndarray) -> np.ndarray:
    """The mean over 2 × 2 pixels, as far as they are painted."""
    rows, columns = heat.shape
    even = np.pad(heat, ((0, rows % 2), (0, columns % 2)), constant_values=np.nan)
    fours = even.reshape(len(even) // 2, 2, -1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # four pixels without tissue have no mean: nan
        return np.asarray(np.nanmean(fours, axis=(1, 3), dtype=np.float64), np.float32)


def _tags(case: ExportCase, facts: SlideFacts, r: int) -> dict[str, Any]:
    lowest, highest = case.ends
    tags: dict[str, Any] = {
        "tile": (_TILE_SIDE, _TILE_SIDE),
        "compression": "lzw",
        "photometric": "minisblack",
        "metadata": None,
        "software": case.facts["software"],
        "extratags": [
            (_LOWEST, "f", 1, lowest, True),
            (_HIGHEST, "f", 1, highest, True),
            (_NO_DATA, "s", 0, "nan", True),
        ],
    }
    if facts.mpp is not None:
        per_cm = 1e4 / (facts.mpp * r)
        tags |= {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER"}
    return tags


def _about(case: ExportCase, facts: SlideFacts, size: tuple[int, int], r: int, exact: bool) -> str:
    """JSON in ASCII: a description tag takes nothing else."""
    return json.dumps(
        {
            **case.facts,
            "values": case.layer,
            "level0_size": list(size),
            "level0_pixels_per_pixel": r,
            "exact_edges": exact,
            "bounds": None if facts.bounds is None else list(facts.bounds),
            "um_per_level0_pixel": facts.mpp,
        }
    )


_COMMENT = 6
_DESCRIPTION = 80


def _write_nifti(case: ExportCase, path: Path) -> None:
    """Write float32 in the geometry of the scan (of a NIfTI file its shape and affine), nan where no instance lies."""
    try:
        import nibabel
    except ModuleNotFoundError:
        raise MissingExtra("nibabel", "ct", "writing NIfTI") from None
    if case.axes == 2:
        raise ConfigError(f"{case.id}: nifti is for scans, but this case is a slide; choose tiff, geojson or dicom-pm")
    volume = case.volume("nifti")
    image = nibabel.Nifti1Image(geometry.scan_heat(case, volume).transpose(2, 1, 0), volume.affine)
    image = _as_stored(image, volume, case.image)
    _describe(image.header, case)
    data = image.to_bytes()
    with replacing(path) as temporary:
        # Packed here: the usual writer would put the name of the temporary file and the time into the bytes.
        temporary.write_bytes(gzip.compress(data, mtime=0) if path.name.lower().endswith(".gz") else data)


register_export(ExportFormat(
    "nifti", _write_nifti, ("_heat.nii.gz", ".nii.gz", ".nii"), "float32 volume of scores",
    "3D Slicer, ITK-SNAP, nibabel", scan="image", extra="ct",
))  # fmt: skip


def _as_stored(image: Any, volume: Volume, source: Path | None) -> Any:
    """Turned back to the axes of the NIfTI file that was given, so that both lie in memory alike."""
    import nibabel
    from nibabel import orientations

    if source is None or not source.name.lower().endswith((".nii", ".nii.gz")):
        return image
    stored: Any = nibabel.load(source)
    change = orientations.ornt_transform(
        orientations.io_orientation(volume.affine), orientations.io_orientation(stored.affine)
    )
    return image.as_reoriented(change)


def _describe(header: Any, case: ExportCase) -> None:
    from nibabel.nifti1 import Nifti1Extension

    short = plain(f"{case.facts['software']} {case.facts.get('model', '')}", _DESCRIPTION - len(RESEARCH) - 4)
    header["descrip"] = f"{short}; {RESEARCH}".encode("ascii", "replace")[:_DESCRIPTION]
    header.set_xyzt_units("mm")
    header["cal_min"], header["cal_max"] = (np.float32(end) for end in case.ends)
    for code in ("qform_code", "sform_code"):
        header[code] = 1  # scanner coordinates
    header.extensions.append(Nifti1Extension(_COMMENT, json.dumps(case.facts).encode()))
