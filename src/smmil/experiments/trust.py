"""The trust report of a study: five questions to every map, answered from its runs and a few more."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smmil.data.manifest import Manifest
from smmil.errors import DataError
from smmil.experiments.datasets import prepare
from smmil.experiments.derived import POSITIONS, RANDOM, positions_only, random_labels
from smmil.experiments.faithfulness import deletion_insertion
from smmil.experiments.results import chosen_rows
from smmil.experiments.runner import Place, load_results, run_study
from smmil.experiments.stability import inverted_maps, map_stability
from smmil.experiments.study import Dataset, Study, headline
from smmil.experiments.writing import for_spreadsheets, piped
from smmil.files import write_text
from smmil.predict import load_run
from smmil.prediction import load_predictions

if TYPE_CHECKING:
    from pandas import DataFrame

_TITLE = "Can the maps be trusted?"
_MOST_CASES = 20  # of a data set in deletion and insertion: each is predicted some thirty times
_HEADINGS = {
    "stability": "same map from another seed",
    "inside": "AUROC within positives",
    "inside_lowest": "(lowest run)",
    "inverted_runs": "inverted runs",
    "deletion": "deletion",
    "deletion_random": "(random)",
    "insertion": "insertion",
    "insertion_random": "(random)",
    "random_labels": "bag AUROC, random labels",
    "positions_bag": "bag AUROC, positions only",
    "positions_inst": "instance AUROC, positions only",
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
    extra = _extra_results(study, place, sorted(set(chosen["set"])), executor, workers)
    rows: list[dict[str, Any]] = []
    for (set_, variant), part in chosen.groupby(["set", "variant"], sort=True):
        rows.append(
            {"set": set_, "variant": variant, **_answers(part, place, resamples), **_extra(extra, set_, variant)}
        )
    order = [v.name for v in study.variants]
    rows.sort(key=lambda row: (row["set"], order.index(row["variant"])))
    return _write(rows, place.own, headline(study, _TITLE))


def _answers(rows: "DataFrame", place: Place, resamples: int) -> dict[str, Any]:
    """What the runs of one variant on one data set say about its maps."""
    first = rows.sort_values(["fold", "seed"])
    seeds = first[first["fold"] == first["fold"].iloc[0]]
    runs = [load_predictions(place.run(key) / "test") for key in seeds["run"]]
    folder = place.run(first["run"].iloc[0]) / "train"
    model, config = load_run(folder)
    table = Manifest.read(config.data.manifest)
    positive = [p.id for p in runs[0] if p.y][:_MOST_CASES]
    every = [load_predictions(place.run(key) / "test") for key in first["run"]]
    return {
        **map_stability(runs),
        **inverted_maps(every, n=resamples),
        **deletion_insertion(model, [table.bag(id_) for id_ in positive]),
    }


def _extra_results(study: Study, place: Place, sets: list[str], executor: str, workers: int | None) -> "DataFrame":
    """Results of the runs on random labels and on positions only."""
    derived: list[Dataset] = []
    for dataset in (d for d in study.datasets if d.name in sets):
        ready = prepare(dataset, place.out / "data")
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


def _extra(extra: "DataFrame", set_: Any, variant: Any) -> dict[str, float]:
    def of(kind: str, metric: str) -> float:
        rows = extra[(extra["set"] == f"{set_} ({kind})") & (extra["variant"] == variant)]
        return float(rows[metric].iloc[0]) if len(rows) else float("nan")

    return {
        "random_labels": of(RANDOM, "bag_auroc"),
        "positions_bag": of(POSITIONS, "bag_auroc"),
        "positions_inst": of(POSITIONS, "inst_auroc"),
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
    "AUROC within positives: mean and lowest over folds and seeds; a run whose whole 95 % interval lies below 0.5 has "
    "an inverted map",
    "deletion should be below its random order, insertion above: then the scores show what the answer rests on",
    "random labels: should scatter around 0.5; one training on few cases may land far from it by chance, in either "
    "direction, but high values for several models mean that something other than labels decides",
    "positions only: what coordinates alone give; near the model's own value, position is a shortcut",
)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "–" if value != value else f"{value:.3f}"
