"""Instances of a case: tiles on a lattice, crops around points, slices of a scan; and their features."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from smmil.bag import Bag
from smmil.data.tables import read_text_table
from smmil.encoders import Encoder, encode_stream, load_encoder
from smmil.errors import ConfigError, DataError, suggest
from smmil.frame import Frame
from smmil.graph import ALARM_FROM, ALARM_SHARE, grid_graph
from smmil.images import DamagedTile, MosaicSlide, Slide, need_mpp
from smmil.images.quality import SLICE_FACTS, TILE_FACTS, slice_facts, tile_facts
from smmil.images.volume import AIR, Volume, parse_window, triplets, window_channels
from smmil.prepare.recipe import Recipe
from smmil.prepare.stain import _fit_slide
from smmil.prepare.tissue import _TissueMask


@dataclass(frozen=True)
class _Lattice:
    """Squares of `footprint` level-0 pixels, `step` apart, from `origin` on, over `size` level-0 pixels.

    One lattice serves the whole slide, so that neighbours are found wherever two pieces of tissue meet. It begins at
    the corner of the scanned area. Footprint and overlap are the wanted micrometres rounded to whole level-0 pixels
    (half to even), so all coordinates are whole numbers and the size is off by half a level-0 pixel at most.
    Squares at the right and lower edge stick out of the scanned area rather than leave a strip of tissue out.
    """

    origin: tuple[int, int]
    size: tuple[int, int]
    footprint: int
    step: int
    mpp: float

    @classmethod
    def over(cls, slide: Slide, recipe: Recipe) -> "_Lattice":
        """The lattice of this slide for the recipe's tile size."""
        mpp = need_mpp(slide)
        footprint, overlap = round(recipe.tile_um / mpp), round(recipe.overlap_um / mpp)
        if footprint - overlap < 1:
            raise ConfigError(
                f"{slide.path}: tiles of {recipe.tile_um:g} µm with an overlap of {recipe.overlap_um:g} µm are less "
                f"than one pixel apart at {mpp:g} µm per pixel; use larger tiles or less overlap"
            )
        x, y, width, height = slide.bounds
        return cls((x, y), (width, height), footprint, footprint - overlap, mpp)

    def coords(self) -> np.ndarray:
        """Top-left corners, int64 (n, 2): x, y; row by row."""
        columns, rows = self.counts
        y, x = np.mgrid[:rows, :columns]
        return np.stack([x.ravel(), y.ravel()], 1).astype(np.int64) * self.step + np.array(self.origin)

    def tissue_tiles(self, mask: _TissueMask, share: float) -> np.ndarray:
        """Corners of the squares of which at least `share` is tissue; what sticks out of the slide is none."""
        coords = self.coords()
        return coords[mask.shares(coords, self.footprint) >= share]

    @property
    def counts(self) -> tuple[int, int]:
        """Squares per row and per column: as many as it takes to cover all."""
        overlap = self.footprint - self.step
        columns, rows = (max(1, ceil((side - overlap) / self.step)) for side in self.size)
        return columns, rows

    @property
    def frame(self) -> Frame:
        stride = None if self.step == self.footprint else (self.step, self.step)
        return Frame((self.footprint, self.footprint), (self.mpp, self.mpp), "um", stride)


@dataclass(frozen=True, eq=False)
class _Points:
    """Points of one image, as the table gives them, and their instance labels where it says them."""

    xy: np.ndarray
    labels: np.ndarray | None

    def corners(self, recipe: Recipe) -> np.ndarray:
        """Where each crop begins, float64 (n, 2).

        Patches say so themselves. A point names a pixel and means its middle: with first_pixel = 1, the point (14, 14)
        and crop_px = 27, the crop begins at the very first pixel.
        """
        if recipe.kind == "patches":
            return self.xy
        return self.xy - recipe.first_pixel + 0.5 - recipe.crop_px / 2


