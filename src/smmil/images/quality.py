"""Physical facts of an image, measured on its pixels: sharpness, compression, stain, ink; noise and density of CT.

Features of an encoder differ so much from tissue to tissue that light blur or compression drowns in them. Pixels tell:
each fact here hardly depends on what is shown. Nothing is learned, and no model sees them; the drift alarm does.

sharpness      mean second difference between neighbours against that between pixels two apart, logarithm
blocks         how much larger steps are at every eighth pixel than beside it, in mean steps; the phase is searched, so
               tiles need not lie on the grid of JPEG; `colour_blocks` the same of blue against the rest
haematoxylin, eosin  amounts that 95 % of the tissue stays below, by fixed directions of colour, logarithm
planarity      variance of the colours off the plane of two stains against that along the main one, logarithm
ink            share of dark pixels that are bluer or greener than haematoxylin; black ink looks like dark nuclei
noise          deviation in Hounsfield units inside soft tissue, logarithm
density, contrast  median of soft tissue in Hounsfield units, and logarithm of its interquartile range

A fact that a picture cannot tell (sharpness of an empty one, stain without tissue) is nan.
"""

import math

import numpy as np

TILE_FACTS = ("sharpness", "blocks", "colour_blocks", "haematoxylin", "eosin", "planarity", "ink")
SLICE_FACTS = ("sharpness", "noise", "density", "contrast")

_STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])  # Ruifrok and Johnston (2001)
_AMOUNTS = np.linalg.inv(_STAINS).T[:2].astype(np.float32)  # of haematoxylin and eosin in three densities
_DENSITY = -np.log((np.arange(256) + 1) / 256).astype(np.float32)  # optical, of each value of a byte
_GRID = 8  # pixels between the block borders of JPEG
_TISSUE = 0.45  # sum of the densities of the three colours; glass has less
_DARK = 1.2  # the same: from here on a colour can be told
_LEAST_TISSUE = 1 / 16  # share of a tile
_LEAST_STEP = 2.0  # quarters of a grey value: below, there is nothing to measure
_LEAST_AMOUNT = 0.02
_QUANTIZED = 1e-5  # variance of densities that rounding to bytes makes
_SOFT = (-20.0, 100.0)  # Hounsfield units
_SHOWN = (-100.0, 200.0)  # values beyond count as these: edges of bone and air say little about sharpness
_LEAST_SOFT = 1 / 100  # share of a slice
_PIXELS, _VOXELS = 4096, 16384  # that suffice for quantiles


def tile_facts(tile: np.ndarray) -> np.ndarray:
    """`TILE_FACTS` of a picture (rows, columns, 3) of bytes, float32."""
    planes = np.ascontiguousarray(tile.transpose(2, 0, 1))
    red, green, blue = planes.astype(np.int16)
    light = red + 2 * green + blue
    colour = 4 * blue - light
    return np.array([_sharpness(light), _blocks(light), _blocks(colour), *_stains(planes)], dtype=np.float32)


def slice_facts(hu: np.ndarray) -> np.ndarray:
    """`SLICE_FACTS` of a slice (rows, columns) in Hounsfield units, float32."""
    hu = np.asarray(hu, dtype=np.float32)
    sharpness = _sharpness(np.rint(8 * np.clip(hu, *_SHOWN)).astype(np.int16))
    soft = (hu > _SOFT[0]) & (hu < _SOFT[1])
    if soft.sum() < max(_LEAST_SOFT * hu.size, 4) or min(hu.shape) < 2:
        return np.array([sharpness, np.nan, np.nan, np.nan], dtype=np.float32)
    inside = hu[soft]
    inside = inside[:: 1 + len(inside) // _VOXELS]
    low, middle, high = np.quantile(inside, (0.25, 0.5, 0.75))
    corners = hu[1:, 1:] - hu[1:, :-1] - hu[:-1, 1:] + hu[:-1, :-1]  # twice as noisy as a voxel
    corners = corners[soft[1:, 1:]]
    noise = np.median(np.abs(corners[:: 1 + len(corners) // _VOXELS])) / 0.6745 / 2 if len(corners) else np.nan
    return np.array([sharpness, np.log(noise + 0.1), middle, np.log(high - low + 0.1)], dtype=np.float32)


def _sharpness(values: np.ndarray) -> float:
    """Of whole numbers; sums are exact, so a turned or mirrored picture is exactly as sharp."""
    if min(values.shape) < 5:
        return np.nan
    near, far = (_second_difference(values, apart) for apart in (1, 2))
    return float(np.log(max(near, 1e-3) / far)) if far >= _LEAST_STEP else np.nan


def _second_difference(values: np.ndarray, apart: int) -> float:
    total = count = 0
    for v in (values, values.T):
        found = np.abs(v[2 * apart :] - 2 * v[apart:-apart] + v[: -2 * apart])
        total, count = total + int(found.sum(dtype=np.int64)), count + found.size
    return total / count


def _blocks(values: np.ndarray) -> float:
    """Excess of the steps across the likeliest grid of eight pixels, in mean steps; both directions alike."""
    if min(values.shape) < 3 * _GRID:
        return np.nan
    # along each direction: the sum of all steps between two lines of pixels, for each pair of lines
    steps = [
        np.abs(np.diff(values, axis=axis)).sum(1 - axis, dtype=np.int64) / values.shape[1 - axis] for axis in (0, 1)
    ]
    mean = (steps[0].mean() + steps[1].mean()) / 2
    if mean < _LEAST_STEP:
        return np.nan
    return float(np.mean([_grid_excess(one) for one in steps]) / mean)


def _grid_excess(steps: np.ndarray) -> float:
    """Mean excess of every eighth step over its neighbours, at the phase where it is largest."""
    excess = steps[1:-1] - (steps[:-2] + steps[2:]) / 2
    phase = np.arange(len(excess)) % _GRID
    return float((np.bincount(phase, excess) / np.bincount(phase)).max())


def _stains(planes: np.ndarray) -> tuple[float, float, float, float]:
    """Haematoxylin, eosin, planarity and ink of (3, rows, columns) bytes."""
    every = max(1, round((planes[0].size / _PIXELS) ** 0.5))
    density = _DENSITY[planes[:, ::every, ::every].reshape(3, -1)]
    red, green, _ = density
    total = density.sum(0)
    ink = np.count_nonzero((total > _DARK) & (red > green + 0.05)) / len(total)
    tissue = density[:, total > _TISSUE]
    n = tissue.shape[1]
    if n < max(_LEAST_TISSUE * len(total), 4):
        return np.nan, np.nan, np.nan, ink
    place = int(0.95 * (n - 1))
    most = np.partition(_AMOUNTS @ tissue, place, axis=1)[:, place]
    haematoxylin, eosin = np.log(np.maximum(most, _LEAST_AMOUNT)).tolist()
    moved = tissue - tissue.mean(1, keepdims=True)
    least, _, main = np.linalg.eigvalsh((moved @ moved.T).astype(np.float64) / n).tolist()
    planarity = math.log((max(least, 0.0) + _QUANTIZED) / main) if main > 100 * _QUANTIZED else np.nan
    return haematoxylin, eosin, planarity, ink
