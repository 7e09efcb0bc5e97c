"""One task: the pixels of one case become one bag file and one preview, or nothing at all."""

from typing import Any

import torch

from smmil.encoders import Encoder
from smmil.errors import DataError
from smmil.files import digest
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.frame import Frame
from smmil.images import Slide, open_slide
from smmil.images.volume import open_volume
from smmil.prepare.encode import Encoded, encode_slices, encode_tiles, encoder_facts, encoder_of
from smmil.prepare.fingerprint import fingerprint
from smmil.prepare.job import Job, Prepared
from smmil.prepare.labels import write_instance_labels
from smmil.prepare.points import Points, read_points
from smmil.prepare.preview import scan_preview, slide_preview
from smmil.prepare.selection import Selection, select_points, select_tiles, slide_facts
from smmil.prepare.slices import slice_pictures
from smmil.runtime import versions


def prepare_case(job: Job) -> Prepared:
    """Prepare one case, unless its bag is there, sound, and made from the same source with the same recipe."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    points = read_points(job.points, job.case.source.stem, job.positive) if job.points is not None else None
    source = source_digest(job, points)
    facts, status = finished(job, source), "kept"
    if facts is None:
        facts, status = _make(job, points, source), "written"
    if facts is None:
        return Prepared("no tissue")
    return Prepared(
        status,
        facts["instances"],
        len(facts["damaged"]),
        facts.get("mpp_level0"),
        facts.get("mpp_read"),
        write_instance_labels(job, points, facts["damaged"]),
        tuple(facts["notes"]),
    )


def source_digest(job: Job, points: Points | None) -> str:
    """Fingerprint of everything the bag is made from: pixels, pixel size, a given mask, points."""
    mask = "" if job.case.tissue is None else fingerprint(job.case.tissue)
    return digest(
        fingerprint(job.case.source), repr(job.case.mpp), mask, points.fingerprint() if points is not None else ""
    )[:32]


def finished(job: Job, source: str) -> dict[str, Any] | None:
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


def _make(job: Job, points: Points | None, source: str) -> dict[str, Any] | None:
    """Read, encode, draw, and write the bag last: a bag that is there has its preview. None when there is no tissue."""
    encoder = encoder_of(job.recipe.encoder, job.weights, job.device, job.recipe.autocast, job.recipe.encoder_pixels)
    if job.recipe.kind == "ct":
        return _make_scan(job, encoder, source)
    with open_slide(job.case.source, job.case.mpp, job.recipe.reader) as slide:
        selection = select(job, slide, points)
        if not len(selection.coords):
            slide_preview(job.preview_path, slide, selection, [])
            job.bag_path.unlink(missing_ok=True)
            return None
        encoded = encode_tiles(slide, selection.coords, selection.footprint, job.recipe, encoder)
        slide_preview(job.preview_path, slide, selection, encoded.damaged)
        facts = slide_facts(slide, selection, job.recipe.pixels or encoder.pixels)
    return _write(job, encoded, selection.frame, selection.graph, facts | _origin(job, encoder, source))


def select(job: Job, slide: Slide, points: Points | None) -> Selection:
    """The instances of a slide by the recipe's kind."""
    if points is not None:
        return select_points(slide, job.recipe, points)
    return select_tiles(slide, job.recipe, job.case.tissue)


def _make_scan(job: Job, encoder: Encoder, source: str) -> dict[str, Any]:
    volume = open_volume(job.case.source)
    encoded = encode_slices(slice_pictures(volume, job.recipe), encoder)
    scan_preview(job.preview_path, volume, job.recipe)
    facts = {
        "notes": list(volume.notes),
        "shape": list(volume.shape),
        "spacing_mm": list(volume.spacing_mm),
        "orientation": volume.orientation,
        "positions_mm": volume.positions_mm.tolist(),
    }
    return _write(job, encoded, volume.frame, {"kind": "chain"}, facts | _origin(job, encoder, source))


def _origin(job: Job, encoder: Encoder, source: str) -> dict[str, Any]:
    facts = {"recipe": job.recipe_digest, "settings": job.recipe.settings(), "source": source, "versions": versions()}
    return facts | encoder_facts(encoder)


def _write(job: Job, encoded: Encoded, frame: Frame, rule: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    facts |= {"instances": len(encoded.coords), "damaged": [list(place) for place in encoded.damaged]}
    write_bag(job.bag_path, encoded.bag(job.case.id, frame), graph=rule, provenance=facts)
    return facts