def _read_points(path: Path, image: str, positive: Collection[str] | None = None) -> _Points:
    """The rows of a table image,x,y[,label] that belong to `image` (its name, with or without ending).

    positive  names in a column `class` that are lesions, for tables without a column `label`
    """
    table = _table(path)
    names = table["image"].astype(str).str.strip()
    rows = table[(names == image) | (names.map(lambda name: Path(name).stem) == image)]
    if rows.empty:
        raise DataError(f"{path}: no points for image {image!r}; {suggest(image, set(names[:10000]))}")
    xy = rows[["x", "y"]].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~np.isfinite(xy).all(1))
    if len(wrong):
        raise DataError(f"{path}: line {rows.index[wrong[0]] + 2}: x and y must be numbers; correct the table")
    return _Points(xy, _labels(rows, path, positive))


def _stray_images(path: Path, known: Iterable[str]) -> list[tuple[str, str]]:
    """Images of the table that are none of the cases, each with the reason why its points are left out."""
    names = _table(path)["image"].astype(str).str.strip()
    strays = sorted(set(names) - {name for name in set(names) if {name, Path(name).stem} & set(known)})
    return [(name, f"{path}: points of {name!r}, which is not among the cases") for name in strays]


def _check_classes(path: Path, positive: Collection[str] | None) -> str | None:
    """Refuse names of lesions that the table does not have; a note when it has classes that were not asked for."""
    table = _table(path)
    if positive is None:
        if "class" not in table or "label" in table:
            return None
        return (
            f"{path}: the column class is not used; say which of its names are lesions (--positive), or add a column "
            "label with 0, 1, or -1 for unknown"
        )
    if "label" in table or "class" not in table:
        has = "labels in its column label already" if "label" in table else "no column class"
        raise ConfigError(f"--positive: {path} has {has}; leave the option out")
    names = {_plain(name): name for name in table["class"]}
    for name in (name for name in positive if _plain(name) not in names):
        raise DataError(f"{path}: no point is of the class {name!r}; {suggest(name, names.values())}")
    return None


def _table(path: Path) -> pd.DataFrame:
    return read_text_table(path, "give a table with the columns image, x, y", ("image", "x", "y"))


def _labels(rows: pd.DataFrame, path: Path, positive: Collection[str] | None) -> np.ndarray | None:
    if "label" not in rows:
        wanted = {_plain(name) for name in positive or ()}
        return None if not wanted else np.array([_plain(name) in wanted for name in rows["class"]]).astype(np.int64)
    texts = rows["label"].str.strip()
    unknown = texts.str.lower().isin(["", "na", "nan"])
    labels = pd.to_numeric(texts.mask(unknown, "-1"), errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~((labels == np.rint(labels)) & (labels >= -1)))
    if len(wrong):
        raise DataError(
            f"{path}: line {rows.index[wrong[0]] + 2}: label {texts.iloc[wrong[0]]!r}; expected -1 or nothing "
            "(unknown), 0, 1, …; for names, call the column class and give --positive"
        )
    return labels.astype(np.int64)


def _plain(name: str) -> str:
    return name.strip().lower()


@dataclass(frozen=True, eq=False)
class _Selection:
    """Squares of `footprint` level-0 pixels at `coords`, how neighbours are found, and facts for the bag file."""

    coords: np.ndarray
    footprint: int
    frame: Frame
    graph: dict[str, Any]
    mask: _TissueMask | None = None
    candidates: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def _select_tiles(slide: Slide, recipe: Recipe, given_mask: Path | None = None) -> _Selection:
    """Tiles of the lattice that hold enough tissue."""
    cells = _Lattice.over(slide, recipe)
    mask = _TissueMask.find(slide, recipe.tissue, given_mask)
    coords = cells.tissue_tiles(mask, recipe.tissue.share)
    columns, rows = cells.counts
    rule = {"kind": "grid", "neighbours": 8}
    facts: dict[str, Any] = {
        "tile_um": {"requested": recipe.tile_um, "used": cells.footprint * cells.mpp},
        "overlap_um": {"requested": recipe.overlap_um, "used": (cells.footprint - cells.step) * cells.mpp},
    }
    facts |= {"warnings": list(mask.warnings)} if mask.warnings else {}
    return _Selection(coords, cells.footprint, cells.frame, rule, mask, columns * rows, facts)


