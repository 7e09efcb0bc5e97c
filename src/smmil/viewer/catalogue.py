"""The tables behind every URL: models and cases by number, made once at the start."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.alarm import applied_drift
from smmil.evaluate.bags import is_labelled, patient_bag, patient_of
from smmil.evaluate.case_words import case_words, with_place
from smmil.evaluate.conformal import AppliedCalibration, CalibratedCase, applied_calibration, calibrated_case
from smmil.evaluate.folder_drift import FolderDrift, drift_facts, folder_drift
from smmil.evaluate.instances import instance_score
from smmil.files import digest
from smmil.images.matching import Original
from smmil.maps import canvas
from smmil.maps.raster import scattered
from smmil.prediction import FIXED_SCALES, LAYERS, Prediction, corrections_text, prediction_files
from smmil.redact import safe_text
from smmil.report.cases import verdict
from smmil.report.sources import find_sources

_LONGEST_PROMISE = 1000


class _NotFound(DataError):  # noqa: N818
    """The request names something that does not exist."""

    def __init__(self, what: str = "nothing at this address"):
        super().__init__(what)


@dataclass(frozen=True)
class _Model:
    """A model by the name of its folder, and the spread of its scores over all its cases."""

    name: str
    score_kind: str = "score"
    span: tuple[float, float] = (0.0, 1.0)
    colours: tuple[float, float] = (0.0, 1.0)
    threshold: float | None = None  # of the calibration that all its predictions share
    promise: str | None = None  # what that promises
    layer: str = "score"
    ends: tuple[str, str] = ("", "")  # what the ends of its scale mean
    taught: str | None = None  # how many marks of experts it learned from
    drift: FolderDrift | None = None  # the test of all its cases together


@dataclass(frozen=True)
class _ModelScores:
    """What the prediction of one case by one model says; the scores stay in the file.

    layout   digest that is equal for predictions with the same instances in the same order
    content  digest of the prediction at the start
    kind     slide: patches on a lattice; points: places on none; scan: slices, or boxes in them; none: no places at all
    truth    whether instances have labels
    layer    score, or another map that the prediction holds (`smmil.prediction.LAYERS`)
    drift    what is to be said about a case unlike the training cases
    promise  that of its calibration, for this case
    said     what that says about the whole case
    words, true_words, value   of a target that is no class: what was predicted, what is true, and the predicted number
    mapped   False when its instances are others than those of the case's first model: one map cannot show both
    """

    file: Path
    probability: float | None
    outcome: str | None
    layout: str
    content: str
    kind: str
    instances: int
    label: int | None
    truth: bool
    layer: str = "score"
    mapped: bool = True
    drift: str | None = None
    promise: str | None = None
    said: CalibratedCase | None = None
    patient: str | None = None  # whose case it is, as its file says; never shown
    one_bag: bool = False  # the case is part of the patient's bag
    words: str | None = None
    true_words: str | None = None
    value: float | None = None
    error: float | None = None

    @classmethod
    def of(cls, prediction: Prediction, file: Path) -> "_ModelScores":
        facts, labels = verdict(prediction), prediction.y_inst
        outcome = facts["outcome"] if is_labelled(prediction) else None
        truth = labels is not None and bool((labels >= 0).any())
        axes = 0 if prediction.coords is None else prediction.coords.shape[1]
        kind = "scan" if axes in (1, 3) else "none"
        if axes == 2:
            kind = "points" if prediction.frame is None or scattered(prediction) else "slide"
        digests = _layout(prediction), _content(prediction)
        found = cls(file, facts["p"], outcome, *digests, kind, prediction.n, prediction.y, truth)
        part = patient_bag(prediction)
        patient = patient_of(prediction) if part is None else part["patient"]
        found = replace(found, patient=patient, one_bag=bool(part))
        if prediction.target_kind == "class":
            return found
        known = safe_text(case_words(prediction).truth, _LONGEST_PROMISE)
        return replace(found, words=facts["words"], true_words=known, value=facts["value"], error=facts["error"])

    def placed(self, values: Sequence[float]) -> "_ModelScores":
        """With its place among the predicted risks of all cases of the model, where it is one."""
        if self.words is None or not self.words.startswith("risk ") or self.value is None or len(values) < 2:
            return self
        return replace(self, words=with_place(self.words, self.value, values))

    def load(self) -> Prediction:
        """Load the prediction; an error when the file has changed since the start, since the list shows the first."""
        prediction = Prediction.load(self.file)
        if _content(prediction) != self.content:
            raise DataError(f"{self.file}: the prediction has changed since smmil view was started; start it again")
        return prediction.layer(self.layer)


@dataclass(frozen=True)
class _CaseRow:
    """A row of the list of cases; `by_model` has one entry per model, None where a model lacks the case."""

    id: str
    kind: str
    instances: int
    by_model: tuple[_ModelScores | None, ...]
    label: int | None = None
    truth: bool = False
    original: Original | None = None
    features: Path | None = None
    patient: str | None = None  # first id of the cases of its patient, where the list is one of patients
    true_words: str | None = None  # of a target that is no class

    @property
    def image(self) -> Path | None:
        """The slide or scan of the case; None: not at hand."""
        return None if self.original is None else self.original.path

    @property
    def title(self) -> str:
        """The id as one printable line, never cut: two long ids may differ at their ends."""
        return safe_text(self.id, max(len(self.id), 1))


@dataclass(frozen=True)
class _Catalogue:
    """Models and cases, and messages about files left out: for the page, and with file names for the terminal."""

    models: list[_Model]
    cases: list[_CaseRow]
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass
class _ModelPredictions:
    """Facts collected from the predictions of one model."""

    name: str
    layer: str = "score"
    ends: tuple[str, str] = ("", "")
    found: dict[str, _ModelScores] = field(default_factory=dict)
    scores: list[np.ndarray] = field(default_factory=list)
    kinds: dict[str, None] = field(default_factory=dict)
    damaged: list[DataError] = field(default_factory=list)
    calibrations: dict[str | None, AppliedCalibration | None] = field(default_factory=dict)
    layers: dict[str, "_ModelPredictions"] = field(default_factory=dict)  # maps beside that of the scores, where held
    taught: dict[str, None] = field(default_factory=dict)
    compared: list[Prediction] = field(default_factory=list)  # what the test of drift needs of every case

    def add(self, file: Path, column: int | None) -> None:
        try:
            prediction = Prediction.load(file)
        except DataError as problem:
            self.damaged.append(problem)
            return
        if prediction.id in self.found:
            raise DataError(f"{file}: id {prediction.id!r} is already in {self.found[prediction.id].file}; remove one")
        stated, drift = applied_calibration(prediction), applied_drift(prediction)
        stated = None if stated is None or stated.column != column else stated
        found = _ModelScores.of(prediction, file)
        alarm = None if drift is None or not drift.alarm else drift.text
        withdrawn = None if stated is None or alarm is None else safe_text(stated.text, _LONGEST_PROMISE)
        said = calibrated_case(prediction, stated)
        self.found[prediction.id] = replace(found, drift=alarm, promise=withdrawn, said=said)
        for layer in prediction.layers:
            title, ends = f"{self.name} {layer.name}", (layer.low, layer.high)
            beside = self.layers.setdefault(layer.name, _ModelPredictions(title, layer.name, ends))
            beside.found[prediction.id] = replace(found, layer=layer.name, probability=None, outcome=None, words=None)
            beside.scores.append(getattr(prediction, layer.name).astype(np.float32))
            beside.kinds[layer.kind] = None
        self.scores.append(instance_score(prediction, column).astype(np.float32))
        self.kinds[safe_text(prediction.meta.get("score_kind", "score"), 60)] = None
        if (text := corrections_text(prediction.meta.get("corrections"))) is not None:
            self.taught[text] = None
        if stated is None or alarm is None or stated.digest not in self.calibrations:
            self.calibrations[None if stated is None else stated.digest] = stated
        self.compared.append(drift_facts(prediction))

    @cached_property
    def drift(self) -> FolderDrift | None:
        """The test of all cases together."""
        return folder_drift(self.compared)

    def model(self, drift: FolderDrift | None) -> _Model:
        """The spread of all scores, which are not needed afterwards."""
        scores = np.concatenate(self.scores).astype(np.float64)
        self.scores.clear()
        span = float(scores.min()), float(scores.max())
        one = next(iter(self.calibrations.values())) if len(self.calibrations) == 1 else None
        text = "" if one is None else one.text
        if drift is not None and drift.alarm:
            text = drift.withdrawal
        promise = None if one is None else safe_text(text, _LONGEST_PROMISE)
        threshold = None if one is None else one.threshold
        colours, kinds = canvas.limits_of(scores, FIXED_SCALES.get(self.layer))[:2], " + ".join(self.kinds)
        taught = "; ".join(self.taught) or None
        return _Model(self.name, kinds, span, colours, threshold, promise, self.layer, self.ends, taught, drift)

    def note(self) -> str:
        """For the page, without names of files: these may name people."""
        count = len(self.damaged)
        what = "prediction that cannot be read was" if count == 1 else "predictions that cannot be read were"
        return f"{count} {what} left out of {self.name}; the terminal smmil view was started from says which"


def _read_catalogue(
    places: Sequence[str | Path],
    column: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    by: str = "case",
) -> _Catalogue:
    """Models and cases of runs and folders of predictions; every file is read once, one at a time.

    by  patient: cases are grouped by patient; those that are parts of one bag always are

    A file that cannot be read is left out with a message; only when none is left is that an error.
    """
    sources = find_sources(places)  # as `smmil report` finds them
    found = [
        (_ModelPredictions(safe_text(name)), [f for place in where for f in prediction_files(place)])
        for name, where, _ in sources
    ]
    total, done = sum(len(files) for _, files in found), 0
    models: list[_Model] = []
    gathered: list[_ModelPredictions] = []
    for table, files in found:
        for file in files:
            table.add(file, column)
            done += 1
            if progress is not None:
                progress(done, total)
        shown = [one for one in (table, *table.layers.values()) if one.found]
        values = [one.value for one in table.found.values() if one.value is not None]
        table.found = {id_: one.placed(values) for id_, one in table.found.items()}
        models += [one.model(table.drift) for one in shown]
        gathered += shown
    problems = [problem for table, _ in found for problem in table.damaged]
    if not gathered and problems:
        raise problems[0]
    ids = sorted({id_ for table in gathered for id_ in table.found})
    notes = tuple(table.note() for table, _ in found if table.damaged)
    alarms = tuple(
        f"{table.name}: {one.text}" for table, _ in found if (one := table.drift) and one.alarmed + one.alarm
    )
    rows = _grouped([_row(id_, gathered) for id_ in ids], by)
    return _Catalogue(models, rows, notes, alarms, tuple(map(str, problems)))


def _grouped(rows: Sequence[_CaseRow], by: str) -> list[_CaseRow]:
    """The rows with the first id of their patient's cases, where they are to be grouped."""
    known = [next((s for s in row.by_model if s is not None and s.patient is not None), None) for row in rows]
    wanted = [s is not None and (by == "patient" or s.one_bag) for s in known]
    first: dict[str | None, str] = {}
    for row, scores in zip(rows, known, strict=True):
        if scores is not None:
            first.setdefault(scores.patient, row.title)
    both = zip(rows, known, wanted, strict=True)
    return [replace(row, patient=first[s.patient]) if chosen and s is not None else row for row, s, chosen in both]


