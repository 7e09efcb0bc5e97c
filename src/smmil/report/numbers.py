"""Metrics of a report with intervals, which model leads, and whether values may be compared."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.errors import DataError
from smmil.evaluate.bags import is_labelled
from smmil.evaluate.bootstrap import add_intervals, shortage_of, threshold_for
from smmil.evaluate.folders import summarize_models
from smmil.evaluate.instances import POOLS, has_lesion_labels
from smmil.evaluate.levels import froc
from smmil.evaluate.metrics import Level, PooledMetric, metrics_of, registered
from smmil.evaluate.resampling import RESAMPLES, missing_text
from smmil.files import need_file
from smmil.images.tiff_slide import check_picture
from smmil.prediction import Prediction

Models = Mapping[str, Sequence[Prediction]]
Results = dict[str, dict[str, Any]]
CASES, INSTANCES = "Is it there? (whole cases)", "Where is it? (instances)"
SMOOTH = "How smooth are the maps?"
_LABELS, _TIMES = "Each label (whole cases)", "Events until a time (whole cases)"
_QUESTIONS = {
    "ordinal": "Which level? (whole cases)",
    "regression": "How much? (whole cases)",
    "survival": "Who is at risk? (whole cases)",
    "cox": "Who is at risk? (whole cases)",
}
_TIME_ROWS = (
    ("auroc", "AUROC", 1),
    ("brier", "Brier score ↓", -1),
    ("predicted", "mean predicted probability", 0),
    ("observed", "observed share (Kaplan–Meier)", 0),
)
POSITION = "Is it more than position? (instance AUROC)"
_PRIOR_ROWS = (
    ("per_bag", "model", "The map, within cases"),
    ("per_bag", "truth", "Where lesions of other patients lie, within cases"),
    ("per_bag", "difference", "… the map is better by, within cases"),
    ("per_bag", "own", "The model's own mean map of other patients, within cases"),
    ("per_bag", "own_difference", "… the map is better by, within cases"),
    ("per_bag", "residual", "The map minus its own mean map, within cases"),
    ("positive_bags", "truth", "Where lesions of other patients lie, positive cases"),
    ("positive_bags", "difference", "… the map is better by, positive cases"),
    ("all", "truth", "Where lesions of other patients lie, all cases"),
    ("all", "difference", "… the map is better by, all cases"),
)


@dataclass(frozen=True)
class _Row:
    """A row of a report: group heading, name, path of the value in the results, measure of the interval, direction;
    counted: the measure, also where it has no interval, by which a shortage of patients is known.
    """

    group: str
    name: str
    path: tuple[str, ...]
    interval: str | None = None
    better: int = 1
    counted: str | None = None

    def value(self, found: Mapping[str, Any]) -> float | None:
        """The number in the results of a model; None when it was not measured or is undefined."""
        inside: Any = found
        for key in self.path:
            inside = inside.get(key) if isinstance(inside, Mapping) else None
        return inside if isinstance(inside, float | int) and inside == inside else None

    def known(self, found: Mapping[str, Any]) -> bool:
        """Whether the results have a place for it, also where it is undefined."""
        inside: Any = found
        for key in self.path:
            if not isinstance(inside, Mapping) or key not in inside:
                return False
            inside = inside[key]
        return True

    def withheld(self, found: Mapping[str, Any]) -> str:
        """Why a number that could be computed is not shown, in few words; empty: nothing is held back."""
        return str(found["bag"].get("withheld", {}).get(self.path[1], "")) if self.path[0] == "bag" else ""

    def _interval(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.path[0] != "prior":
            return found.get("ci", {}).get(self.interval, {}) if self.interval else {}
        inside = found.get("prior", {}).get(self.path[1], {})
        if f"{self.path[2]}_low" not in inside:
            return {}
        ends = {end: inside.get(f"{self.path[2]}_{end}", math.nan) for end in ("low", "high")}
        return {**ends, "shortage": inside.get("shortage", "")}

    def ends(self, found: Mapping[str, Any]) -> tuple[float, float] | None:
        """Ends of the 95 % interval, None where there is none."""
        low, high = (self._interval(found).get(end, math.nan) for end in ("low", "high"))
        return None if low != low or high != high else (low, high)

    def shortage(self, found: Mapping[str, Any]) -> str:
        """What there is too little of for the number to say much; empty where there is enough."""
        asked = self._interval(found) or {"shortage": found.get("shortages", {}).get(self.counted, "")}
        return str(asked.get("shortage", "") or self._until(found).get("shortage", ""))

    def _until(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Who was followed until the time of the row, where it is a score at a time."""
        scored = self.path[:2] == ("bag", "times") and self.path[-1] in ("auroc", "brier")
        return found["bag"].get("times", {}).get(self.path[2], {}) if scored else {}

    def without_interval(self, found: Mapping[str, Any]) -> str:
        """What stands in place of an interval: why the number is held back, "– (3 patients)", a dash where all
        resamples are alike, how many were followed; or nothing.
        """
        if self.withheld(found) or self.value(found) is None:
            return self.withheld(found)
        if self.shortage(found) or self._interval(found):
            return missing_text(self.shortage(found))
        until = self._until(found)
        return f"{until['n_events']:,} with, {until['n_without']:,} without an event" if until else ""


