"""Patches of a scan: squares within a slice or boxes of several slices, where there is body; and their features."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy.ndimage import binary_fill_holes

from smmil.encoders import Encoder, encode_stream
from smmil.errors import DataError
from smmil.frame import Frame
from smmil.images.volume import Volume
from smmil.prepare.recipe import PatchRecipe
from smmil.prepare.selection import _SlicePictures, _square

_AIR = -300.0  # Hounsfield units: fat and all other tissue but lung lie above, and lung is a hole that is filled
_BINS = 256
_LARGEST = 2  # patches are at most this many times larger than the scan

Sizes = tuple[int, int, int]


@dataclass(frozen=True)
class _BoxLattice:
    """Boxes of `patch` voxels, `step` apart, from the first voxel on, over `size` voxels; columns, rows, slices each.

    Millimetres are rounded to whole voxels (half to even), along each axis by its own distance. Boxes at the far ends
    stick out of the scan rather than leave a strip of it out.
    """

    size: Sizes
    patch: Sizes
    step: Sizes
    spacing_mm: tuple[float, float, float] | None

    @classmethod
    def over(cls, volume: Volume, recipe: PatchRecipe) -> "_BoxLattice":
        """The lattice of this scan for the recipe's patches."""
        if not volume.sized and (recipe.side_mm is not None or recipe.depth_mm is not None):
            raise DataError(
                f"{volume.name}: its distances are not known, so patches cannot be given in mm; use --patch-px and "
                "--patch-slices"
            )
        columns, rows, slices = size = volume.shape[2], volume.shape[1], volume.shape[0]
        x, y, z = volume.spacing_mm
        sides = [recipe.side_px or round((recipe.side_mm or 0) / apart) for apart in (x, y)]
        depth = recipe.depth_slices or (1 if recipe.depth_mm is None else round(recipe.depth_mm / z))
        patch = sides[0], sides[1], depth
        wanted = f"{volume.name}: patches of {' x '.join(map(str, patch))} voxels"
        if min(patch) < 1:
            raise DataError(f"{wanted}, whose distances are {x:.3g} x {y:.3g} x {z:.3g} mm; use larger patches")
        if max(sides) > _LARGEST * max(columns, rows) or depth > max(1, _LARGEST * slices):
            counts = " x ".join(map(str, size))
            raise DataError(f"{wanted}, but the scan has {counts}; use smaller patches, or leave them out for slices")
        step = [max(1, round(side * (1 - recipe.overlap))) for side in patch]
        return cls(size, patch, (step[0], step[1], step[2]), volume.spacing_mm if volume.sized else None)

    @property
    def counts(self) -> Sizes:
        """Boxes along each axis: as many as it takes to cover all."""
        sizes = zip(self.size, self.patch, self.step, strict=True)
        across, down, deep = (max(1, ceil((size - patch) / step) + 1) for size, patch, step in sizes)
        return across, down, deep

    @property
    def frame(self) -> Frame:
        stride = None if self.step == self.patch else self.step
        return Frame(self.patch, self.spacing_mm, "px" if self.spacing_mm is None else "mm", stride)

    def ends(self, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """First voxel of every box along an axis, and the one after its last, within the scan."""
        first = np.arange(self.counts[axis]) * self.step[axis]
        return first, np.minimum(first + self.patch[axis], self.size[axis])

    def coords(self, kept: np.ndarray) -> np.ndarray:
        """First voxel of each box that is kept, int64 (n, 3): x, y, z; slice by slice and row by row."""
        return np.argwhere(kept)[:, ::-1].astype(np.int64) * np.array(self.step)


def _body_threshold(volume: Volume, rule: str, kind: str) -> float | None:
    """The value above which voxels are body; None: everything is."""
    if rule == "none":
        return None
    if rule == "auto":
        return _AIR if kind == "ct" else _otsu(volume.voxels_above_lowest())
    if rule.startswith("p"):
        voxels = volume.voxels_above_lowest()
        return float(np.percentile(voxels, float(rule[1:]))) if len(voxels) else None
    return float(rule)


def _otsu(voxels: np.ndarray) -> float | None:
    """The value that divides voxels into two classes of least variance; the brightest hundredth counts as one value."""
    if not len(voxels) or voxels.min() == voxels.max():
        return None
    count, edges = np.histogram(np.minimum(voxels, np.percentile(voxels, 99)), _BINS)
    middles, below = (edges[1:] + edges[:-1]) / 2, np.cumsum(count)[:-1]
    above, total = len(voxels) - below, np.cumsum(count * middles)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = total[:-1] / below - (total[-1] - total[:-1]) / above
    return float(edges[1:-1][np.nan_to_num(below * above * apart**2).argmax()])


def _body_voxels(volume: Volume, lattice: _BoxLattice, threshold: float | None) -> np.ndarray:
    """Number of voxels of body in every box, int64 (deep, down, across)."""
    (left, right), (top, bottom), (first, last) = (lattice.ends(axis) for axis in range(3))
    found = np.zeros(lattice.counts[::-1], np.int64)
    for z in range(len(volume)):
        body = _body(volume.slice_hu(z), threshold)
        sums = np.pad(body.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        inside = sums[bottom][:, right] - sums[bottom][:, left] - sums[top][:, right] + sums[top][:, left]
        found[(first <= z) & (z < last)] += inside
    return found


def _body(values: np.ndarray, threshold: float | None) -> np.ndarray:
    """Voxels of a slice above the threshold, and what they enclose: lungs, air in the skull."""
    return np.ones(values.shape, bool) if threshold is None else binary_fill_holes(values > threshold)


@dataclass(frozen=True, eq=False)
class _VolumePatches:
    """The patches of a scan that hold body: first voxels (n, 3), their lattice, and the threshold of the body."""

    lattice: _BoxLattice
    coords: np.ndarray
    threshold: float | None

    @classmethod
    def select(cls, volume: Volume, recipe: PatchRecipe, kind: str) -> "_VolumePatches":
        """Patches of which more than the recipe's share is body."""
        lattice = _BoxLattice.over(volume, recipe)
        threshold = _body_threshold(volume, recipe.foreground, kind)
        share = _body_voxels(volume, lattice, threshold) / np.prod(lattice.patch)
        return cls(lattice, lattice.coords(share > recipe.share), threshold)

    def encode(self, pictures: _SlicePictures, recipe: PatchRecipe, encoder: Encoder) -> np.ndarray:
        """float16 (n, d): features of each patch; of a box made of several slices."""
        n, looks = len(self.coords), recipe.looks
        if recipe.encode == "whole":
            return encode_stream(encoder, (np.stack(views) for views in self._views(pictures, looks)))
        features = encode_stream(encoder, (view for views in self._views(pictures, looks) for view in views))
        if looks == 1 or recipe.encode == "concat":
            return features.reshape(n, -1)
        return features.reshape(n, looks, -1).astype(np.float32).mean(1).astype(np.float16)

    def _views(self, pictures: _SlicePictures, looks: int) -> Iterator[list[np.ndarray]]:
        """Of every patch `looks` pictures (side, side, 3), from slices spread evenly over those it has in the scan."""
        slices = enumerate(pictures.shades())
        held: dict[int, np.ndarray] = {}
        for layer in np.unique(self.coords[:, 2]).tolist():
            there = min(self.lattice.patch[2], self.lattice.size[2] - layer)
            chosen = [layer + (2 * look + 1) * there // (2 * looks) for look in range(looks)]
            held = {z: shades for z, shades in held.items() if z >= layer}
            while max(held, default=layer - 1) < layer + there - 1:
                z, shades = next(slices)
                held |= {z: shades} if z >= layer else {}
            for x, y, _ in self.coords[self.coords[:, 2] == layer].tolist():
                yield [_square(self._crop(held[z], x, y)) for z in chosen]
        for _ in slices:  # the rest is counted for the warnings
            pass

    def _crop(self, shades: np.ndarray, x: int, y: int) -> np.ndarray:
        """(3, rows, columns) of a patch, black beyond the slice."""
        wide, high, _ = self.lattice.patch
        inside = shades[:, y : y + high, x : x + wide]
        missing = high - inside.shape[1], wide - inside.shape[2]
        return np.pad(inside, ((0, 0), (0, missing[0]), (0, missing[1]))) if any(missing) else inside
