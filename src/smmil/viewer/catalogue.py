"""The tables behind every address: models and cases by number, made once at the start."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.instances import instance_score
from smmil.files import digest
from smmil.images.matching import Original
from smmil.maps import canvas
from smmil.maps.raster import scattered
from smmil.prediction import Prediction, prediction_files
from smmil.redact import safe_text
from smmil.report.cases import verdict
from smmil.report.sources import find_sources

_OUTCOMES = {(1, 1): "true positive", (1, 0): "false negative", (0, 1): "false positive", (0, 0): "true negative"}


@dataclass(frozen=True)
class Model:
    """A model by the name of its folder, and the spread of its scores over all its cases."""

    name: str
    score_kind: str = "score"
    span: tuple[float, float] = (0.0, 1.0)
    colours: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class ModelScores:
    """What one model said about one case, in few words; the scores stay in the file.

    shown    False when its instances are others than those of the case's first model: one map cannot show both
    content  digest of all that the file said at the start
    """

    file: Path
    probability: float
    outcome: str | None
    layout: str
    content: str
    shown: bool = True

    def load(self) -> Prediction:
        """The prediction again; an error when the file has become another one, since the list shows the first."""
        prediction = Prediction.load(self.file)
        if _content(prediction) != self.content:
            raise DataError(f"{self.file}: the prediction has changed since smmil view was started; start it again")
        return prediction


@dataclass(frozen=True)
class CaseRow:
    """A case as the list shows it; `said` has one place per model."""

    id: str
    kind: str
    instances: int
    said: tuple[ModelScores | None, ...]
    label: int | None = None
    truth: bool = False
    original: Original | None = None
    features: Path | None = None

    @property
    def image(self) -> Path | None:
        """The slide or scan of the case; None: not at hand."""
        return None if self.original is None else self.original.path

    @property
    def title(self) -> str:
        """The id as one printable line, never cut: two long ids may differ at their ends."""
        return safe_text(self.id, max(len(self.id), 1))


@dataclass(frozen=True)
class Catalogue:
    """Models and cases, what page and terminal are told about files left out, the latter with their names."""

    models: list[Model]
    cases: list[CaseRow]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass
class _Gathered:
    """What is kept of the predictions of one model while they pass by."""

    said: dict[str, ModelScores] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    scores: list[np.ndarray] = field(default_factory=list)
    kinds: dict[str, None] = field(default_factory=dict)
    damaged: list[DataError] = field(default_factory=list)


def read_catalogue(
    places: Sequence[str | Path], column: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Catalogue:
    """Models and cases of runs and folders of predictions; every file is read once, one at a time, and let go.

    A file that cannot be read is left out and told; only when none is left is that an error.
    """
    found = list(_named_files(places))
    total, done = sum(len(files) for _, files in found), 0
    models, gathered, damaged = [], [], {}
    for name, files in found:
        table = _Gathered()
        for file in files:
            _gather(table, file, column)
            done += 1
            if progress is not None:
                progress(done, total)
        damaged[name] = table.damaged
        if table.said:
            models.append(_model(name, table))
            gathered.append(table)
    problems = [problem for several in damaged.values() for problem in several]
    if not models and problems:
        raise problems[0]
    ids = sorted({id_ for table in gathered for id_ in table.said})
    notes = [_left_out(name, len(several)) for name, several in damaged.items() if several]
    return Catalogue(models, [_row(id_, gathered) for id_ in ids], tuple(notes), tuple(map(str, problems)))


def kind_of(prediction: Prediction) -> str:
    """slide: patches on a lattice; points: places on none; scan: slices, or boxes in them; none: no places at all."""
    if prediction.coords is None:
        return "none"
    axes = prediction.coords.shape[1]
    if axes == 2:
        return "points" if prediction.frame is None or scattered(prediction) else "slide"
    return "scan" if axes in (1, 3) else "none"


def colour_limits(scores: np.ndarray) -> tuple[float, float]:
    """Ends of the colour scale: 2nd and 98th percentile, as in the report and in the pictures."""
    return canvas.limits_of(scores, None)[:2]


def _named_files(places: Sequence[str | Path]) -> Iterator[tuple[str, list[Path]]]:
    """Name and files of each model, found as `smmil report` finds them."""
    for name, where, _ in find_sources(places):
        yield safe_text(name), [file for place in where for file in prediction_files(place)]


def _gather(table: _Gathered, file: Path, column: int | None) -> None:
    try:
        prediction = Prediction.load(file)
    except DataError as problem:
        table.damaged.append(problem)
        return
    if prediction.id in table.said:
        raise DataError(f"{file}: id {prediction.id!r} is already in {table.said[prediction.id].file}; remove one")
    _note(table, prediction, file, column)


def _left_out(model: str, count: int) -> str:
    """For the page, without names of files: these may name people."""
    what = "prediction that cannot be read was" if count == 1 else "predictions that cannot be read were"
    return f"{count} {what} left out of {model}; the terminal smmil view was started from says which"


def _note(table: _Gathered, prediction: Prediction, file: Path, column: int | None) -> None:
    answer = verdict(prediction)
    y = prediction.y
    outcome = _outcome(y, answer["answer"], prediction)
    table.said[prediction.id] = ModelScores(file, answer["p"], outcome, _layout(prediction), _content(prediction))
    table.facts[prediction.id] = {
        "kind": kind_of(prediction),
        "instances": prediction.n,
        "label": y,
        "truth": prediction.y_inst is not None and bool((prediction.y_inst >= 0).any()),
    }
    table.scores.append(instance_score(prediction, column).astype(np.float32))
    table.kinds[safe_text(prediction.meta.get("score_kind", "score"), 60)] = None


def _outcome(y: int | None, answer: int, prediction: Prediction) -> str | None:
    if y is None:
        return None
    return _OUTCOMES[y, answer] if prediction.n_classes == 2 else ("correct" if y == answer else "wrong")


def _layout(prediction: Prediction) -> str:
    """Equal for predictions whose instances are the same, in the same order."""
    coords = prediction.coords
    places = b"" if coords is None else np.ascontiguousarray(coords, dtype="<f8").tobytes()
    frame = "" if prediction.frame is None else str(prediction.frame.patch)
    return digest(f"{prediction.n}", places, frame)


def _content(prediction: Prediction) -> str:
    """Equal for predictions that say the same about the same case."""
    arrays = (prediction.probs, prediction.scores, prediction.y_inst, prediction.edges)
    told = [b"-" if a is None else f"{a.dtype}{a.shape}".encode() + np.ascontiguousarray(a).tobytes() for a in arrays]
    facts = json.dumps([prediction.id, prediction.y, prediction.meta], sort_keys=True)
    frame = None if prediction.frame is None else prediction.frame.to_dict()
    return digest(_layout(prediction), facts, json.dumps(frame), *told)


def _model(name: str, table: _Gathered) -> Model:
    scores = np.concatenate(table.scores).astype(np.float64)
    table.scores.clear()
    span = float(scores.min()), float(scores.max())
    return Model(name, " + ".join(table.kinds), span, colour_limits(scores))


def _row(id_: str, gathered: Sequence[_Gathered]) -> CaseRow:
    said = [table.said.get(id_) for table in gathered]
    layout = next(s.layout for s in said if s is not None)
    placed = [s if s is None or s.layout == layout else ModelScores(**{**vars(s), "shown": False}) for s in said]
    facts = [table.facts[id_] for table in gathered if id_ in table.facts]
    usable = [f for f, s in zip(facts, filter(None, placed), strict=True) if s.shown]
    label = next((f["label"] for f in facts if f["label"] is not None), None)
    first = facts[0]
    truth = any(f["truth"] for f in usable)
    return CaseRow(id_, first["kind"], first["instances"], tuple(placed), label, truth)
