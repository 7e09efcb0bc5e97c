"""Synthetic stained slides as real pyramidal files, with annotations and a table of labels.

Drawn in optical densities of two dyes, as light passes through a section: eosin in fibres, haematoxylin in nuclei.
Normal tissue has small round nuclei of one size; a lesion has fewer, larger, uneven ones that cover the same area, so
that the shape of its nuclei, and not the mean colour of a patch, carries the label. Crowds of very small nuclei
(lymphocytes) lie in all tissue as distractors.

How different the nuclei are was chosen once, so that ABMIL, which ignores neighbours, learns something from some fifty
slides (with radius 5 it was never wrong); no model that uses neighbours was run on it before it was fixed.
"""

import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.ndimage import binary_dilation, gaussian_filter

from smmil.errors import ConfigError, DataError
from smmil.executors import run_tasks
from smmil.files import read_json, replacing, write_json
from smmil.synthetic.slide_files import write_pyramid

_AROUND = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
_HAEMATOXYLIN, _EOSIN = np.array([0.65, 0.70, 0.29]), np.array([0.07, 0.99, 0.11])
_ANGLES, _GRAINS = 8, 3
CELL, MPP = 96, 1.0


def _rng(seed: int, index: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([seed, index]))


def _between(rng: np.random.Generator, limits: tuple[int, int]) -> int:
    return int(rng.integers(limits[0], limits[1] + 1))


def _is_positive(index: int, share: float) -> int:
    """1 for an even `share` of the numbers 0, 1, 2, …, whichever number is the last."""
    return int(np.floor((index + 1) * share + 1e-9) - np.floor(index * share + 1e-9))


def _save_labels(path: Path, labels: np.ndarray) -> None:
    with replacing(path) as temporary:
        np.save(temporary, labels.astype(np.int8), allow_pickle=False)


def _grow(height: np.ndarray, allowed: np.ndarray, start: tuple[int, int], count: int) -> np.ndarray:
    """Mask of `count` connected cells: from `start`, always the highest free cell at the border is taken next.

    On a smooth field this is what a threshold gives, with the number of cells chosen instead of the level. Fewer cells
    come back only when the allowed region around the start is smaller.
    """
    taken, seen = np.zeros_like(allowed), ~allowed
    seen[start] = True
    border = [(-height[start], start)]
    while border and count > 0:
        _, (y, x) = heapq.heappop(border)
        taken[y, x] = True
        count -= 1
        for dy, dx in _AROUND:
            place = (y + dy, x + dx)
            if 0 <= place[0] < seen.shape[0] and 0 <= place[1] < seen.shape[1] and not seen[place]:
                seen[place] = True
                heapq.heappush(border, (-height[place], place))
    return taken