def _select_points(slide: Slide, recipe: Recipe, points: _Points) -> _Selection:
    """A crop around every point; the pixel size may be unknown, since crops are counted in pixels."""
    patch = (recipe.crop_px, recipe.crop_px)
    frame = Frame(patch) if slide.mpp is None else Frame(patch, (slide.mpp, slide.mpp), "um")
    corners = points.corners(recipe)
    outside = ((corners >= slide.size) | (corners + recipe.crop_px <= 0)).any(1)
    if outside.any():
        x, y = points.xy[outside][0].tolist()
        raise DataError(
            f"{slide.path}: {int(outside.sum())} points lie outside the image, such as x={x:g}, y={y:g}; "
            f"it has {slide.size[0]} × {slide.size[1]} pixels"
        )
    rule = {"kind": "knn", "k": recipe.neighbours}
    return _Selection(corners, recipe.crop_px, frame, rule, candidates=len(corners))


def _select_patches(slide: MosaicSlide, recipe: Recipe) -> _Selection:
    """Every patch of a table; refused when patches that should touch mostly do not, before any is encoded."""
    stride = None if slide.step == slide.patch else slide.step
    frame = Frame(
        slide.patch, None if slide.mpp is None else (slide.mpp,) * 2, "px" if slide.mpp is None else "um", stride
    )
    if recipe.graph == "knn":
        rule: dict[str, Any] = {"kind": "knn", "k": recipe.neighbours}
    else:
        rule = {"kind": "grid", "neighbours": 8}
        lonely = grid_graph(slide.corners, frame.step, check=False).isolated_share
        if len(slide.corners) >= ALARM_FROM and lonely > ALARM_SHARE:
            raise DataError(
                f"{slide.path}: {lonely:.0%} of {len(slide.corners):,} patches of {slide.patch[0]} x {slide.patch[1]} "
                "pixels touch no other; if they were sampled sparsely, prepare all cases with --graph knn; if their "
                "coordinates count patches instead of pixels, write the tables again with smmil source patches --step"
            )
    return _Selection(slide.corners, max(slide.patch), frame, rule, candidates=len(slide.corners))


def _slide_facts(slide: Slide, selection: _Selection, pixels: int) -> dict[str, Any]:
    """What a bag file should remember of its slide: resolution wanted and used, size, reader, oddities."""
    scale = selection.footprint / pixels
    return {
        **selection.facts,
        "mpp_level0": slide.mpp,
        "mpp_read": None if slide.mpp is None else slide.mpp * scale,
        "level_read": slide.best_level(scale),
        "patch_size": pixels,
        "level0_width": slide.size[0],
        "level0_height": slide.size[1],
        "bounds": list(slide.bounds),
        "reader": slide.reader,
        "notes": list(slide.notes),
    }


_SHOWN = 0.05  # share of the voxels that at least one window should show as neither black nor white


class _SlicePictures:
    """One float32 picture (side, side, 3) with shades from 0 to 1 per slice, in the order of the volume.

    While they are read, their facts of image quality are measured, and voxels between black and white are counted for
    every window, those of the lowest value apart.
    """

    def __init__(self, volume: Volume, recipe: Recipe):
        self.volume, self.recipe = volume, recipe
        self.windows = [parse_window(name, volume) for name in recipe.windows]
        self.shown, self.voxels = np.zeros(len(self.windows)), 0
        self.lowest, self.highest, self.empty = np.inf, -np.inf, 0
        self._facts: list[np.ndarray] = []

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(_square, self.shades())

    def shades(self) -> Iterator[np.ndarray]:
        """(3, rows, columns) of every slice in turn."""
        if self.recipe.triplets:
            for three in triplets(self.volume):
                shades = window_channels(three, self.windows)
                self._count(three[1], shades[:, 1])
                yield shades[0]
            return
        for index in range(len(self.volume)):
            hu = self.volume.slice_hu(index)
            shades = window_channels(hu, self.windows)
            self._count(hu, shades)
            yield shades if len(shades) == 3 else shades.repeat(3, axis=0)

    def _count(self, values: np.ndarray, shades: np.ndarray) -> None:
        self.shown += ((shades > 0) & (shades < 1)).sum((1, 2))
        self.voxels += values.size
        if self.recipe.kind == "ct":
            self._facts.append(slice_facts(values))
        lowest = float(values.min())
        if lowest <= self.lowest:
            self.empty = int((values == lowest).sum()) + (self.empty if lowest == self.lowest else 0)
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, float(values.max()))

    def quality(self) -> tuple[np.ndarray | None, tuple[str, ...]]:
        """Facts of image quality of all slices that were read, and their names; values other than HU have none."""
        return (np.stack(self._facts), SLICE_FACTS) if self._facts else (None, ())

    def warnings(self) -> list[str]:
        """What is wrong with the windows, in words; to be asked when all slices were read."""
        found, values = [], f"values run from {self.lowest:g} to {self.highest:g}"
        padded = window_channels(
            np.array(self.lowest), self.windows
        )  # air or padding is no content, whatever its shade
        shown = self.shown - self.empty * ((padded > 0) & (padded < 1))
        lost = 1 - shown.max() / max(1, self.voxels - self.empty)
        if lost > 1 - _SHOWN:
            names = ", ".join(self.recipe.windows)
            found.append(
                f"{lost:.0%} of the voxels are all black or all white ({names}; {values}): the pictures hold hardly "
                "anything; choose other windows, such as --window p1/99"
            )
        if self.recipe.kind == "ct" and self.volume.values == "unknown" and self.lowest > AIR:
            found.append(
                f"{values}, so there is no air: these may be no Hounsfield units; MR is prepared with --kind mr"
            )
        return found


