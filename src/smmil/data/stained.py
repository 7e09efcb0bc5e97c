"""Pictures that look like stained tissue, with lesions that differ in texture and hardly in colour.

Drawn in optical densities of two dyes, as light passes through a section: eosin in fibres, haematoxylin in nuclei.
Normal tissue has small round nuclei of one size; a lesion has fewer, larger, uneven ones that cover the same area, so
that the mean colour of a patch says next to nothing and the shape of its nuclei says all. Crowds of very small nuclei
(lymphocytes) lie in all tissue, as something that catches the eye and means nothing.

How different the nuclei are was chosen once, so that ABMIL, which ignores neighbours, learns something from some fifty
slides (with radius 5 it was never wrong); no model that uses neighbours was run on it before it was fixed.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter, zoom

HAEMATOXYLIN, EOSIN = np.array([0.65, 0.70, 0.29]), np.array([0.07, 0.99, 0.11])
_ANGLES, _GRAINS = 8, 3


class Nuclei(NamedTuple):
    """A kind of nucleus: mean radius in pixels, its spread, how long they are, and the share of the area they cover."""

    radius: float
    spread: float
    length: float
    cover: float


NORMAL, LESION, CROWD = Nuclei(3.2, 0.15, 1.2, 0.16), Nuclei(3.9, 0.25, 1.35, 0.16), Nuclei(2.1, 0.1, 1.1, 0.34)


def stained_picture(
    rng: np.random.Generator, tissue: np.ndarray, lesion: np.ndarray, crowds: np.ndarray, cell: int
) -> np.ndarray:
    """An RGB picture (rows · cell, columns · cell, 3) of a lattice: where tissue, a lesion and crowds of cells are.

    The masks (rows, columns) are drawn with soft, uneven borders; strength and tint of both dyes vary from one picture
    to the next.
    """
    shape = (tissue.shape[0] * cell, tissue.shape[1] * cell)
    inside, sick, crowded = (_soft(rng, mask, cell) for mask in (tissue, lesion, crowds))
    blue = np.zeros(shape, dtype=np.float32)
    for kind, region in (
        (NORMAL, inside & ~sick & ~crowded),
        (LESION, inside & sick),
        (CROWD, inside & ~sick & crowded),
    ):
        _scatter(rng, blue, kind, region)
    pink = inside * (np.float32(0.42) + np.float32(0.16) * _fibres(rng, shape)) * (1 - blue.clip(0, 1) / 2)
    strength = rng.uniform((0.85, 0.8), (1.15, 1.2)).astype(np.float32)
    return _developed(rng, blue * strength[0], pink * strength[1])


def _soft(rng: np.random.Generator, mask: np.ndarray, cell: int) -> np.ndarray:
    """The mask at full size, its corners rounded and its border roughened."""
    step = 8
    coarse = np.kron(mask.astype(np.float32), np.ones((cell // step, cell // step), dtype=np.float32))
    rough = gaussian_filter(rng.standard_normal(coarse.shape, dtype=np.float32), 2.0)
    field = gaussian_filter(coarse, 0.3 * cell / step) + 0.4 * rough
    return zoom(field, step, order=1) > 0.5


def _fibres(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Wavy streaks of unit spread, coarser along one direction than across it."""
    small = tuple(-(-side // 2) for side in shape)
    noise = gaussian_filter(rng.standard_normal(small, dtype=np.float32), (1.0, 7.0))
    noise += gaussian_filter(rng.standard_normal(small, dtype=np.float32), (5.0, 1.5))
    return zoom(noise / noise.std(), 2, order=1)[: shape[0], : shape[1]]


def _scatter(rng: np.random.Generator, canvas: np.ndarray, kind: Nuclei, region: np.ndarray) -> None:
    """Draw nuclei of one kind, as many as cover their share of the region, each inside it and none over another."""
    radius = np.maximum(1.2, kind.radius * (1 + kind.spread * rng.standard_normal(_number(kind, region))))
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


def _number(kind: Nuclei, region: np.ndarray) -> int:
    """Nuclei that cover the wanted share when thrown at random: they overlap, so the share of misses is e^-(n a)."""
    area = np.pi * kind.radius**2 * (1 + kind.spread**2)
    return round(-np.log(1 - kind.cover) * float(region.sum()) / area)


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


def _developed(rng: np.random.Generator, blue: np.ndarray, pink: np.ndarray) -> np.ndarray:
    """Light that comes through both dyes, as 8-bit RGB, with a little noise of the camera."""
    tint = 1 + 0.06 * rng.standard_normal(3)
    density = [
        blue * np.float32(h * tint[c]) + pink * np.float32(e * tint[c])
        for c, (h, e) in enumerate(zip(HAEMATOXYLIN, EOSIN, strict=True))
    ]
    noise = 2 * rng.standard_normal(blue.shape, dtype=np.float32)
    return np.stack([np.clip(243 * np.exp(-dye) + noise, 0, 255).astype(np.uint8) for dye in density], -1)


def boxes_of(mask: np.ndarray, cell: int) -> list[tuple[int, int, int, int]]:
    """The cells of a mask as boxes x, y, width, height in pixels: one per run of a row."""
    boxes: list[tuple[int, int, int, int]] = []
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
        boxes += [(a * cell, row * cell, (b - a) * cell, cell) for a, b in edges.reshape(-1, 2).tolist()]
    return boxes
