"""One picture per case to see at a glance what was taken as tissue and where the instances are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smmil.data.tables import read_instance_labels
from smmil.encoders import Encoder
from smmil.errors import DataError
from smmil.files import digest, replacing
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.frame import Frame
from smmil.images import Slide, open_slide
from smmil.images.volume import Volume, open_volume, parse_window, window
from smmil.prepare.annotate import annotate_case, negative_case, write_labels
from smmil.prepare.recipe import Recipe
from smmil.prepare.selection import (
    Encoded,
    Points,
    Selection,
    encode_slices,
    encode_tiles,
    encoder_facts,
    encoder_of,
    read_points,
    select_points,
    select_tiles,
    slice_pictures,
    slide_facts,
)
from smmil.prepare.table import PreparedCase, PrepareJob
from smmil.prepare.tissue import TissueMask
from smmil.runtime import versions

_SIDE = 1024
_OUTLINE, _TILE, _DAMAGED = (0, 90, 200), (0, 130, 60), (220, 0, 0)
_ACROSS, _SLICE = 5, 160


def _slide_preview(path: Path, slide: Slide, selection: Selection, damaged: list[tuple[float, float]]) -> None:
    """The slide with the outline of its tissue (blue), its tiles (green) and damaged tiles (red)."""
    from PIL import Image, ImageDraw

    small = slide.thumbnail(_SIDE)
    picture = small.image.copy()
    if selection.mask is not None:
        picture[_outline(selection.mask, picture.shape[:2], small.scale)] = _OUTLINE
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    _boxes(draw, selection.coords, selection.footprint, small.scale, _TILE)
    _boxes(draw, np.array(damaged).reshape(-1, 2), selection.footprint, small.scale, _DAMAGED)
    _save(path, image)


def _outline(mask: TissueMask, shape: tuple[int, int], scale: float) -> np.ndarray:
    """Thumbnail pixels of tissue that touch a pixel without."""
    from scipy.ndimage import binary_erosion

    rows, columns = (
        np.floor(((np.arange(n) + 0.5) * scale - mask.origin[axis]) / mask.scale[axis]).astype(np.int64)
        for n, axis in zip(shape, (1, 0), strict=True)
    )
    around = np.pad(mask.mask, 1)  # whatever lies outside the mask falls into its empty border
    rows, columns = (np.clip(v, -1, n) + 1 for v, n in zip((rows, columns), mask.mask.shape, strict=True))
    tissue = around[np.ix_(rows, columns)]
    return tissue & ~binary_erosion(tissue, np.ones((3, 3)))


def _boxes(draw: Any, coords: np.ndarray, footprint: int, scale: float, colour: tuple[int, int, int]) -> None:
    first = np.rint(coords / scale).astype(int)
    last = np.maximum(first, np.rint((coords + footprint) / scale).astype(int) - 1)
    for corners in np.hstack([first, last]).tolist():
        draw.rectangle(corners, outline=colour)


def _scan_preview(path: Path, volume: Volume, recipe: Recipe) -> None:
    """Up to 20 slices, evenly spread from the first to the last, through the first window."""
    from PIL import Image

    chosen = np.unique(np.linspace(0, len(volume) - 1, min(len(volume), 4 * _ACROSS)).round().astype(int))
    rows = -(-len(chosen) // _ACROSS)
    sheet = Image.new("L", (_SLICE * min(_ACROSS, len(chosen)), _SLICE * rows))
    for place, index in enumerate(chosen.tolist()):
        shades = window(volume.slice_hu(index), *parse_window(recipe.windows[0]))
        tile = Image.fromarray((shades * 255).round().astype(np.uint8))
        tile.thumbnail((_SLICE, _SLICE))
        sheet.paste(tile, (place % _ACROSS * _SLICE, place // _ACROSS * _SLICE))
    _save(path, sheet)


def _save(path: Path, image: Any) -> None:
    try:
        with replacing(path) as temporary:
            image.save(temporary, "PNG")
    except OSError as problem:
        raise DataError(f"{path}: cannot be written ({problem}); check the folder and the free space") from None


_BLOCK = 65536
_BLOCKS = 32


def _fingerprint(path: str | Path) -> str:
    """Checksum of a file or folder by sizes and 32 blocks spread over every file; names and dates do not count.

    The header, the end and places between are read, so a file that was scanned, cut or compressed again differs; a few
    flipped bits between them need not. An .mrxs file counts together with the folder of the same name.
    """
    path = Path(path)
    folder = path.with_suffix("") if path.suffix.lower() == ".mrxs" else path
    files = [path] if path.is_file() else []
    if folder.is_dir():
        files += [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
    try:
        return digest(*sorted(_file(file) for file in files))
    except OSError as problem:
        raise DataError(f"{problem.filename or path}: cannot be read ({problem.strerror}); check the file") from None


def _file(path: Path) -> str:
    size = path.stat().st_size
    last = max(0, size - _BLOCK)
    with path.open("rb") as file:
        parts = []
        for place in sorted({last * k // (_BLOCKS - 1) for k in range(_BLOCKS)}):
            file.seek(place)
            parts.append(file.read(_BLOCK))
    return digest(str(size), *parts)


def _write_instance_labels(job: PrepareJob, points: Points | None, damaged: list[list[float]]) -> bool:
    """Write the labels of a case whose bag is there, from its annotation or its points; whether there were any."""
    if job.case.instance_labels is not None:
        _copy(job, job.case.instance_labels)
        return True
    if job.case.annotation is not None:
        _annotate(job, job.case.annotation)
        return True
    if points is None and job.case.label == "0" and job.negatives_known:
        write_labels(job.labels_path, negative_case(read_bag(job.bag_path)))
        return True
    if points is None or points.labels is None:
        return False
    corners = points.corners(job.recipe).tolist()
    lost = {tuple(place) for place in damaged}
    kept = [label for label, corner in zip(points.labels, corners, strict=True) if tuple(corner) not in lost]
    _write(job.labels_path, kept)
    return True


def _copy(job: PrepareJob, given: Path) -> None:
    """Labels that are known instance by instance, such as those of the slices of a scan from foot to head."""
    labels, n = read_instance_labels(given), read_bag(job.bag_path).n
    if len(labels) != n:
        raise DataError(f"{given}: {len(labels):,} labels, but {job.case.id} has {n:,} instances; give one for each")
    _write(job.labels_path, labels.tolist())


def _write(path: Path, labels: Sequence[int]) -> None:
    with replacing(path) as temporary:
        np.savetxt(temporary, labels, fmt="%d", header="label", comments="")


def _annotate(job: PrepareJob, annotation: Path) -> None:
    case = job.case
    options: dict[str, Any] = {
        "coverage": job.coverage,
        "kind": case.annotation_kind,
        "complete": case.annotation_complete,
        "positive": job.positive,
    }
    if job.recipe.kind == "ct":
        options["slices"] = open_volume(job.case.source).sop_uids or None
    elif job.recipe.tissue.origin == "bounds":
        options["bounds"] = tuple(read_provenance(job.bag_path)["bounds"])
    write_labels(job.labels_path, annotate_case(read_bag(job.bag_path), annotation, **options))


def prepare_case(job: PrepareJob) -> PreparedCase:
    """Prepare one case, unless its bag is there, sound, and made from the same source with the same recipe."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    points = read_points(job.points, job.case.source.stem, job.positive) if job.points is not None else None
    source = _source_digest(job, points)
    facts, status = _finished(job, source), "kept"
    if facts is None:
        facts, status = _make(job, points, source), "written"
    if facts is None:
        return PreparedCase("no tissue")
    return PreparedCase(
        status,
        facts["instances"],
        len(facts["damaged"]),
        facts.get("mpp_level0"),
        facts.get("mpp_read"),
        _write_instance_labels(job, points, facts["damaged"]),
        tuple(facts["notes"]),
    )