def _square(channels: np.ndarray) -> np.ndarray:
    """Channels last, and black next to a slice that is not square, so that resizing keeps its proportions."""
    _, rows, columns = channels.shape
    side = max(rows, columns)
    if rows != columns:
        top, left = (side - rows) // 2, (side - columns) // 2
        channels = np.pad(channels, ((0, 0), (top, side - rows - top), (left, side - columns - left)))
    return np.ascontiguousarray(channels.transpose(1, 2, 0))


@lru_cache(maxsize=1)
def _encoder_of(
    name: str, weights: Path | None, device: str, autocast: bool | str, pixels: int | None = None
) -> Encoder:
    """The encoder of a recipe, loaded once per process."""
    return load_encoder(name, weights=weights, device=device, autocast=autocast, pixels=pixels)


@dataclass(eq=False)
class _Encoded:
    """What was read and encoded: one row of `features` per row of `coords`, and where tiles could not be decoded."""

    features: np.ndarray
    coords: np.ndarray
    damaged: list[tuple[float, float]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    quality: np.ndarray | None = None
    quality_names: tuple[str, ...] = ()

    def bag(self, id_: str, frame: Frame | None) -> Bag:
        quality = None if self.quality is None else torch.from_numpy(self.quality)
        features, coords = torch.from_numpy(self.features), torch.from_numpy(np.ascontiguousarray(self.coords))
        return Bag(id_, features, coords, frame, quality=quality)


def _encode_tiles(slide: Slide, coords: np.ndarray, footprint: float, recipe: Recipe, encoder: Encoder) -> _Encoded:
    """Features of the squares at `coords`; an error when more of them are damaged than the recipe allows, or all."""
    limit = min(ceil(recipe.max_damaged * len(coords)), len(coords) - 1)
    pixels = recipe.pixels or encoder.pixels
    kept: list[int] = []
    damaged: list[int] = []
    quality: list[np.ndarray] = []
    stain = _fit_slide(slide, coords, footprint, pixels, recipe)
    recolour = None if stain is None else stain.towards(recipe.stain_target)

    def tiles() -> Iterator[np.ndarray]:
        """One by one; those that cannot be decoded are left out and remembered."""
        for index, (x, y) in enumerate(np.rint(coords).tolist()):
            try:
                tile = slide.read(x, y, footprint, pixels)
            except DamagedTile as damage:
                damaged.append(index)
                if len(damaged) > limit:
                    raise DataError(
                        f"{slide.path}: more than {limit} of {len(coords)} tiles cannot be decoded (the last one: "
                        f"{damage.reason}); copy or scan the slide again (max_damaged of the recipe allows no more)"
                    ) from None
            else:
                kept.append(index)
                quality.append(tile_facts(tile))  # of the pixels as scanned
                yield tile if recolour is None else recolour(tile)

    features = encode_stream(encoder, tiles())
    lost = [(float(x), float(y)) for x, y in coords[damaged].tolist()]
    facts = {} if stain is None else {"stain": {"method": stain.method, "found": list(stain.numbers)}}
    return _Encoded(features, coords[kept], lost, facts, np.stack(quality), TILE_FACTS)