def _layout(prediction: Prediction) -> str:
    coords = prediction.coords
    places = b"" if coords is None else np.ascontiguousarray(coords, dtype="<f8").tobytes()
    frame = "" if prediction.frame is None else str(prediction.frame.patch)
    return digest(f"{prediction.n}", places, frame)


def _content(prediction: Prediction) -> str:
    """Digest of everything in a prediction."""
    more = [getattr(prediction, layer.name) for layer in LAYERS]
    arrays = (prediction.probs, prediction.scores, prediction.y_inst, prediction.edges, *more)
    parts = [b"-" if a is None else f"{a.dtype}{a.shape}".encode() + np.ascontiguousarray(a).tobytes() for a in arrays]
    known = [repr(what) for what in (prediction.target, prediction.value) if what is not None]
    facts = json.dumps([prediction.id, prediction.y, prediction.meta, *known], sort_keys=True)
    frame = None if prediction.frame is None else prediction.frame.to_dict()
    return digest(_layout(prediction), facts, json.dumps(frame), *parts)


def _row(id_: str, gathered: Sequence[_ModelPredictions]) -> _CaseRow:
    found = [table.found.get(id_) for table in gathered]
    known = [scores for scores in found if scores is not None]
    first = known[0]
    by_model = [None if s is None else replace(s, mapped=s.layout == first.layout) for s in found]
    label = next((s.label for s in known if s.label is not None), None)
    truth = any(s.truth for s in by_model if s is not None and s.mapped)
    words = next((s.true_words for s in known if s.true_words is not None), None)
    return _CaseRow(id_, first.kind, first.instances, tuple(by_model), label, truth, true_words=words)
