"""The trust report of a study: five questions to every map, answered from its runs and a few more."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smmil.data.manifest import Manifest
from smmil.errors import DataError
from smmil.evaluate.average import exact_mean
from smmil.experiments.datasets import Ready, prepare
from smmil.experiments.derived import POSITIONS, RANDOM, positions_only, random_labels
from smmil.experiments.faithfulness import deletion_insertion
from smmil.experiments.results import chosen_rows
from smmil.experiments.runner import Place, load_results, run_study
from smmil.experiments.stability import inside_positives, inverted_maps, map_stability
from smmil.experiments.study import Dataset, Study, headline
from smmil.experiments.writing import for_spreadsheets, piped
from smmil.files import write_text
from smmil.predict import load_run
from smmil.prediction import load_predictions

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_TITLE = "Can the maps be trusted?"
_MOST_CASES = 20  # of a data set in deletion and insertion: each is predicted some thirty times
_HEADINGS = {
    "stability": "same map from another seed",
    "inside": "AUROC inside positive cases",
    "inside_lowest": "(lowest run)",
    "positions_inst": "(positions only)",
    "inverted_runs": "inverted runs",
    "deletion": "deletion",
    "deletion_random": "(random)",
    "insertion": "insertion",
    "insertion_random": "(random)",
    "bag_auroc": "bag AUROC",
    "positions_bag": "(positions only)",
    "random_labels": "(random labels)",
}


def trust_report(
    study: Study,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    executor: str = "serial",
    workers: int | None = None,
    resamples: int = 1000,
) -> list[Path]:
    """trust.csv and trust.md for every data set and variant of a study whose runs are done.

    Trains each variant twice more for each data set: on labels dealt out at random and on positions alone, with the
    first seed, fold and learning rate.
    """
    place = Place(Path(out), study.name)
    results = load_results(study, out, only=only)
    if not len(results):
        raise DataError(f"{place.own}: no run is done yet; begin with smmil experiment run")
    chosen = chosen_rows(results)
    used = [d for d in study.datasets if d.name in set(chosen["set"])]
    ready = {d.name: prepare(d, place.out / "data") for d in used}
    extra = _extra_results(study, place, [(d, ready[d.name]) for d in used], executor, workers)
    rows: list[dict[str, Any]] = []
    for (set_, variant), part in chosen.groupby(["set", "variant"], sort=True):
        answers = _answers(part, Manifest.read(ready[str(set_)].manifest), place, resamples)
        rows.append({"set": set_, "variant": variant, **answers, **_extra(extra, place, set_, variant)})
    order = [v.name for v in study.variants]
    rows.sort(key=lambda row: (row["set"], order.index(row["variant"])))
    return _write(rows, place.own, headline(study, _TITLE))


def _answers(rows: "DataFrame", table: Manifest, place: Place, resamples: int) -> dict[str, Any]:
    """What the runs of one variant on one data set say about its maps.

    table  the data set where it lies now; the settings of a run name the place where it lay when it was trained
    """
    first = rows.sort_values(["fold", "seed"])
    seeds = first[first["fold"] == first["fold"].iloc[0]]
    runs = [load_predictions(place.run(key) / "test") for key in seeds["run"]]
    folder = place.run(first["run"].iloc[0]) / "train"
    model, _ = load_run(folder)
    positive = [p.id for p in runs[0] if p.y][:_MOST_CASES]
    every = [load_predictions(place.run(key) / "test") for key in first["run"]]
    return {
        **map_stability(runs),
        **inverted_maps(every, n=resamples),
        **deletion_insertion(model, [table.bag(id_) for id_ in positive]),
        "bag_auroc": exact_mean(rows["bag_auroc"].tolist()),
    }


def _extra_results(
    study: Study, place: Place, sets: list[tuple[Dataset, Ready]], executor: str, workers: int | None
) -> "DataFrame":
    """Results of the runs on random labels and on positions only."""
    derived: list[Dataset] = []
    for dataset, ready in sets:
        derived.append(random_labels(dataset, ready, place.out / "data"))
        derived.append(positions_only(dataset, ready, place.out / "data"))
    smaller = {"folds": [0], "seeds": study.seeds[:1], "learning_rates": study.learning_rates[:1]}
    name = f"{study.name}-trust"
    further = study.model_copy(update={"name": name, "datasets": derived, "tables": [], "figures": [], **smaller})
    report = run_study(further, place.out, executor=executor, workers=workers)
    if report.failed:
        label, reason = next(iter(report.failed.items()))
        raise DataError(f"{len(report.failed)} runs of the trust report failed, such as {label}: {reason}")
    return load_results(further, place.out)


def _extra(extra: "DataFrame", place: Place, set_: Any, variant: Any) -> dict[str, float]:
    """The numbers of the further trainings, measured as those of the model itself."""

    def of(kind: str) -> "Series":
        return extra[(extra["set"] == f"{set_} ({kind})") & (extra["variant"] == variant)].iloc[0]

    return {
        "random_labels": float(of(RANDOM)["bag_auroc"]),
        "positions_bag": float(of(POSITIONS)["bag_auroc"]),
        "positions_inst": inside_positives(load_predictions(place.run(of(POSITIONS)["run"]) / "test")),
    }


def _write(rows: list[dict[str, Any]], folder: Path, title: str) -> list[Path]:
    from pandas import DataFrame

    write_text(folder / "trust.csv", for_spreadsheets(DataFrame(rows)))
    write_text(folder / "trust.md", trust_markdown(rows, title))
    return [folder / "trust.csv", folder / "trust.md"]


def trust_markdown(rows: Sequence[dict[str, Any]], title: str = _TITLE) -> str:
    """The answers as a table to read, with an alarm for every inverted map."""
    heads = ["data set", "model", *_HEADINGS.values()]
    lines = [f"## {title}", "", f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * len(_HEADINGS)}"]
    for row in rows:
        cells = [_shown(row[key]) for key in _HEADINGS]
        lines.append(f"| {piped(row['set'])} | {piped(row['variant'])} | {' | '.join(cells)} |")
    alarms = [
        f"- **Inverted map**: {r['variant']} on {r['set']} is high on the wrong side in {r['inverted_runs']} runs."
        for r in rows
        if r["inverted"]
    ]
    return "\n".join([*lines, "", *alarms, *(f"- {note}" for note in _READING), ""])


_READING = (
    "same map from another seed: mean rank correlation of instance scores; 1 is the same order, – means one seed only",
    "AUROC inside positive cases: instances are compared within their own case, positive cases are averaged; mean and "
    "lowest over folds and seeds; a run whose whole 95 % interval lies below 0.5 has an inverted map",
    "deletion should be below its random order, insertion above: then the scores show what the answer rests on",
    "random labels: should scatter around 0.5; one training on few cases may land far from it by chance, in either "
    "direction, but high values for several models mean that something other than labels decides",
    "positions only: what one training on coordinates alone gives, measured like the model's own value, which stands "
    "before it (mean over folds and seeds); near that value, position is a shortcut",
)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "–" if value != value else f"{value:.3f}"