def _source_digest(job: PrepareJob, points: Points | None) -> str:
    """Fingerprint of everything the bag is made from: pixels, pixel size, a given mask, points."""
    mask = "" if job.case.tissue is None else _fingerprint(job.case.tissue)
    return digest(
        _fingerprint(job.case.source), repr(job.case.mpp), mask, points.fingerprint() if points is not None else ""
    )[:32]


def _finished(job: PrepareJob, source: str) -> dict[str, Any] | None:
    """The facts in the bag file when it needs no more work; None when it is absent, damaged, or of something else."""
    if not (job.bag_path.exists() and job.preview_path.exists()):
        return None
    try:
        facts = read_provenance(job.bag_path)
        if facts.get("recipe") != job.recipe_digest or facts.get("source") != source:
            return None
        return facts if read_bag(job.bag_path).n == facts["instances"] else None
    except (DataError, KeyError):
        return None  # damaged: made again


def _make(job: PrepareJob, points: Points | None, source: str) -> dict[str, Any] | None:
    """Read, encode, draw, and write the bag last: a bag that is there has its preview. None when there is no tissue."""
    recipe = job.recipe
    encoder = job.encoder or encoder_of(recipe.encoder, job.weights, job.device, recipe.autocast, recipe.encoder_pixels)
    if job.recipe.kind == "ct":
        return _make_scan(job, encoder, source)
    with open_slide(job.case.source, job.case.mpp, job.recipe.reader) as slide:
        selection = _select(job, slide, points)
        if not len(selection.coords):
            _slide_preview(job.preview_path, slide, selection, [])
            job.bag_path.unlink(missing_ok=True)
            return None
        encoded = encode_tiles(slide, selection.coords, selection.footprint, job.recipe, encoder)
        _slide_preview(job.preview_path, slide, selection, encoded.damaged)
        facts = slide_facts(slide, selection, job.recipe.pixels or encoder.pixels)
    return _write_case(job, encoded, selection.frame, selection.graph, facts | _origin(job, encoder, source))


