"""Random shapes on a lattice: tissue, lesions inside it, and cells that stand alone."""

import heapq

import numpy as np
from scipy.ndimage import binary_dilation, gaussian_filter

_AROUND = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]


def grow(height: np.ndarray, allowed: np.ndarray, start: tuple[int, int], count: int) -> np.ndarray:
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


def tissue(rng: np.random.Generator, count: int) -> np.ndarray:
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
    return grow(height, np.ones(shape, dtype=bool), _highest(height), count)


def _highest(height: np.ndarray) -> tuple[int, int]:
    y, x = np.unravel_index(int(np.argmax(height)), height.shape)
    return int(y), int(x)


def blobs(rng: np.random.Generator, mask: np.ndarray, count: int) -> np.ndarray:
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
    return grow(0.4 * _field(rng, free.shape, 1.5) - far, free, (int(y), int(x)), count)


def lonely(rng: np.random.Generator, mask: np.ndarray, sick: np.ndarray, count: int) -> np.ndarray:
    """Mask of up to `count` cells of the tissue, none beside a lesion or beside another of them."""
    chosen = np.zeros_like(mask)
    free = mask & ~binary_dilation(sick, np.ones((3, 3), dtype=bool))
    for y, x in rng.permutation(np.argwhere(free)):
        if chosen.sum() >= count:
            break
        if not chosen[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].any():
            chosen[y, x] = True
    return chosen
