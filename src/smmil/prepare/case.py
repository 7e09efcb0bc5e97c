"""Prepare one case: bag file, instance labels, picture of its tissue; an interrupted prepare resumes here.

A case that is done already is recognised by the recipe and the fingerprint of its image, and kept.
"""

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from scipy.ndimage import binary_erosion

from smmil.bag import Bag
from smmil.data.tables import read_instance_labels
from smmil.encoders import Encoder, encode_stream
from smmil.errors import DataError
from smmil.files import digest, replacing
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.formats.content import is_edgeless
from smmil.frame import Frame
from smmil.graph import ALARM_FROM
from smmil.images import MosaicSlide, Slide, open_slide
from smmil.images.opening import is_mosaic
from smmil.images.volume import Volume, open_volume, window
from smmil.prepare.annotate import InstanceLabels, annotate_case, negative_case, write_labels
from smmil.prepare.recipe import SCANS
from smmil.prepare.selection import (
    _encode_tiles,
    _Encoded,
    _encoder_of,
    _Points,
    _read_points,
    _select_patches,
    _select_points,
    _select_tiles,
    _Selection,
    _SlicePictures,
    _slide_facts,
)
from smmil.prepare.table import PreparedCase, PrepareJob
from smmil.prepare.tissue import _TissueMask
from smmil.prepare.volume_patches import _VolumePatches
from smmil.runtime import own_card, versions

_SIDE = 1024
_OUTLINE, _TILE, _DAMAGED = (0, 90, 200), (0, 130, 60), (220, 0, 0)
_ACROSS, _SLICE, _BAND = 5, 160, 6
_BLOCK, _BLOCKS = 65536, 32  # bytes and number of the parts of a file that make its fingerprint


def _slide_preview(path: Path, slide: Slide, selection: _Selection, damaged: list[tuple[float, float]]) -> None:
    """The slide with the outline of its tissue (blue), its tiles (green) and damaged tiles (red)."""
    small = slide.thumbnail(_SIDE)
    picture = small.image.copy()
    if selection.mask is not None:
        picture[_outline(selection.mask, picture.shape[:2], small.scale)] = _OUTLINE
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    for coords, colour in ((selection.coords, _TILE), (np.array(damaged).reshape(-1, 2), _DAMAGED)):
        first = np.rint(coords / small.scale).astype(int)
        last = np.maximum(first, np.rint((coords + selection.footprint) / small.scale).astype(int) - 1)
        for corners in np.hstack([first, last]).tolist():
            draw.rectangle(corners, outline=colour)
    _save(path, image)


def _outline(mask: _TissueMask, shape: tuple[int, int], scale: float) -> np.ndarray:
    """Thumbnail pixels of tissue that touch a pixel without."""
    places = []
    for n, axis, size in zip(shape, (1, 0), mask.mask.shape, strict=True):
        place = np.floor(((np.arange(n) + 0.5) * scale - mask.origin[axis]) / mask.scale[axis]).astype(np.int64)
        places.append(np.clip(place, -1, size) + 1)
    tissue = np.pad(mask.mask, 1)[np.ix_(*places)]  # whatever lies outside the mask falls into its empty border
    return tissue & ~binary_erosion(tissue, np.ones((3, 3)))


