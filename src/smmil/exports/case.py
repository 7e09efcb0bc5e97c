"""One case to export: its prediction, the image it belongs to, and the options."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from smmil.errors import ConfigError, DataError
from smmil.evaluate.case_words import case_words
from smmil.evaluate.conformal import AppliedCalibration, CalibratedCase, calibrated_case
from smmil.evaluate.folder_drift import FolderDrift, promise_of_case, warning_of_case
from smmil.evaluate.instances import instance_probability, instance_score
from smmil.evaluate.probability import calibrated_probability
from smmil.images import Slide, Volume
from smmil.images.matching import Difference, Original, open_case_slide, open_scan, scan_difference, slide_difference
from smmil.prediction import Prediction
from smmil.redact import plain, provenance

_LONGEST_TEXT = 800


@dataclass(frozen=True, eq=False)
class ExportCase:
    """What an export works from."""

    prediction: Prediction
    image: Path | None = None  # the slide or folder of the CT series that it was cut from; None: not at hand
    threshold: float | None = None  # instances with at least this score are called positive; None: no instance is
    column: int | None = None  # score column of models with more than two
    size: int = 2048  # longest side of pictures, in pixels
    limits: tuple[float, float] | None = None  # ends of the colour scale, shared by several cases; None: the case's own
    interpolate: bool = False  # pictures of slides: colours go over into each other between neighbouring patches
    deidentify: bool = True  # leave out whatever DICOM headers of the image say about a person
    keep_uids: bool = True  # let DICOM exports point at the image they belong to
    mpp: float | None = None  # micrometres per level-0 pixel, where the slide does not say it or says it wrongly
    folder: FolderDrift | None = None  # the test of all cases of its folder; None: not made
    notes: list[str] = field(default_factory=list)  # for the reader of the export; filled while it is written

    @property
    def id(self) -> str:
        return self.prediction.id

    @cached_property
    def score(self) -> np.ndarray:
        """(n,) the score that counts, as precise as it was stored."""
        return instance_score(self.prediction, self.column).astype(self.prediction.scores.dtype)

    @cached_property
    def positive(self) -> np.ndarray | None:
        """(n,) which instances reach the threshold, decided as in `smmil evaluate`."""
        return None if self.threshold is None else self.score.astype(np.float64) >= self.threshold

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Ends of a window on the numbers: the scale of a layer that has a fixed one, else lowest and highest."""
        return self.prediction.fixed_scale or (float(self.score.min()), float(self.score.max()))

    @property
    def layer(self) -> str:
        """What the numbers are: score, or the layer in its place."""
        return "score" if self.prediction.shown_layer is None else self.prediction.shown_layer.name

    @cached_property
    def percentile(self) -> np.ndarray:
        """(n,) share of the case's instances that score no higher: 1 is the hottest."""
        from scipy.stats import rankdata

        return rankdata(self.score, method="max") / len(self.score)

    @cached_property
    def probability(self) -> np.ndarray:
        """(n,) probability of each instance: calibrated, from log-odds or probabilities; else nan."""
        calibrated = calibrated_probability(self.prediction, self.column)
        return instance_probability(self.prediction, self.column) if calibrated is None else calibrated

    @property
    def probability_kind(self) -> str:
        """Whether these are calibrated, or what the scores say themselves."""
        known = calibrated_probability(self.prediction, self.column) is not None
        return "calibrated probability" if known else "probability"

    @cached_property
    def calibrated_case(self) -> CalibratedCase | None:
        """What the calibration says about the whole case."""
        return calibrated_case(self.prediction, self.calibration)

    @cached_property
    def facts(self) -> dict[str, str]:
        """Where the scores come from, as plain texts; what was promised for the threshold, and what the alarm says."""
        stated, warning = self.calibration, warning_of_case(self.prediction, self.folder)
        promise = "" if stated is None or stated.threshold != self.threshold else stated.text
        whole = "" if self.calibrated_case is None else self.calibrated_case.text
        said = {"promise": promise, "calibrated": whole, "warning": warning}
        texts = {key: plain(text, _LONGEST_TEXT) for key, text in said.items() if text}
        return {**provenance(self.prediction), **texts}

    @property
    def target_facts(self) -> dict[str, str]:
        """What was predicted of the case and what is true, in words, where its target is no class."""
        if self.prediction.target_kind == "class":
            return {}
        words = case_words(self.prediction)
        said = {"target": self.prediction.target_kind, "case_prediction": words.said, "case_truth": words.truth}
        return {key: plain(text, _LONGEST_TEXT) for key, text in said.items() if text}

    @cached_property
    def calibration(self) -> AppliedCalibration | None:
        """The calibration that was applied; without its promise where the case or its folder raised the alarm."""
        return promise_of_case(self.prediction, self.folder)

    @property
    def axes(self) -> int:
        """Number of coordinates: 2 on a slide, 1 (slices) or 3 (boxes) in a scan."""
        if self.prediction.coords is None:
            raise DataError(f"{self.id}: this export needs coords, which the prediction does not store; predict again")
        return int(self.prediction.coords.shape[1])

    def need_slide(self, what: str) -> None:
        """Refuse a scan where a slide is meant."""
        if self.axes != 2:
            raise DataError(
                f"{self.id}: {what} is for slides, but this case has {self.axes} coordinate(s) per instance, as scans "
                "have; choose nifti, dicom-pm, dicom-seg, csv, parquet or png"
            )

    @contextmanager
    def slide(self) -> Iterator[Slide | None]:
        """The slide, open for reading; None when no image was given."""
        if self.image is None:
            yield None
            return
        with open_case_slide(Original(self.image, self.mpp), [self.prediction]) as slide:
            self._check(slide_difference(self.prediction, slide), "slide")
            yield slide

    def volume(self, what: str) -> Volume:
        """The scan with its geometry; an error that asks for it when no image was given."""
        path = self.need_image(what, "the folder of its DICOM series or its NIfTI file")
        volume = open_scan(path, self.prediction)
        self._check(scan_difference(self.prediction, volume), "scan")
        return volume

    def _check(self, other: Difference | None, kind: str) -> None:
        """Raise an error if the image is not the one from which the prediction was made."""
        if other is not None:
            raise DataError(
                f"{self.id}: was made from a {kind} with {other.expected}, but {self.image} has {other.found}; "
                f"give the {kind} it was made from"
            )

    def need_image(self, what: str, kind: str) -> Path:
        """Path of the image; an error if it was not given."""
        if self.image is None:
            raise ConfigError(f"{self.id}: {what} needs the image the case was made from; give --image {kind}")
        return self.image
