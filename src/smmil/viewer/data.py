"""Everything the viewer can show, served from tables: numbers in, facts and bytes out; knows nothing of HTTP."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np

from smmil.errors import DataError, SmmilError
from smmil.exports.case import ExportCase
from smmil.images import DamagedTile, Volume, open_volume
from smmil.images.matching import Original, find_features, find_originals, refuse_other_scan
from smmil.redact import without_names
from smmil.viewer import inspector
from smmil.viewer.cache import ByteCache, Recent, SlidePool, scratch_folder
from smmil.viewer.catalogue import Catalogue, read_catalogue
from smmil.viewer.downloads import Download, possible_formats, write_download
from smmil.viewer.geometry import Places, case_places
from smmil.viewer.inspector import HotPatches, hot_patches
from smmil.viewer.params import Absent
from smmil.viewer.thumbnails import thumbnail
from smmil.viewer.tiles import SlidePicture, jpeg, patch_pixels, slice_bytes, slide_picture, tile_pixels


class Damage:
    """Remembers the first damaged part of every case's image, in words that may leave the building."""

    def __init__(self, words: Callable[[Exception, int], str]):
        self._words = words
        self._first: dict[int, str] = {}

    @contextmanager
    def noted(self, case: int, kind: type[SmmilError] = DamagedTile) -> Iterator[None]:
        """An error of this kind is remembered on its way."""
        try:
            yield
        except kind as problem:
            self._first.setdefault(case, self._words(problem, case))
            raise

    def notes(self, case: int) -> list[str]:
        """One line for the reader when there is damage."""
        found = self._first.get(case)
        return [] if found is None else [f"parts of this image cannot be read and are left empty; the first: {found}"]


_EXPORTS_AT_ONCE = 2