def _preview_slices(count: int) -> list[int]:
    """Up to 20 slices, evenly spread from the first to the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, 4 * _ACROSS)).round().astype(int).tolist()))


def _scan_preview(
    path: Path, volume: Volume, shown: tuple[float, float], patches: _VolumePatches | None = None
) -> None:
    """Up to 20 slices through the first window, numbered from 1, with their patches; below each is room for truth."""
    chosen = _preview_slices(len(volume))
    high = _SLICE + _BAND
    sheet = Image.new("RGB", (_SLICE * min(_ACROSS, len(chosen)), high * ceil(len(chosen) / _ACROSS)))
    draw = ImageDraw.Draw(sheet)
    for place, index in enumerate(chosen):
        shades = window(volume.slice_hu(index), *shown)
        picture = Image.fromarray((shades * 255).round().astype(np.uint8))
        scale = _SLICE / max(picture.size)
        tile = ImageOps.contain(picture, (_SLICE, _SLICE))
        left, top = place % _ACROSS * _SLICE, place // _ACROSS * high
        corner = left + (_SLICE - tile.width) // 2, top + (_SLICE - tile.height) // 2
        sheet.paste(tile, corner)
        if patches is not None:
            _draw_patches(sheet, corner, scale, patches, index)
        draw.text((left + 4, top + 3), str(index + 1), "white", stroke_width=1, stroke_fill="black")
    _save(path, sheet)


def _mark_truth(path: Path, labels: np.ndarray) -> None:
    """Paint below every slice of a preview whether it is positive (red), negative (green) or unknown (black).

    A picture that was removed, damaged or made by an earlier version is left alone: it is only for looking.
    """
    chosen, high = _preview_slices(len(labels)), _SLICE + _BAND
    try:
        with Image.open(path) as stored:
            sheet = stored.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return
    if sheet.size != (_SLICE * min(_ACROSS, len(chosen)), high * ceil(len(chosen) / _ACROSS)):
        return
    draw = ImageDraw.Draw(sheet)
    for place, index in enumerate(chosen):
        left, bottom = place % _ACROSS * _SLICE, place // _ACROSS * high + high - 1
        colour = _DAMAGED if labels[index] > 0 else _TILE if labels[index] == 0 else (0, 0, 0)
        draw.rectangle((left, bottom - _BAND + 1, left + _SLICE - 1, bottom), fill=colour)
    _save(path, sheet)


def _draw_patches(
    sheet: Image.Image, corner: tuple[int, int], scale: float, patches: _VolumePatches, index: int
) -> None:
    """Frames around the patches of a slice, within the picture of that slice."""
    first, (wide, high, deep) = patches.coords, patches.lattice.patch
    here = first[(first[:, 2] <= index) & (index < first[:, 2] + deep)]
    for x, y, _ in here.tolist():
        right, bottom = min(x + wide, patches.lattice.size[0]), min(y + high, patches.lattice.size[1])
        box = [round(side * scale) for side in (x, y, right, bottom)]
        ends = [corner[0] + box[0], corner[1] + box[1], corner[0] + box[2] - 1, corner[1] + box[3] - 1]
        if ends[2] > ends[0] and ends[3] > ends[1]:
            ImageDraw.Draw(sheet).rectangle(ends, outline=_TILE)


def _save(path: Path, image: Any) -> None:
    try:
        with replacing(path) as temporary:
            image.save(temporary, "PNG", compress_level=2)  # a third of the time, a seventh more bytes
    except OSError as problem:
        raise DataError(f"{path}: cannot be written ({problem}); check the folder and the free space") from None


def _fingerprint(path: Path) -> str:
    """Checksum of a file or folder by sizes and 32 blocks spread over every file; names and dates do not count.

    The header, the end and places between are read, so a file that was scanned, cut or compressed again differs; a few
    flipped bits between them need not. An .mrxs file counts together with the folder of the same name.
    """
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


def prepare_case(job: PrepareJob) -> PreparedCase:
    """Prepare one case, unless its bag is there, sound, and made from the same source with the same recipe."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    maker = _CaseMaker(job)
    facts, status = maker.finished(), "kept"
    if facts is None:
        facts, status = maker.make(), "written"
    if facts is None:
        return PreparedCase("no tissue", warnings=maker.warnings)
    labels = maker.write_labels(facts["damaged"])
    if labels is not None and len(labels.labels) == (facts.get("shape") or [0])[0]:  # of a scan, one for each slice
        _mark_truth(job.preview_path, labels.labels)
    return PreparedCase(
        status,
        facts["instances"],
        len(facts["damaged"]),
        facts.get("mpp_level0"),
        facts.get("mpp_read"),
        labels is not None,
        tuple(facts["notes"]),
        None if labels is None else int((labels.labels > 0).sum()),
        None if labels is None or "coverage" not in labels.about else float(labels.share.max()),
        (*facts.get("warnings", ()), *(() if labels is None else labels.about.get("warnings", ()))),
        facts["instances"] < ALARM_FROM and is_edgeless(facts["instances"], read_bag(job.bag_path).graph),
    )


