"""A set of synthetic slides as real files: pyramids a slide reader opens, annotations of lesions, a table of labels."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smmil.data.shapes import blobs, lonely, tissue
from smmil.data.stained import boxes_of, stained_picture
from smmil.errors import ConfigError, DataError
from smmil.executors import run_tasks
from smmil.files import read_json, replacing, write_json
from smmil.images import write_pyramid

CELL, MPP = 96, 1.0


@dataclass(frozen=True)
class _Slide:
    """One slide to draw: everything follows from these numbers."""

    folder: Path
    id: str
    seed: tuple[int, int]
    patches: int
    lesion: int


def stained_slides(
    folder: str | Path,
    n: int,
    *,
    seed: int = 0,
    patches: tuple[int, int] = (60, 120),
    lesion: tuple[float, float] = (0.03, 0.15),
    positive: float = 0.5,
    workers: int = 1,
    progress: Callable[[int, int], Any] | None = None,
) -> Path:
    """Write n slides below `folder` and give the path of labels.csv; slides that are there already are kept.

    slides/<id>.svs         pyramids of 1 µm per pixel, in the way Aperio scanners write them
    annotations/<id>.csv    boxes around the lesion, for slides that have one
    labels.csv              id, label, annotation: what `smmil prepare slides --labels labels.csv` takes

    patches  least and most tissue of a slide, in squares of 96 µm
    lesion   least and most share of them that is sick
    The same arguments give the same bytes, whatever the number of workers.
    """
    if n < 1 or not 0 <= positive <= 1:
        raise ConfigError(f"stained_slides: expected n >= 1 and positive in [0, 1], got {n} and {positive}")
    folder = Path(folder)
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) < round(n * positive)).astype(int).tolist()
    counts = rng.integers(patches[0], patches[1], size=n, endpoint=True).tolist()
    shares = rng.uniform(*lesion, size=n).tolist()
    chosen = zip(labels, counts, shares, strict=True)
    jobs = [
        _Slide(folder, f"stained_{i:04d}", (seed, i), count, max(1, round(count * share)) if label else 0)
        for i, (label, count, share) in enumerate(chosen)
    ]
    _claim(folder, {"n": n, "seed": seed, "patches": patches, "lesion": lesion, "positive": positive, "cell": CELL})
    missing = [job for job in jobs if not _path(job).exists()]
    done = iter(range(1, len(missing) + 1))
    executor = "processes" if workers > 1 and len(missing) > 1 else "serial"
    tell = None if progress is None else (lambda _outcome: progress(next(done), len(missing)))
    for outcome in run_tasks(_draw, missing, executor, workers, tell):
        if not outcome.ok:
            raise DataError(f"{_path(outcome.task)}: cannot be drawn ({outcome.error})")
    _write_csv(folder / "labels.csv", [(job.id, int(job.lesion > 0), _annotation(job)) for job in jobs])
    return folder / "labels.csv"


def _claim(folder: Path, made: dict[str, Any]) -> None:
    """One folder, one set: slides of another set with the same names must not be taken for these."""
    path, wanted = folder / "stained.json", json.loads(json.dumps(made))
    if path.exists() and read_json(path) != wanted:
        raise DataError(f"{folder}: holds another set of synthetic slides; use another folder or remove it")
    write_json(path, wanted)


def _path(job: _Slide) -> Path:
    return job.folder / "slides" / f"{job.id}.svs"


def _annotation(job: _Slide) -> str:
    return f"annotations/{job.id}.csv" if job.lesion else ""


def _draw(job: _Slide) -> None:
    """Draw one slide; its pixels are written last, so a slide that is there has its annotation."""
    rng = np.random.default_rng(job.seed)
    mask = _framed(tissue(rng, job.patches))
    sick = blobs(rng, mask, job.lesion) if job.lesion else np.zeros_like(mask)
    crowds = lonely(rng, mask, sick, job.patches // 20)
    if job.lesion:
        rows = [(*box, 1) for box in boxes_of(sick, CELL)]
        _write_csv(job.folder / _annotation(job), rows, ("x", "y", "width", "height", "class"))
    picture = stained_picture(rng, mask, sick, crowds, CELL)
    path = _path(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_pyramid(path, picture, mpp=MPP)


def _framed(mask: np.ndarray) -> np.ndarray:
    """The part of a mask that holds something, with one empty cell around it."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return np.pad(mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], 1)


def _write_csv(
    path: Path, rows: list[tuple[Any, ...]], columns: tuple[str, ...] = ("id", "label", "annotation")
) -> None:
    with replacing(path) as temporary:
        pd.DataFrame(rows, columns=list(columns)).to_csv(temporary, index=False)