def _cases_heading(target: str) -> str:
    """What the metrics of whole cases ask, for a kind of target."""
    return _QUESTIONS.get(target, CASES)


def _target_of(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The kind of target of these results."""
    return next((str(found["bag"].get("target", "class")) for found in results.values()), "class")


def _metric_rows(target: str = "class") -> list[_Row]:
    """Rows of a report from the registry of metrics: cases, instances, lesions, the position prior, then energies."""
    heading = _cases_heading(target)
    groups: dict[Level, str] = {"bag": heading, "instance": INSTANCES, "lesion": INSTANCES, "energy": SMOOTH}
    known = [metric for level in groups for metric in metrics_of(level, target) if not metric.same_as]
    metrics = [(group, m) for level, group in groups.items() for m in known if (m.listed or m.level) == level]
    rows = []
    for (group, metric), pool in ((entry, pool) for entry in metrics for pool in entry[1].pools):
        name = metric.with_pool(metric.title or metric.label, pool) + (" ↓" if metric.direction < 0 else "")
        paths = {"instance": ("instance", pool), "lesion": ("froc",)}
        measure = PooledMetric(metric.name, pool).label
        path = (*paths.get(metric.level, (metric.level,)), metric.key)
        rows.append(_Row(group, name, path, measure if metric.interval else None, metric.direction, measure))
    beside = [_Row(POSITION, name, ("prior", pool, key), better=0) for pool, key, name in _PRIOR_ROWS]
    smooth = next((place for place, row in enumerate(rows) if row.group == SMOOTH), len(rows))
    return rows[:smooth] + beside + rows[smooth:]


def _part_rows(results: Mapping[str, Mapping[str, Any]]) -> list[_Row]:
    """Rows of each label and of each time, where the target has them."""
    parts = {key: _names(results, key) for key in ("labels", "times")}
    rows = [
        _Row(_LABELS, f"{name}: {m.title or m.label}", ("bag", "labels", name, m.key), f"{m.name}:{name}")
        for name in parts["labels"]
        for m in metrics_of("bag", "multilabel")
    ]
    return rows + [
        _Row(_TIMES, f"Until {float(time):.4g}: {words}", ("bag", "times", time, key), better=better)
        for time in parts["times"]
        for key, words, better in _TIME_ROWS
    ]


def _names(results: Mapping[str, Mapping[str, Any]], part: str) -> list[str]:
    return list(dict.fromkeys(name for found in results.values() for name in found["bag"].get(part, {})))


def _all_rows(results: Mapping[str, Mapping[str, Any]]) -> list[_Row]:
    """Rows of a report about these results: those of whole cases, of their labels or times, then of instances."""
    rows, target = _metric_rows(_target_of(results)), _target_of(results)
    whole = [row for row in rows if row.group == _cases_heading(target)]
    return whole + _part_rows(results) + [row for row in rows if row not in whole]


def _measure(
    models: Models,
    *,
    validation: Sequence[str | Path] = (),
    threshold: float | None = None,
    column: int | None = None,
    resamples: int = RESAMPLES,
    reference: Sequence[Prediction] | None = None,
) -> Results:
    """Summary, FROC with its curve, and intervals of each model; patients are resampled. resamples=0: no intervals.

    reference  cases that the position prior is made of; None: the other patients among those of each model
    """
    prior = {"intervals": POOLS if resamples else (), "n": max(2, resamples), "reference": reference}
    results = summarize_models(models, validation=validation, threshold=threshold, column=column, prior=prior)
    for name, found in results.items():
        if any(has_lesion_labels(p) for p in models[name]):
            found["froc"] = froc(models[name], column=column)
        if resamples:
            measures = _possible(models[name], found)
            add_intervals({name: found}, {name: models[name]}, measures, n=resamples, column=column)
            found["shortages"] = _shortages(models[name], found, column)
    return results


def _shortages(predictions: Sequence[Prediction], found: dict[str, Any], column: int | None) -> dict[str, str]:
    """What there is too little of, for the numbers that have no interval in a report."""
    rows = [row for row in _all_rows({"": found}) if row.counted and not row.interval and row.value(found) is not None]
    measures = [PooledMetric.parse(row.counted) for row in rows if row.counted]
    cuts = [threshold_for(measure, found) for measure in measures]
    return {m.label: shortage_of(predictions, m, cut, column) for m, cut in zip(measures, cuts, strict=True)}


def _possible(predictions: Sequence[Prediction], found: dict[str, Any]) -> list[str]:
    """Measures for which there are labels, and a threshold where one is needed."""
    wanted = [PooledMetric.parse(row.interval) for row in _all_rows({"": found}) if row.interval]
    judged: dict[Level, bool] = {
        "bag": any(is_labelled(p) for p in predictions),
        "instance": found["instance"]["all"]["n_instances"] > 0,
        "lesion": found.get("froc", {}).get("n_lesions", 0) > 0,
        "energy": any(p.edges is not None for p in predictions),
    }
    kept = [one for one in wanted if judged[registered(one.metric).level]]
    return [one.label for one in kept if not one.needs_threshold or found["threshold"]["value"] is not None]


def _remarks(results: Results) -> list[str]:
    """Every note of the numbers once, with the models it belongs to."""
    models_of: dict[str, list[str]] = {}
    for model, found in results.items():
        parts = [
            found["bag"],
            *found["instance"].values(),
            found["energy"],
            found.get("froc", {}),
            found.get("prior", {}),
            *({"notes": [f"uncertainty {worth['verdict']}"]} for worth in [found.get("uncertainty")] if worth),
        ]
        for part in [*parts, *found.get("ci", {}).values(), found]:
            for note in part.get("notes", []):
                if model not in models_of.setdefault(note, []):
                    models_of[note].append(model)
    every = len(results)
    return [note if len(who) == every else f"{', '.join(who)}: {note}" for note, who in models_of.items()]


def _other_cases(models: Models) -> str | None:
    """Why numbers about whole cases cannot be compared: other cases, labels or classes; None: they can."""
    tables = [{p.id: p for p in predictions} for predictions in models.values()]
    shared = set.intersection(*(set(table) for table in tables))
    largest = max(len(table) for table in tables)
    if any(len(table) != len(shared) for table in tables):
        return f"the models were not given the same cases ({len(shared):,} of at most {largest:,} in common)"
    if len({predictions[0].target_kind for predictions in models.values()}) > 1:
        return "the models do not predict the same kind of target"
    changed = sum(len({_truth(table[id_]) for table in tables}) > 1 for id_ in shared)
    if changed:
        return f"{changed:,} of {len(shared):,} cases have another label in another model's predictions"
    if len({predictions[0].n_classes for predictions in models.values()}) > 1:
        return "the models do not tell the same number of classes apart"
    return None


def _truth(prediction: Prediction) -> tuple[int | None, str]:
    """What is known of a case, to be compared between models."""
    return prediction.y, "" if prediction.target is None else str(prediction.target.tolist())


def _other_instances(models: Models) -> str | None:
    """Why numbers about instances cannot be compared: other cases, or other instances in them; None: they can."""
    reason = _other_cases(models)
    if reason is not None:
        return reason
    cases = zip(*(sorted(predictions, key=lambda p: p.id) for predictions in models.values()), strict=True)
    changed = sum(len({_content(p) for p in same}) > 1 for same in cases)
    if changed:
        return f"{changed:,} cases have other instances or instance labels in another model's predictions"
    return None


def _content(prediction: Prediction) -> tuple[int, int, int]:
    """Number of instances, of those with a known label, and of positive ones; their order does not matter."""
    labels = prediction.y_inst
    if labels is None:
        return prediction.n, 0, 0
    return prediction.n, int((labels >= 0).sum()), int((labels > 0).sum())


_POOLS = {
    "all": "instances of all cases together",
    "positive_bags": "instances of positive cases together",
    "per_bag": "each case by itself, then averaged",
}
_DECIDING = ("auroc", "f1")
_SIZES = ("n", "n_positive", "n_bags", "n_bags_used", "n_instances")


@dataclass(frozen=True)
class Picture:
    """A PNG file to embed; `alt` says in words what it shows."""

    path: str | Path
    caption: str
    alt: str

    @property
    def source(self) -> str:
        """The file as a data URL."""
        return f"data:image/png;base64,{base64.b64encode(self._content()).decode()}"

    @property
    def width(self) -> int:
        return int.from_bytes(self._content()[16:20])

    @property
    def height(self) -> int:
        return int.from_bytes(self._content()[20:24])

    def _content(self) -> bytes:
        path = Path(self.path)
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: is no regular file; draw the picture again")
        try:
            data = need_file(path).read_bytes()
        except OSError as problem:
            raise DataError(f"{path}: picture cannot be read ({problem.strerror}); draw it again") from None
        if len(data) < 24 or not data.startswith(b"\x89PNG\r\n\x1a\n"):
            raise DataError(f"{path}: not a PNG picture; draw it again")
        try:
            check_picture(path, "PNG")
        except DataError as problem:
            raise DataError(f"{path}: {problem}") from None
        return data


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, a list and pictures below it, in this order; text between backquotes is code."""

    title: str
    paragraphs: Sequence[str] = ()
    items: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    ordered: bool = False


def leaders(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How often each model leads, then one sentence per deciding metric: the leader and its margin, or a tie."""
    sentences, wins, unfair = [], dict.fromkeys(results, 0), 0
    for words, values, fair in _comparable_metrics(results):
        if not fair:
            unfair += 1
            sentences.append(f"{words}: not comparable, the models were not measured on the same.")
            continue
        first, second = sorted(values, key=lambda name: -round(values[name], 3))[:2]
        gap = round(round(values[first], 3) - round(values[second], 3), 3)
        if gap:
            wins[first] += 1
            outcome = f"{first} leads with {values[first]:.3f}, {gap:.3f} before {second} ({values[second]:.3f})."
        else:
            outcome = f"{first} and {second} are equal to three digits ({values[first]:.3f})."
        sentences.append(f"{words}: {outcome}")
    if not sentences:
        return []
    counts = ", ".join(f"{model} leads in {count}" for model, count in wins.items())
    ties = len(sentences) - sum(wins.values()) - unfair
    more = f", {unfair} are not comparable" if unfair else ""
    return [f"Of {len(sentences)} comparisons {counts}; {ties} are ties{more}.", *sentences]


def _comparable_metrics(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, float], bool]]:
    """Deciding metrics for which at least two models have a value, and whether these may be compared."""
    cases = {name: found.get("bag") or {} for name, found in results.items()}
    parts = {words: {name: _pool(found, pool) for name, found in results.items()} for pool, words in _POOLS.items()}
    contests = []
    for words, measured in {"whole cases": cases, **parts}.items():
        fair = _comparable(cases) and _comparable(measured)
        for key in _DECIDING:
            values = {name: metrics[key] for name, metrics in measured.items() if metrics.get(key) is not None}
            values = {name: float(value) for name, value in values.items() if not math.isnan(value)}
            contests.append((f"{key.upper()}, {words}", values, fair))
    return [contest for contest in contests if len(contest[1]) > 1]


def _comparable(found: Mapping[str, Any]) -> bool:
    """Whether all models were measured on as many cases and instances, and no note says that they differ."""
    measured = [metrics for metrics in found.values() if metrics]
    sizes = {tuple(metrics.get(key) for key in _SIZES) for metrics in measured}
    return len(sizes) < 2 and not any("not comparable" in note for m in measured for note in m.get("notes", []))


def _pool(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Instance metrics of a pool, empty where not measured; results may also hold those of a single pool."""
    metrics = found.get("instance") or {}
    pools = metrics if any(pool in metrics for pool in _POOLS) else {metrics.get("pool", "all"): metrics}
    return pools.get(name) or {}