class _CaseMaker:
    """A job, its points, and the fingerprint of everything its bag is made from: pixels, pixel size, mask, points."""

    warnings: tuple[str, ...] = ()  # of a case without tissue

    def __init__(self, job: PrepareJob):
        self.job, self.case, self.recipe = job, job.case, job.recipe
        self.points = None if job.points is None else _read_points(job.points, job.case.source.stem, job.positive)
        self.mosaic = MosaicSlide(job.case.source, job.case.mpp) if is_mosaic(job.case.source) else None
        if self.mosaic is not None and self.recipe.kind == "patches":
            self.points = _Points(self.mosaic.corners, self.mosaic.labels)
        mask = "" if self.case.tissue is None else _fingerprint(self.case.tissue)
        points = "" if self.points is None else digest(self.points.xy.tobytes())  # labels do not change features
        files = (self.case.source,) if self.mosaic is None else self.mosaic.files
        chosen = () if self.case.series is None else (self.case.series,)
        self.source = digest(*map(_fingerprint, files), repr(self.case.mpp), mask, points, *chosen)[:32]

    def finished(self) -> dict[str, Any] | None:
        """The facts in the bag file when it needs no more work; None when it is absent, damaged, or another."""
        if not (self.job.bag_path.exists() and self.job.preview_path.exists()):
            return None
        try:
            facts = read_provenance(self.job.bag_path)
            if facts.get("recipe") != self.job.recipe_digest or facts.get("source") != self.source:
                return None
            return facts if read_bag(self.job.bag_path).n == facts["instances"] else None
        except (DataError, KeyError):
            return None  # damaged: made again

    def open_volume(self) -> Volume:
        """The scan, which must hold what the recipe's kind means: an MR series shown in Hounsfield units is white."""
        volume, kind = open_volume(self.case.source, series=self.case.series), self.recipe.kind
        meant = {"HU": "ct", "MR": "mr", "shades": "stack"}.get(volume.values, kind)
        if meant != kind:
            raise DataError(f"{self.case.source}: holds {volume.values}, not of the kind {kind!r}; give --kind {meant}")
        return volume

    def open_slide(self) -> Slide:
        return self.mosaic or open_slide(self.case.source, self.case.mpp, self.recipe.reader)

    def select(self, slide: Slide) -> _Selection:
        """The instances of a slide by the recipe's kind."""
        if isinstance(slide, MosaicSlide) and self.recipe.kind == "patches":
            return _select_patches(slide, self.recipe)
        if self.points is not None:
            return _select_points(slide, self.recipe, self.points)
        return _select_tiles(slide, self.recipe, self.case.tissue)

    def make(self) -> dict[str, Any] | None:
        """Read, encode, draw, and write the bag last: a bag that is there has its preview. None: there is no tissue."""
        job, recipe = self.job, self.recipe
        options = job.weights, own_card(job.device), recipe.autocast, recipe.encoder_pixels
        encoder = job.encoder or _encoder_of(recipe.encoder, *options)
        if recipe.kind in SCANS:
            return self._make_scan(encoder)
        with self.open_slide() as slide:
            selection = self.select(slide)
            if not len(selection.coords):
                _slide_preview(job.preview_path, slide, selection, [])
                job.bag_path.unlink(missing_ok=True)
                self.warnings = tuple(selection.facts.get("warnings", ()))
                return None
            encoded = _encode_tiles(slide, selection.coords, selection.footprint, recipe, encoder)
            _slide_preview(job.preview_path, slide, selection, encoded.damaged)
            facts = _slide_facts(slide, selection, recipe.pixels or encoder.pixels) | encoded.facts
            facts |= {} if self.case.mpp is None else {"mpp_given": True}
        return self._write(encoded, encoder, selection.frame, selection.graph, facts)

    def _make_scan(self, encoder: Encoder) -> dict[str, Any] | None:
        volume = self.open_volume()
        pictures, patches = _SlicePictures(volume, self.recipe), self.select_patches(volume)
        _scan_preview(self.job.preview_path, volume, pictures.windows[0], patches)
        if patches is not None and not len(patches.coords):
            self.job.bag_path.unlink(missing_ok=True)
            return None
        if patches is None or self.recipe.cut is None:
            features = encode_stream(encoder, pictures)
            places = np.arange(len(features), dtype=np.int64)[:, None]  # a slice is at its number
            encoded = _Encoded(features, places, [], {}, *pictures.quality())
            frame, rule = volume.frame, dict[str, Any](kind="chain")
        else:
            features = patches.encode(pictures, self.recipe.cut, encoder)
            measured, names = pictures.quality()  # a patch has the facts of the slice in its middle
            own = None if measured is None else measured[patches.middle_slices]
            encoded = _Encoded(features, patches.coords, [], {}, own, names)
            frame, rule = patches.lattice.frame, {"kind": "grid", "neighbours": 8}
        facts: dict[str, Any] = {
            "notes": list(volume.notes),
            "shape": list(volume.shape),
            "spacing_mm": list(volume.spacing_mm),
            "orientation": volume.orientation,
            "positions_mm": volume.positions_mm.tolist(),
            "window": list(pictures.windows[0]),
            "series": volume.series,
            "warnings": pictures.warnings(),
        }
        if patches is not None:
            facts |= {"patch_voxels": list(patches.lattice.patch), "body_above": patches.threshold}
        return self._write(encoded, encoder, frame, rule, facts)

    def select_patches(self, volume: Volume) -> _VolumePatches | None:
        """The patches of a scan; None: its slices are the instances."""
        return None if self.recipe.cut is None else _VolumePatches.select(volume, self.recipe.cut, self.recipe.kind)

    def _write(
        self, encoded: _Encoded, encoder: Encoder, frame: Frame, rule: dict[str, Any], facts: dict[str, Any]
    ) -> dict[str, Any]:
        made_by = encoder.provenance()
        facts |= {"recipe": self.job.recipe_digest, "settings": self.recipe.settings(), "source": self.source}
        facts |= {"versions": versions(), "encoder": made_by.pop("id"), "licence": made_by.pop("licence")}
        facts |= {"encoder_facts": made_by, "instances": len(encoded.coords)}
        facts |= {"damaged": [list(place) for place in encoded.damaged]}
        facts |= {"quality": list(encoded.quality_names)} if encoded.quality_names else {}
        write_bag(self.job.bag_path, encoded.bag(self.case.id, frame), graph=rule, provenance=facts)
        return facts

    def write_labels(self, damaged: list[list[float]]) -> InstanceLabels | None:
        """Write the labels of a case whose bag is there, from its annotation or its points; None: there are none."""
        case, points = self.case, self.points
        told = case.instance_labels is not None or case.annotation is not None
        if not told and points is not None:
            if points.labels is None:
                return None
            corners = points.corners(self.recipe).tolist()
            lost = {tuple(place) for place in damaged}
            kept = [label for label, corner in zip(points.labels, corners, strict=True) if tuple(corner) not in lost]
            return self._write_found(InstanceLabels(np.asarray(kept), np.zeros(0)))
        if not told and not (case.label == "0" and self.job.negatives_known):
            return None
        found = self.labels(read_bag(self.job.bag_path), read_provenance(self.job.bag_path))
        return None if found is None else self._write_found(found)

    def labels(self, bag: Bag, facts: dict[str, Any]) -> InstanceLabels | None:
        """Labels from the files named in the table, or of a case without lesions; an error when a file does not fit."""
        if self.case.instance_labels is not None:
            return self._given_labels(self.case.instance_labels, bag.n)
        if self.case.annotation is not None:
            return self._annotate(self.case.annotation, bag, facts)
        known = self.points is None and self.case.label == "0" and self.job.negatives_known
        return negative_case(bag) if known else None

    def looked_at(self, line: "_Preview", coords: np.ndarray, frame: Frame, facts: dict[str, Any]) -> "_Preview":
        """A line of a dry run with what the annotation marks in the instances that were chosen."""
        empty = _Encoded(np.zeros((len(coords), 1), np.float32), coords)
        found = self.labels(empty.bag(self.case.id, frame), facts)
        if found is None:
            return line
        marked = int((found.labels > 0).sum())
        return replace(line, positives=marked, warnings=(*line.warnings, *found.about.get("warnings", ())))

    def _given_labels(self, given: Path, n: int) -> InstanceLabels:
        """Labels that are known instance by instance, such as those of the slices of a scan from foot to head."""
        labels = read_instance_labels(given)
        if len(labels) != n:
            raise DataError(
                f"{given}: {len(labels):,} labels, but {self.case.id} has {n:,} instances; give one for each"
            )
        return InstanceLabels(labels, np.zeros(0))

    def _write_found(self, found: InstanceLabels) -> InstanceLabels:
        if found.about:
            write_labels(self.job.labels_path, found)
        else:
            with replacing(self.job.labels_path) as temporary:
                np.savetxt(temporary, found.labels, fmt="%d", header="label", comments="")
        return found

    def _annotate(self, annotation: Path, bag: Bag, facts: dict[str, Any]) -> InstanceLabels:
        job, case = self.job, self.case
        options: dict[str, Any] = {"kind": case.annotation_kind, "complete": case.annotation_complete}
        options |= {"coverage": job.coverage, "positive": job.positive}
        if self.recipe.kind in SCANS:
            options["scan"] = self.open_volume()
            options["slices"] = options["scan"].sop_uids or None
        else:
            options["size"] = facts.get("level0_width"), facts.get("level0_height")
            options |= {"bounds": tuple(facts["bounds"])} if self.recipe.tissue.origin == "bounds" else {}
        found = annotate_case(bag, annotation, **options)
        if case.label not in ("", "0") and not found.share.any():
            nothing = "the case is positive, but its annotation marks none of its instances; it is empty, of another "
            nothing += "case, or drawn outside the tissue: correct it, or leave its cell empty"
            warnings = [*found.about.get("warnings", ()), nothing]
            found = replace(found, about={**found.about, "warnings": warnings})
        return found