class ViewerData:
    """Cases and models by number, and the few things that are held open for them.

    threshold  instance score that the page begins with      column  score column of models with more than two
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        threshold: float | None = None,
        column: int | None = None,
        cache_bytes: int = 256 * 2**20,
        title: str = "smmil view",
    ):
        self.models, self.cases = catalogue.models, catalogue.cases
        self.notes, self.problems = catalogue.notes, catalogue.problems
        self.threshold, self.column, self.title = threshold, column, title
        self.cache, self.pool = ByteCache(cache_bytes), SlidePool()
        self.said = Recent(max(16, 2 * len(self.models)), self._said)
        self.places = Recent(16, self._places)
        self.picture = Recent(512, self._picture)
        self.volume = Recent(3, self._volume)
        self._hot = Recent(16, self._hot_patches)
        self._scratch = scratch_folder()
        self.damage = Damage(self.words)
        self._exporting = BoundedSemaphore(_EXPORTS_AT_ONCE)

    @classmethod
    def read(
        cls,
        places: Sequence[str | Path],
        *,
        slides: str | Path | None = None,
        bags: str | Path | None = None,
        column: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> "ViewerData":
        """The study of runs or folders of predictions, with its slides or scans and its bags where they are named."""
        catalogue = read_catalogue(places, column, progress)
        ids = [row.id for row in catalogue.cases]
        images = {} if slides is None else find_originals(slides, ids)
        features = {} if bags is None else find_features(bags, ids)
        rows = [replace(row, original=images.get(row.id), features=features.get(row.id)) for row in catalogue.cases]
        return cls(replace(catalogue, cases=rows), column=column, **options)

    def close(self) -> None:
        self.pool.close()
        self._scratch.cleanup()

    def present(self, case: int, model: int) -> bool:
        """Whether this model has a map of the case."""
        said = self.cases[case].said[model]
        return said is not None and said.shown

    def all_said(self, case: int) -> list[ExportCase | None]:
        """What every model said about a case; None where it has no map."""
        return [self.said((case, m)) if self.present(case, m) else None for m in range(len(self.models))]

    def first_said(self, case: int) -> ExportCase:
        return self.said((case, self.first_model(case)))

    def first_model(self, case: int) -> int:
        return next(m for m in range(len(self.models)) if self.present(case, m))

    def coords_bytes(self, case: int) -> bytes:
        """Little-endian float32: corners of the patches in level-0 pixels, or the number of the slice."""
        places = self.places(case)
        if places.coords is None:
            raise Absent("this case has no coordinates")
        return places.coords.astype("<f4").tobytes()

    def scores_bytes(self, case: int, model: int) -> bytes:
        if not self.present(case, model):
            raise Absent("this model has no map of this case")
        return self.said((case, model)).score.astype("<f4").tobytes()

    def truth_bytes(self, case: int) -> bytes:
        """int8: 1 lesion, 0 not, -1 unknown."""
        labels = self.truth(case)
        if labels is None:
            raise Absent("the instances of this case have no labels")
        return np.where(labels < 0, -1, labels > 0).astype(np.int8).tobytes()

    def truth(self, case: int) -> np.ndarray | None:
        found = (said.prediction.y_inst for said in self.all_said(case) if said is not None)
        return next((y for y in found if y is not None and (y >= 0).any()), None)

    def instance(self, case: int, index: int, model: int | None = None) -> dict[str, Any]:
        """The inspector's answer; similar patches are taken from the hottest ones of `model` (or the first)."""
        cases = self.all_said(case)
        answer = inspector.describe(index, cases, self.places(case).coords)
        chosen = model if model is not None and self.present(case, model) else self.first_model(case)
        try:
            found = self._hot((case, chosen)).most_similar(index, inspector.MOST_SIMILAR)
        except SmmilError as problem:
            return {**answer, "similar": None, "similar_reason": self.words(problem, case)}
        similar = [{"index": i, "similarity": s, "score": inspector.scores_of(cases, i)} for i, s in found]
        return {**answer, "similar": similar}

    def tile(self, case: int, level: int, column: int, row: int) -> bytes:
        """A Deep Zoom tile as JPEG."""
        picture = self.need_picture(case)
        if not picture.has(level, column, row):
            raise Absent
        with self.damage.noted(case):
            return self.cache.kept((case, level, column, row), lambda: self._tile(picture, level, column, row))

    def patch(self, case: int, index: int, size: int) -> bytes:
        """One instance of a slide as JPEG."""
        picture, boxes = self.need_picture(case), self.places(case).boxes
        if boxes is None:
            raise Absent("the patches of this case have no known size")
        with self.damage.noted(case):
            return self.cache.kept((case, "patch", index, size), lambda: self._patch(picture, boxes[index], size))

    def slice(self, case: int, index: int) -> bytes:
        """One slice of a scan in Hounsfield units, int16."""
        if self.cases[case].kind != "scan" or self.cases[case].image is None:
            raise Absent("no scan was given for this case; start smmil view with --slides")
        volume = self.volume(case)
        if index >= len(volume):
            raise Absent
        with self.damage.noted(case, DataError):
            return self.cache.kept((case, "slice", index), lambda: slice_bytes(volume, index))

    def thumbnail(self, case: int) -> bytes:
        """A small PNG of the case with the first model's map."""
        return self.cache.kept((case, "thumbnail"), lambda: thumbnail(self, case))

    def download(self, case: int, model: int, format_: str, threshold: float | None) -> Download:
        """The case as a file that other programs open; a few at a time."""
        if not self.present(case, model) or format_ not in self.formats(case):
            raise Absent("this case has no such export")
        prediction = self.said((case, model)).prediction
        with self._exporting:
            return write_download(
                prediction,
                self.models[model].name,
                format_,
                scratch=Path(self._scratch.name),
                image=self.own_original(case),
                threshold=threshold,
                column=self.column,
            )

    def formats(self, case: int) -> list[str]:
        """What the case can be exported to now."""
        own = self.own_original(case)
        image = None if own is None else own.path
        return possible_formats(self.cases[case].kind, replace(self.first_said(case), image=image))

    def own_original(self, case: int) -> Original | None:
        """The image of a case where it can be opened and is its own."""
        row = self.cases[case]
        if row.image is None or row.kind == "none":
            return None
        try:
            self.volume(case) if row.kind == "scan" else self.picture(case)
        except SmmilError:
            return None
        return row.original

    def need_picture(self, case: int) -> SlidePicture:
        row = self.cases[case]
        if row.image is None or row.kind not in ("slide", "points"):
            raise Absent("no slide was found for this case")
        return self.picture(case)

    def words(self, problem: Exception, case: int) -> str:
        """An error as one line in which files have become the case: names of files and folders may name people."""
        row = self.cases[case]
        others = [row.features, *(said.file for said in row.said if said is not None)]
        return without_names(str(problem), row.id, row.image, filter(None, others))

    def _tile(self, picture: SlidePicture, level: int, column: int, row: int) -> bytes:
        with self.pool.lend(picture.path, picture.weight) as slide:
            pixels = tile_pixels(slide, picture, level, column, row)
        return jpeg(pixels)

    def _patch(self, picture: SlidePicture, box: np.ndarray, size: int) -> bytes:
        with self.pool.lend(picture.path, picture.weight) as slide:
            pixels = patch_pixels(slide, box, size)
        return jpeg(pixels)

    def _said(self, key: tuple[int, int]) -> ExportCase:
        row = self.cases[key[0]]
        said, mpp = row.said[key[1]], None if row.original is None else row.original.mpp
        assert said is not None  # `present` was asked before
        return ExportCase(said.load(), row.image, self.threshold, self.column, mpp=mpp)

    def _picture(self, case: int) -> SlidePicture:
        original = self.cases[case].original
        assert original is not None  # asked before
        return slide_picture(original, self.first_said(case).prediction)

    def _volume(self, case: int) -> Volume:
        image = self.cases[case].image
        assert image is not None  # asked before
        volume = open_volume(image)
        prediction = self.first_said(case).prediction
        refuse_other_scan(prediction.id, [prediction], volume)
        return volume

    def _places(self, case: int) -> Places:
        return case_places(self, case)

    def _hot_patches(self, key: tuple[int, int]) -> HotPatches:
        row, said = self.cases[key[0]], self.said(key)
        if row.features is None:
            raise Absent("features are not at hand; start smmil view with --bags manifest.csv")
        return hot_patches(row.features, said.prediction, said.score)
