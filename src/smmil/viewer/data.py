"""All content of the viewer by case and model number: facts and bytes, without HTTP."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np

from smmil.errors import DataError, SmmilError
from smmil.exports.case import ExportCase
from smmil.exports.registry import possible_formats
from smmil.images import DamagedTile, Slide, Volume
from smmil.images.matching import Original, find_case_images, find_features, open_scan, refuse_other_scan
from smmil.redact import without_names
from smmil.viewer.api import _Download, _write_download
from smmil.viewer.cache import _ByteCache, _ObjectCache, _SlidePool, _temporary_folder
from smmil.viewer.catalogue import _Catalogue, _NotFound, _read_catalogue
from smmil.viewer.inspector import _case_geometry, _describe, _hot_patches, _HotPatches, _scores_of
from smmil.viewer.tiles import _jpeg, _patch_pixels, _slice_bytes, _SlidePicture, _thumbnail

_EXPORTS_AT_ONCE = 2


class ViewerData:
    """Cases and models by number, and the files held open for them.

    threshold  instance score that the page begins with      column  score column of models with more than two
    """

    def __init__(
        self,
        catalogue: _Catalogue,
        *,
        threshold: float | None = None,
        column: int | None = None,
        cache_bytes: int = 256 * 2**20,
        title: str = "smmil view",
    ):
        self.models, self.cases = catalogue.models, catalogue.cases
        self.notes, self.problems, self.alarms = catalogue.notes, catalogue.problems, catalogue.alarms
        self.threshold, self.column, self.title = threshold, column, title
        self.cache, self.pool = _ByteCache(cache_bytes), _SlidePool()
        self.export_case = _ObjectCache(max(16, 2 * len(self.models)), self._export_case)
        self.geometry = _ObjectCache(16, partial(_case_geometry, self))
        self.picture = _ObjectCache(512, self._picture)
        self.volume = _ObjectCache(3, self._volume)
        self._hot = _ObjectCache(16, self._hot_patches)
        self._temporary = _temporary_folder()
        self._first_damage: dict[int, str] = {}
        self._exporting = BoundedSemaphore(_EXPORTS_AT_ONCE)

    @classmethod
    def read(
        cls,
        places: Sequence[str | Path],
        *,
        slides: str | Path | None = None,
        bags: str | Path | None = None,
        column: int | None = None,
        by: str = "case",
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> "ViewerData":
        """Read runs or folders of predictions, with their slides or scans and their bags where they are named."""
        catalogue = _read_catalogue(places, column, progress, by)
        ids = [row.id for row in catalogue.cases]
        images = {} if slides is None else find_case_images(slides, ids)
        features = {} if bags is None else find_features(bags, ids)
        rows = [replace(row, original=images.get(row.id), features=features.get(row.id)) for row in catalogue.cases]
        return cls(replace(catalogue, cases=rows), column=column, **options)

    def close(self) -> None:
        self.pool.close()
        self._temporary.cleanup()

    def present(self, case: int, model: int) -> bool:
        """Whether this model has a map of the case."""
        found = self.cases[case].by_model[model]
        return found is not None and found.mapped

    def export_cases(self, case: int) -> list[ExportCase | None]:
        """Prediction and scores of a case by every model; None where it has no map."""
        return [self.export_case((case, m)) if self.present(case, m) else None for m in range(len(self.models))]

    def first_export_case(self, case: int) -> ExportCase:
        return self.export_case((case, self.first_model(case)))

    def first_model(self, case: int) -> int:
        return next(m for m in range(len(self.models)) if self.present(case, m))

    def coords_bytes(self, case: int) -> bytes:
        """Little-endian float32: corners of the patches in level-0 pixels, the number of the slice, or of patches of a
        scan column, row and slice."""
        places = self.geometry(case)
        if places.coords is None:
            raise _NotFound("this case has no coordinates")
        return places.coords.astype("<f4").tobytes()

    def scores_bytes(self, case: int, model: int) -> bytes:
        if not self.present(case, model):
            raise _NotFound("this model has no map of this case")
        return self.export_case((case, model)).score.astype("<f4").tobytes()

    def truth_bytes(self, case: int) -> bytes:
        """int8: 1 lesion, 0 not, -1 unknown."""
        found = (one.prediction.y_inst for one in self.export_cases(case) if one is not None)
        labels = next((y for y in found if y is not None and (y >= 0).any()), None)
        if labels is None:
            raise _NotFound("the instances of this case have no labels")
        return np.where(labels < 0, -1, labels > 0).astype(np.int8).tobytes()

    def instance(self, case: int, index: int, model: int | None = None) -> dict[str, Any]:
        """Facts for the inspector; similar patches are taken from the hottest ones of `model` (or the first)."""
        cases = self.export_cases(case)
        answer = _describe(index, cases, self.geometry(case).coords)
        chosen = model if model is not None and self.present(case, model) else self.first_model(case)
        try:
            found = self._hot((case, chosen)).most_similar(index)
        except SmmilError as problem:
            return {**answer, "similar": None, "similar_reason": self.message(problem, case)}
        similar = [{"index": i, "similarity": s, "score": _scores_of(cases, i)} for i, s in found]
        return {**answer, "similar": similar}

    def tile(self, case: int, level: int, column: int, row: int) -> bytes:
        """A Deep Zoom tile as JPEG."""
        picture = self.require_picture(case)
        if not picture.has(level, column, row):
            raise _NotFound
        return self._cached_jpeg(case, (level, column, row), lambda slide: picture.tile(slide, level, column, row))

    def patch(self, case: int, index: int, size: int) -> bytes:
        """One instance of a slide as JPEG."""
        self.require_picture(case)
        boxes = self.geometry(case).boxes
        if boxes is None:
            raise _NotFound("the patches of this case have no known size")
        return self._cached_jpeg(case, ("patch", index, size), lambda slide: _patch_pixels(slide, boxes[index], size))

    def slice(self, case: int, index: int) -> bytes:
        """One slice of a scan: Hounsfield units as int16, other values as float32."""
        if self.cases[case].kind != "scan" or self.cases[case].image is None:
            raise _NotFound("no scan was given for this case; start smmil view with --slides")
        volume = self.volume(case)
        if index >= len(volume):
            raise _NotFound
        with self.damage_recorded(case, DataError):
            return self.cache.get_or_make((case, "slice", index), lambda: _slice_bytes(volume, index))

    def thumbnail(self, case: int) -> bytes:
        """A small PNG of the case with the first model's map."""
        return self.cache.get_or_make((case, "thumbnail"), lambda: _thumbnail(self, case))

    def download(self, case: int, model: int, format_: str, threshold: float | None) -> _Download:
        """The case as a file that other programs open; a few at a time."""
        if not self.present(case, model) or format_ not in self.formats(case):
            raise _NotFound("this case has no such export")
        shown, name = self.export_case((case, model)), self.models[model].name
        options: dict[str, Any] = {"image": self.checked_original(case), "column": shown.column}
        options["folder"] = self.models[model].drift
        with self._exporting:
            return _write_download(shown.prediction, name, format_, Path(self._temporary.name), threshold, **options)

    def formats(self, case: int) -> list[str]:
        """What the case can be exported to now."""
        own = self.checked_original(case)
        image = None if own is None else own.path
        return possible_formats(self.cases[case].kind, replace(self.first_export_case(case), image=image))

    def checked_original(self, case: int) -> Original | None:
        """The image of a case if it can be opened and belongs to the case."""
        row = self.cases[case]
        if row.image is None or row.kind == "none":
            return None
        try:
            self.volume(case) if row.kind == "scan" else self.picture(case)
        except SmmilError:
            return None
        return row.original

    def require_picture(self, case: int) -> _SlidePicture:
        row = self.cases[case]
        if row.image is None or row.kind not in ("slide", "points"):
            raise _NotFound("no slide was found for this case")
        return self.picture(case)

    def message(self, problem: Exception, case: int) -> str:
        """An error as one line in which file names are replaced by the case's id: they may name people."""
        row = self.cases[case]
        others = [row.features, *(one.file for one in row.by_model if one is not None)]
        return without_names(str(problem), row.id, row.image, filter(None, others))

    @contextmanager
    def damage_recorded(self, case: int, kind: type[SmmilError] = DamagedTile) -> Iterator[None]:
        """Remember the first error of this kind in the image of a case, and let it pass."""
        try:
            yield
        except kind as problem:
            self._first_damage.setdefault(case, self.message(problem, case))
            raise

    def damage_notes(self, case: int) -> list[str]:
        """One line for the reader when there is damage."""
        found = self._first_damage.get(case)
        return [] if found is None else [f"parts of this image cannot be read and are left empty; the first: {found}"]

    def _cached_jpeg(self, case: int, key: tuple[Hashable, ...], read: Callable[[Slide], np.ndarray]) -> bytes:
        """Pixels of a slide as JPEG, read now when they are not in the cache."""

        def make() -> bytes:
            picture = self.picture(case)
            with self.pool.lend(picture.path, picture.weight) as slide:
                pixels = read(slide)
            return _jpeg(pixels)

        with self.damage_recorded(case):
            return self.cache.get_or_make((case, *key), make)

    def _export_case(self, key: tuple[int, int]) -> ExportCase:
        row = self.cases[key[0]]
        found, mpp = row.by_model[key[1]], None if row.original is None else row.original.mpp
        assert found is not None  # `present` was asked before
        threshold, column = (self.threshold, self.column) if found.layer == "score" else (None, None)
        return ExportCase(found.load(), row.image, threshold, column, mpp=mpp)

    def _picture(self, case: int) -> _SlidePicture:
        original = self.cases[case].original
        assert original is not None  # asked before
        return _SlidePicture.open(original, self.first_export_case(case).prediction)

    def _volume(self, case: int) -> Volume:
        image = self.cases[case].image
        assert image is not None  # asked before
        prediction = self.first_export_case(case).prediction
        volume = open_scan(image, prediction)
        refuse_other_scan(prediction.id, [prediction], volume)
        return volume

    def _hot_patches(self, key: tuple[int, int]) -> _HotPatches:
        row, case = self.cases[key[0]], self.export_case(key)
        if row.features is None:
            raise _NotFound("features are not at hand; start smmil view with --bags manifest.csv")
        return _hot_patches(row.features, case.prediction, case.score)