def _select(job: PrepareJob, slide: Slide, points: Points | None) -> Selection:
    """The instances of a slide by the recipe's kind."""
    if points is not None:
        return select_points(slide, job.recipe, points)
    return select_tiles(slide, job.recipe, job.case.tissue)


def _make_scan(job: PrepareJob, encoder: Encoder, source: str) -> dict[str, Any]:
    volume = open_volume(job.case.source)
    encoded = encode_slices(slice_pictures(volume, job.recipe), encoder)
    _scan_preview(job.preview_path, volume, job.recipe)
    facts = {
        "notes": list(volume.notes),
        "shape": list(volume.shape),
        "spacing_mm": list(volume.spacing_mm),
        "orientation": volume.orientation,
        "positions_mm": volume.positions_mm.tolist(),
    }
    return _write_case(job, encoded, volume.frame, {"kind": "chain"}, facts | _origin(job, encoder, source))


def _origin(job: PrepareJob, encoder: Encoder, source: str) -> dict[str, Any]:
    facts = {"recipe": job.recipe_digest, "settings": job.recipe.settings(), "source": source, "versions": versions()}
    return facts | encoder_facts(encoder)


def _write_case(
    job: PrepareJob, encoded: Encoded, frame: Frame, rule: dict[str, Any], facts: dict[str, Any]
) -> dict[str, Any]:
    facts |= {"instances": len(encoded.coords), "damaged": [list(place) for place in encoded.damaged]}
    write_bag(job.bag_path, encoded.bag(job.case.id, frame), graph=rule, provenance=facts)
    return facts


@dataclass(frozen=True)
class Preview:
    """One line of a dry run. `wanted_um` and `used_um` are the width of a tile asked for and as rounded to pixels."""

    id: str
    status: str
    instances: int = 0
    mpp_level0: float | None = None
    wanted_um: float | None = None
    used_um: float | None = None


def preflight(job: PrepareJob) -> Preview:
    """Open the case and choose its instances, without encoding them; what fails says why in `status`."""
    try:
        points = None if job.points is None else read_points(job.points, job.case.source.stem, job.positive)
        status = "to do" if _finished(job, _source_digest(job, points)) is None else "done"
        if job.recipe.kind == "ct":
            return Preview(job.case.id, status, len(open_volume(job.case.source)))
        with open_slide(job.case.source, job.case.mpp, job.recipe.reader) as slide:
            chosen = _select(job, slide, points)
            status = status if len(chosen.coords) else "no tissue"
            width = chosen.facts.get("tile_um", {})
            return Preview(
                job.case.id, status, len(chosen.coords), slide.mpp, width.get("requested"), width.get("used")
            )
    except DataError as problem:
        return Preview(job.case.id, f"fails: {problem}")