@dataclass(frozen=True)
class _Preview:
    """One line of a dry run. `wanted_um` and `used_um` are the width of a tile asked for and as rounded to pixels.

    positives  instances that the annotation marks; None: there is none
    """

    id: str
    status: str
    instances: int = 0
    mpp_level0: float | None = None
    wanted_um: float | None = None
    used_um: float | None = None
    positives: int | None = None
    problem: str | None = None
    warnings: tuple[str, ...] = ()


def preflight(job: PrepareJob) -> _Preview:
    """Open the case, choose its instances and read its annotation, without encoding; `problem` says why it fails."""
    id_ = job.case.id
    try:
        maker = _CaseMaker(job)
        status = "to do" if maker.finished() is None else "done"
        if job.recipe.kind in SCANS:
            volume = maker.open_volume()
            patches = maker.select_patches(volume)
            coords = np.arange(len(volume), dtype=np.int64)[:, None] if patches is None else patches.coords
            line = _Preview(id_, status, len(coords))
            if not len(coords):
                nothing = f"{job.case.source}: no patch holds enough of the body; adjust --foreground, or patch.share"
                return replace(line, status="no tissue", problem=nothing)
            return maker.looked_at(line, coords, volume.frame if patches is None else patches.lattice.frame, {})
        with maker.open_slide() as slide:
            chosen = maker.select(slide)
            count, width = len(chosen.coords), chosen.facts.get("tile_um", {})
            line = _Preview(id_, status, count, slide.mpp, width.get("requested"), width.get("used"))
            line = replace(line, warnings=tuple(chosen.facts.get("warnings", ())))
            if not count:
                nothing = f"{job.case.source}: no tissue found; adjust the tissue settings, or give a mask"
                return replace(line, status="no tissue", problem=nothing)
            return maker.looked_at(line, chosen.coords, chosen.frame, _slide_facts(slide, chosen, 1))
    except DataError as problem:
        return _Preview(id_, "fails", problem=str(problem))
