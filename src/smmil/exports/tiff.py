"""A heat map of a slide as tiled TIFF of float32, as ASAP, QuPath, ImageJ and Python open it beside the slide."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import MissingExtra
from smmil.exports.case import Case
from smmil.exports.painting import extent, paint, reduced_shape, reduction
from smmil.exports.places import SlideFacts, boxes, slide_facts
from smmil.files import replacing

TILE = 512
_LOWEST, _HIGHEST, _NO_DATA = 340, 341, 42113  # SMinSampleValue and SMaxSampleValue, which ASAP reads; GDAL_NODATA


def write_tiff(case: Case, path: Path) -> None:
    """The whole slide, bounds not cut off, one map pixel per 2^k level-0 pixels; nan where there is no instance.

    ASAP lays a map over a slide whose sides are a power of two larger. See `painting.reduction` for the choice of k.
    Smaller levels follow, halved until they fit into one tile.
    """
    try:
        import tifffile
    except ModuleNotFoundError:
        raise MissingExtra("tifffile", "slides", "writing TIFF") from None
    case.need_slide("a TIFF map")
    facts = slide_facts(case)
    rectangles = boxes(case, facts)
    size = extent(rectangles, facts.size)
    if facts.size is None:
        case.notes.append("the size of the slide is not known: the map ends with the last tile")
    r, exact = reduction(rectangles, size)
    if not exact:
        case.notes.append(f"tile edges were rounded to map pixels of {r} level-0 pixels")
    heat = paint(rectangles / r, case.score, reduced_shape(size, r))
    about = _about(case, facts, size, r, exact)
    with replacing(path) as temporary, tifffile.TiffWriter(temporary) as file:
        for depth, level in enumerate(_levels(heat)):
            tags = _tags(case, facts, r * 2**depth)
            file.write(level, description=about if depth == 0 else None, subfiletype=1 if depth else 0, **tags)


def _levels(heat: np.ndarray) -> list[np.ndarray]:
    levels = [heat]
    while max(levels[-1].shape) > TILE:
        levels.append(_halved(levels[-1]))
    return levels


def _halved(heat: np.ndarray) -> np.ndarray:
    """The mean over 2 × 2 pixels, as far as they are painted."""
    rows, columns = heat.shape
    even = np.pad(heat, ((0, rows % 2), (0, columns % 2)), constant_values=np.nan)
    fours = even.reshape(len(even) // 2, 2, -1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # four pixels without tissue have no mean: nan
        return np.asarray(np.nanmean(fours, axis=(1, 3), dtype=np.float64), np.float32)


def _tags(case: Case, facts: SlideFacts, r: int) -> dict[str, Any]:
    lowest, highest = float(case.score.min()), float(case.score.max())
    tags: dict[str, Any] = {
        "tile": (TILE, TILE),
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


def _about(case: Case, facts: SlideFacts, size: tuple[int, int], r: int, exact: bool) -> str:
    """JSON in ASCII: a description tag takes nothing else."""
    return json.dumps(
        {
            **case.facts,
            "values": "score",
            "level0_size": list(size),
            "level0_pixels_per_pixel": r,
            "exact_edges": exact,
            "bounds": None if facts.bounds is None else list(facts.bounds),
            "um_per_level0_pixel": facts.mpp,
        }
    )