def _field(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    smooth = gaussian_filter(rng.standard_normal(shape), sigma, mode="reflect")
    return smooth / (smooth.std() + 1e-12)


def _tissue(rng: np.random.Generator, count: int) -> np.ndarray:
    """Mask with exactly `count` cells in one piece or, in a third of the cases, in two pieces that do not touch."""
    side = int(np.ceil(1.6 * np.sqrt(count))) + 4
    parted = count >= 40 and rng.random() < 1 / 3
    first = _piece(rng, (side, side), round(count * rng.uniform(0.55, 0.8)) if parted else count)
    rest = count - int(first.sum())
    if rest == 0:
        return first
    second = _piece(rng, (side, side), rest)
    return np.concatenate([first, np.zeros((side, 2), dtype=bool), second], axis=1)


def _piece(rng: np.random.Generator, shape: tuple[int, int], count: int) -> np.ndarray:
    """One connected piece around the middle: a dome with a rough outline, cut where `count` cells are left."""
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    far = ((rows / (shape[0] - 1) - 0.5) ** 2 + (columns / (shape[1] - 1) - 0.5) ** 2) * 12.0
    height = _field(rng, shape, max(1.0, shape[0] / 8)) - far
    y, x = divmod(int(height.argmax()), shape[1])
    return _grow(height, np.ones(shape, dtype=bool), (y, x), count)


def _blobs(rng: np.random.Generator, mask: np.ndarray, count: int) -> np.ndarray:
    """Mask of `count` cells of the tissue in one lesion, or two when there are at least eight cells."""
    pieces = 2 if count >= 8 and rng.random() < 0.3 else 1
    sizes = [count] if pieces == 1 else [count - count // 3, count // 3]
    sick = np.zeros_like(mask)
    for size in sizes:
        sick |= _blob(rng, mask & ~sick, size)
    return sick


def _blob(rng: np.random.Generator, free: np.ndarray, count: int) -> np.ndarray:
    """A connected round lesion with an uneven border, started at a random free cell."""
    cells = np.argwhere(free)
    y, x = cells[rng.integers(len(cells))]
    rows, columns = np.ogrid[: free.shape[0], : free.shape[1]]
    far = np.hypot(rows - y, columns - x) / max(1.0, np.sqrt(count))
    return _grow(0.4 * _field(rng, free.shape, 1.5) - far, free, (int(y), int(x)), count)


def _isolated_cells(rng: np.random.Generator, mask: np.ndarray, sick: np.ndarray, count: int) -> np.ndarray:
    """Mask of up to `count` cells of the tissue, none adjacent to a lesion or to another of them."""
    chosen = np.zeros_like(mask)
    free = mask & ~binary_dilation(sick, np.ones((3, 3), dtype=bool))
    for y, x in rng.permutation(np.argwhere(free)):
        if chosen.sum() >= count:
            break
        if not chosen[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].any():
            chosen[y, x] = True
    return chosen


class _Nuclei(NamedTuple):
    """A kind of nucleus: mean radius in pixels, its spread, how long they are, and the share of the area they cover."""

    radius: float
    spread: float
    length: float
    cover: float

    def number(self, region: np.ndarray) -> int:
        """Nuclei that cover the wanted share when thrown at random: they overlap, so misses are e^-(n a)."""
        area = np.pi * self.radius**2 * (1 + self.spread**2)
        return round(-np.log(1 - self.cover) * float(region.sum()) / area)


_NORMAL, _LESION, _CROWD = _Nuclei(3.2, 0.15, 1.2, 0.16), _Nuclei(3.9, 0.25, 1.35, 0.16), _Nuclei(2.1, 0.1, 1.1, 0.34)


def _stained_picture(
    rng: np.random.Generator, tissue: np.ndarray, lesion: np.ndarray, crowds: np.ndarray, cell: int
) -> np.ndarray:
    """An RGB picture (rows · cell, columns · cell, 3) of a lattice: where tissue, a lesion and crowds of cells are.

    The masks (rows, columns) are drawn with soft, uneven borders; strength and tint of both dyes vary from one picture
    to the next.
    """
    shape = (tissue.shape[0] * cell, tissue.shape[1] * cell)
    inside, sick, crowded = (_soft(rng, mask, cell) for mask in (tissue, lesion, crowds))
    blue = np.zeros(shape, dtype=np.float32)
    healthy = inside & ~sick
    for kind, region in ((_NORMAL, healthy & ~crowded), (_LESION, inside & sick), (_CROWD, healthy & crowded)):
        _scatter(rng, blue, kind, region)
    pink = inside * (np.float32(0.42) + np.float32(0.16) * _fibres(rng, shape)) * (1 - blue.clip(0, 1) / 2)
    strength = rng.uniform((0.85, 0.8), (1.15, 1.2)).astype(np.float32)
    return _render_rgb(rng, blue * strength[0], pink * strength[1])


def _soft(rng: np.random.Generator, mask: np.ndarray, cell: int) -> np.ndarray:
    """The mask at full size, its corners rounded and its border roughened."""
    step = 8
    coarse = np.kron(mask.astype(np.float32), np.ones((cell // step, cell // step), dtype=np.float32))
    rough = gaussian_filter(rng.standard_normal(coarse.shape, dtype=np.float32), 2.0)
    field = gaussian_filter(coarse, 0.3 * cell / step) + 0.4 * rough
    return _enlarged(field, step) > 0.5


def _enlarged(field: np.ndarray, factor: int) -> np.ndarray:
    """Linear interpolation between the first and the last value along both axes."""
    for axis in (0, 1):
        at = np.linspace(0, field.shape[axis] - 1, field.shape[axis] * factor)
        low = np.minimum(at.astype(int), max(field.shape[axis] - 2, 0))
        share = np.expand_dims((at - low).astype(np.float32), 1 - axis)
        first, second = field.take(low, axis), field.take(np.minimum(low + 1, field.shape[axis] - 1), axis)
        field = first + share * (second - first)
    return field


def _fibres(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Wavy streaks of unit spread, coarser along one direction than across it."""
    small = tuple(-(-side // 2) for side in shape)
    noise = gaussian_filter(rng.standard_normal(small, dtype=np.float32), (1.0, 7.0))
    noise += gaussian_filter(rng.standard_normal(small, dtype=np.float32), (5.0, 1.5))
    return _enlarged(noise / noise.std(), 2)[: shape[0], : shape[1]]


def _scatter(rng: np.random.Generator, canvas: np.ndarray, kind: _Nuclei, region: np.ndarray) -> None:
    """Draw nuclei of one kind, as many as cover their share of the region, each inside it and none over another."""
    radius = np.maximum(1.2, kind.radius * (1 + kind.spread * rng.standard_normal(kind.number(region))))
    places = np.flatnonzero(region)
    if not len(places):
        return
    chosen = np.stack(np.unravel_index(places[rng.integers(len(places), size=len(radius))], region.shape), 1)
    looks = rng.integers((_ANGLES, _GRAINS), size=(len(radius), 2))
    for (y, x), r, look in zip(chosen.tolist(), (radius * 2).round().astype(int).tolist(), looks.tolist(), strict=True):
        stamp = _nucleus(r, kind.length, *look)
        top, left = y - stamp.shape[0] // 2, x - stamp.shape[1] // 2
        part = canvas[max(top, 0) : top + stamp.shape[0], max(left, 0) : left + stamp.shape[1]]
        if part.size:
            cut = stamp[max(-top, 0) : max(-top, 0) + part.shape[0], max(-left, 0) : max(-left, 0) + part.shape[1]]
            np.maximum(part, cut, out=part)


@lru_cache(maxsize=4096)
def _nucleus(half_radii: int, length: float, angle: int, grain: int) -> np.ndarray:
    """Density of one nucleus: an ellipse with a soft edge and grainy inside."""
    r = half_radii / 2
    side = int(np.ceil(r * length)) + 2
    y, x = np.mgrid[-side : side + 1, -side : side + 1]
    turn = np.pi * angle / _ANGLES
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    far = np.hypot(along / length**0.5, across * length**0.5) - r
    noise = np.random.default_rng(half_radii * 64 + angle * 8 + grain).standard_normal(far.shape)
    inside = 1 / (1 + np.exp(2.5 * far))
    return (inside * (0.95 + 0.25 * gaussian_filter(noise, 0.8))).astype(np.float32)


def _render_rgb(rng: np.random.Generator, blue: np.ndarray, pink: np.ndarray) -> np.ndarray:
    """8-bit RGB image of the densities of both stains (Beer-Lambert law), with noise of the camera."""
    tint = 1 + 0.06 * rng.standard_normal(3)
    density = [
        blue * np.float32(h * tint[c]) + pink * np.float32(e * tint[c])
        for c, (h, e) in enumerate(zip(_HAEMATOXYLIN, _EOSIN, strict=True))
    ]
    noise = 2 * rng.standard_normal(blue.shape, dtype=np.float32)
    return np.stack([np.clip(243 * np.exp(-dye) + noise, 0, 255).astype(np.uint8) for dye in density], -1)


def _boxes_of(mask: np.ndarray, cell: int) -> list[tuple[int, int, int, int]]:
    """The cells of a mask as boxes x, y, width, height in pixels: one per run of a row."""
    boxes: list[tuple[int, int, int, int]] = []
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
        boxes += [(a * cell, row * cell, (b - a) * cell, cell) for a, b in edges.reshape(-1, 2).tolist()]
    return boxes


@dataclass(frozen=True)
class _Slide:
    """Parameters of one slide to draw."""

    folder: Path
    id: str
    seed: tuple[int, int]
    patches: int
    lesion: int

    @property
    def path(self) -> Path:
        return self.folder / "slides" / f"{self.id}.svs"

    @property
    def annotation(self) -> str:
        return f"annotations/{self.id}.csv" if self.lesion else ""


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
    _bind_folder(
        folder, {"n": n, "seed": seed, "patches": patches, "lesion": lesion, "positive": positive, "cell": CELL}
    )
    missing = [job for job in jobs if not job.path.exists()]
    done = iter(range(1, len(missing) + 1))
    executor = "processes" if workers > 1 and len(missing) > 1 else "serial"
    tell = None if progress is None else (lambda _outcome: progress(next(done), len(missing)))
    for outcome in run_tasks(_draw, missing, executor, workers, tell):
        if not outcome.ok:
            raise DataError(f"{outcome.task.path}: cannot be drawn ({outcome.error})")
    _write_csv(folder / "labels.csv", [(job.id, int(job.lesion > 0), job.annotation) for job in jobs])
    return folder / "labels.csv"


def _bind_folder(folder: Path, made: dict[str, Any]) -> None:
    """Record the options of the set in its folder; refuse a folder with another set."""
    path, wanted = folder / "stained.json", json.loads(json.dumps(made))
    if path.exists() and read_json(path) != wanted:
        raise DataError(f"{folder}: holds another set of synthetic slides; use another folder or remove it")
    write_json(path, wanted)


def _draw(job: _Slide) -> None:
    """Draw one slide; its pixels are written last, so a slide that is there has its annotation."""
    rng = np.random.default_rng(job.seed)
    mask = _tissue(rng, job.patches)
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    mask = np.pad(mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], 1)  # one empty cell around the tissue
    sick = _blobs(rng, mask, job.lesion) if job.lesion else np.zeros_like(mask)
    crowds = _isolated_cells(rng, mask, sick, job.patches // 20)
    if job.lesion:
        boxes = [(*box, 1) for box in _boxes_of(sick, CELL)]
        _write_csv(job.folder / job.annotation, boxes, ("x", "y", "width", "height", "class"))
    picture = _stained_picture(rng, mask, sick, crowds, CELL)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    write_pyramid(job.path, picture, mpp=MPP)


def _write_csv(
    path: Path, rows: list[tuple[Any, ...]], columns: tuple[str, ...] = ("id", "label", "annotation")
) -> None:
    with replacing(path) as temporary:
        pd.DataFrame(rows, columns=list(columns)).to_csv(temporary, index=False)
