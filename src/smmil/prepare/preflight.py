"""What a run would do, without doing it: which cases, at which resolution, how many instances."""

from dataclasses import dataclass

from smmil.errors import DataError
from smmil.images import open_slide
from smmil.images.volume import open_volume
from smmil.prepare.case import finished, select, source_digest
from smmil.prepare.job import Job
from smmil.prepare.points import read_points


@dataclass(frozen=True)
class Preview:
    """One line of a dry run. `wanted_um` and `used_um` are the width of a tile asked for and as rounded to pixels."""

    id: str
    status: str
    instances: int = 0
    mpp_level0: float | None = None
    wanted_um: float | None = None
    used_um: float | None = None


def preflight(job: Job) -> Preview:
    """Open the case and choose its instances, without encoding them; what fails says why in `status`."""
    try:
        points = None if job.points is None else read_points(job.points, job.case.source.stem, job.positive)
        status = "to do" if finished(job, source_digest(job, points)) is None else "done"
        if job.recipe.kind == "ct":
            return Preview(job.case.id, status, len(open_volume(job.case.source)))
        with open_slide(job.case.source, job.case.mpp, job.recipe.reader) as slide:
            chosen = select(job, slide, points)
            status = status if len(chosen.coords) else "no tissue"
            width = chosen.facts.get("tile_um", {})
            return Preview(
                job.case.id, status, len(chosen.coords), slide.mpp, width.get("requested"), width.get("used")
            )
    except DataError as problem:
        return Preview(job.case.id, f"fails: {problem}")
