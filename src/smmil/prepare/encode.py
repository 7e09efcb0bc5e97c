"""Pixels of one case to a bag: where its instances are, and the features of each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smmil.bag import Bag
from smmil.encoders import Encoder, encode_stream, load_encoder
from smmil.errors import DataError
from smmil.frame import Frame
from smmil.images import DamagedTile, Slide
from smmil.prepare.recipe import Recipe


@lru_cache(maxsize=1)
def encoder_of(name: str, weights: Path | None, device: str, autocast: bool, pixels: int | None = None) -> Encoder:
    """The encoder of a recipe, loaded once per process."""
    return load_encoder(name, weights=weights, device=device, autocast=autocast, pixels=pixels)


@dataclass(eq=False)
class Encoded:
    """What was read and encoded: one row of `features` per row of `coords`, and where tiles could not be decoded."""

    features: np.ndarray
    coords: np.ndarray
    damaged: list[tuple[float, float]] = field(default_factory=list)

    def bag(self, id_: str, frame: Frame | None) -> Bag:
        return Bag(id_, torch.from_numpy(self.features), torch.from_numpy(np.ascontiguousarray(self.coords)), frame)


@dataclass(eq=False)
class _Reading:
    """Tiles of a slide one by one; those that cannot be decoded are left out and remembered."""

    slide: Slide
    footprint: float
    pixels: int
    limit: int
    kept: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)

    def tiles(self, coords: np.ndarray) -> Iterator[np.ndarray]:
        for index, (x, y) in enumerate(np.rint(coords).tolist()):
            try:
                tile = self.slide.read(x, y, self.footprint, self.pixels)
            except DamagedTile as damage:
                self._note(index, len(coords), damage)
                continue
            self.kept.append(index)
            yield tile

    def _note(self, index: int, total: int, damage: DamagedTile) -> None:
        self.damaged.append(index)
        if len(self.damaged) > self.limit:
            raise DataError(
                f"{self.slide.path}: more than {self.limit} of {total} tiles cannot be decoded (the last one: "
                f"{damage.reason}); copy or scan the slide again (max_damaged of the recipe allows no more)"
            )


def encode_tiles(slide: Slide, coords: np.ndarray, footprint: float, recipe: Recipe, encoder: Encoder) -> Encoded:
    """Features of the squares at `coords`; an error when more of them are damaged than the recipe allows, or all."""
    limit = min(ceil(recipe.max_damaged * len(coords)), len(coords) - 1)
    reading = _Reading(slide, footprint, recipe.pixels or encoder.pixels, limit)
    features = encode_stream(encoder, reading.tiles(coords))
    lost = [(float(x), float(y)) for x, y in coords[reading.damaged].tolist()]
    return Encoded(features, coords[reading.kept], lost)


def encode_slices(pictures: Iterable[np.ndarray], encoder: Encoder) -> Encoded:
    """Features of slices; the coordinate of a slice is its number."""
    features = encode_stream(encoder, pictures)
    return Encoded(features, np.arange(len(features), dtype=np.int64)[:, None])


def encoder_facts(encoder: Encoder) -> dict[str, Any]:
    """Provenance of the features for a bag file: the id under `encoder`, the rest under `encoder_facts`."""
    facts = encoder.provenance()
    return {"encoder": facts.pop("id"), "licence": facts.pop("licence"), "encoder_facts": facts}
