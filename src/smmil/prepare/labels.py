"""Instance labels of a prepared case, in a file beside its bag: features are facts, labels are opinions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smmil.data.instance_labels import read_instance_labels
from smmil.errors import DataError
from smmil.files import replacing
from smmil.formats import read_bag, read_provenance
from smmil.images.volume import open_volume
from smmil.prepare.annotate import annotate_case, negative_case, write_labels
from smmil.prepare.job import Job
from smmil.prepare.points import Points


def write_instance_labels(job: Job, points: Points | None, damaged: list[list[float]]) -> bool:
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


def _copy(job: Job, given: Path) -> None:
    """Labels that are known instance by instance, such as those of the slices of a scan from foot to head."""
    labels, n = read_instance_labels(given), read_bag(job.bag_path).n
    if len(labels) != n:
        raise DataError(f"{given}: {len(labels):,} labels, but {job.case.id} has {n:,} instances; give one for each")
    _write(job.labels_path, labels.tolist())


def _write(path: Path, labels: Sequence[int]) -> None:
    with replacing(path) as temporary:
        np.savetxt(temporary, labels, fmt="%d", header="label", comments="")


def _annotate(job: Job, annotation: Path) -> None:
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
