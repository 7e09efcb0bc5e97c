"""The trust report of a study: stability, faithfulness and inversion of its maps, position, and a control training."""

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import DataFrame
from scipy.stats import spearmanr
from torch import nn

from smmil.bag import Bag, BagBatch
from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, DataError
from smmil.evaluate.bootstrap import bootstrap_ci
from smmil.evaluate.instances import bags_of_pool, instance_score
from smmil.evaluate.prior import position_prior
from smmil.evaluate.ranking import exact_mean
from smmil.evaluate.resampling import RESAMPLES
from smmil.experiments.datasets import RANDOM, _prepare, _PreparedSet, _random_labels
from smmil.experiments.results import _chosen_by, _chosen_rows
from smmil.experiments.runner import OnRun, _finished_results, _StudyFolder, load_results, run_study
from smmil.experiments.study import Dataset, Study
from smmil.experiments.writing import _for_spreadsheets, _markdown_cell
from smmil.files import write_text
from smmil.graph import Graph
from smmil.predict.cases import bags_to_read
from smmil.predict.inference import load_trained, predict
from smmil.prediction import Prediction, load_predictions

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_TITLE = "Can the maps be trusted?"
_MOST_CASES = 20  # of a data set in deletion and insertion: each is predicted some thirty times
_HEADINGS = {
    "stability": "same map from another seed",
    "inside": "AUROC inside positive cases",
    "inside_lowest": "(lowest run)",
    "prior": "(where lesions usually lie)",
    "own_prior": "(its own mean map)",
    "residual": "map minus its own mean map",
    "no_better_runs": "no better than position",
    "inverted_runs": "inverted runs",
    "deletion": "deletion",
    "deletion_random": "(random)",
    "insertion": "insertion",
    "insertion_random": "(random)",
    "bag_auroc": "bag AUROC",
    "random_labels": "(random labels)",
}
_READING = (
    "same map from another seed: mean rank correlation of instance scores; 1 is the same order, – means one seed only",
    "AUROC inside positive cases: instances are compared within their own case, positive cases are averaged; mean and "
    "lowest over folds and seeds; a run whose whole 95 % interval lies below 0.5 has an inverted map",
    "deletion should be below its random order, insertion above: then the scores show what the answer rests on",
    "random labels: should scatter around 0.5; one training on few cases may land far from it by chance, in either "
    "direction, but high values for several models mean that something other than labels decides",
    "where lesions usually lie: the same AUROC of a map that knows only the mean true map of the other patients at the "
    "same relative place (slices by height), and nothing of the case; its own mean map: that of the model's own scores "
    "in other patients; near 0.5 where cases share no frame, as tissue on slides",
    "no better than position: runs whose map does not beat both, with the whole 95 % interval of the paired difference "
    "above 0: such a map need not have looked at the case; less its own mean map it should still be above 0.5",
)


def _part_of_bag(bag: Bag, rows: np.ndarray) -> Bag:
    """The bag with these instances only, in their order, and the edges among them."""
    kept = torch.from_numpy(np.sort(rows))
    graph = None
    if bag.graph is not None:
        row_in_part = torch.full((bag.n,), -1)
        row_in_part[kept] = torch.arange(len(kept))
        ends = row_in_part[bag.graph.edges()]
        inside = (ends >= 0).all(0)
        graph = Graph.from_edges(ends[:, inside], bag.graph.weight[inside], len(kept))
    coords = None if bag.coords is None else bag.coords[kept]
    y_inst = None if bag.y_inst is None else bag.y_inst[kept]
    return Bag(bag.id, bag.x[kept], coords, bag.frame, graph, bag.y, y_inst, covariates=bag.covariates)


def _curve(model: nn.Module, bag: Bag, order: np.ndarray, *, insert: bool = False) -> np.ndarray:
    """Probability of the positive class after the first instances of `order` were deleted (or only they were kept).

    At the shares SHARES of all instances; at least one instance always stays.
    """
    counts = [min(round(share * bag.n), bag.n - 1) for share in SHARES]
    parts = [order[: max(count, 1)] if insert else order[count:] for count in counts]
    batches = [BagBatch.pack([_part_of_bag(bag, rows)]) for rows in parts]
    found = predict(model, batches, spatial=False)
    return np.array([p.probs[-1] if len(p.probs) < 3 else p.probs[1:].max() for p in found])


def _deletion_insertion(model: nn.Module, bags: Sequence[Bag], *, seed: int = 0) -> dict[str, Any]:
    """Areas under the deletion and insertion curves of positive bags, by the model's own scores and in random order.

    A map that shows what the answer rests on makes the probability fall faster when its hottest instances are deleted
    (`deletion` below `deletion_random`) and rise sooner when they are given (`insertion` above `insertion_random`).
    """
    rng, areas = np.random.default_rng(seed), []
    for bag in bags:
        if not bag.y or bag.n < 2:
            continue
        scores = instance_score(predict(model, [BagBatch.pack([bag])], spatial=False)[0])
        orders = np.argsort(-scores, kind="stable"), rng.permutation(bag.n)
        heights = [_curve(model, bag, order, insert=insert) for insert in (False, True) for order in orders]
        areas.append(np.trapezoid(heights, SHARES) / (SHARES[-1] - SHARES[0]))  # mean height over the shares
    means = np.mean(areas, axis=0) if areas else np.full(4, np.nan)
    names = ("deletion", "deletion_random", "insertion", "insertion_random")
    return {**dict(zip(names, means.tolist(), strict=True)), "n_faithful_cases": len(areas)}


def _map_stability(runs: Sequence[Sequence[Prediction]]) -> dict[str, Any]:
    """Rank correlation of the scores of each case between runs that differ by chance only, averaged over cases.

    1: the same order of instances every time; 0: unrelated maps. Cases with constant scores in a run do not count.
    """
    values: list[float] = []
    for a, b in combinations(runs, 2):
        other = {p.id: p for p in b}
        values += [v for p in a if p.id in other and not np.isnan(v := _correlation(p, other[p.id]))]
    mean, worst = (float(np.mean(values)), float(np.min(values))) if values else (np.nan, np.nan)
    return {"stability": mean, "stability_worst": worst, "n_stability_pairs": len(values)}


def _correlation(a: Prediction, b: Prediction) -> float:
    x, y = instance_score(a), instance_score(b)
    if len(x) != len(y) or len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(spearmanr(x, y).statistic)


def _inverted_maps(runs: Sequence[Sequence[Prediction]], *, n: int = RESAMPLES) -> dict[str, Any]:
    """`_inverted_map` of every run: the mean, the lowest with its interval, and how many raise the alarm."""
    found = [_inverted_map(run, n=n) for run in runs]
    lowest = min(found, key=lambda one: np.inf if np.isnan(one["inside"]) else one["inside"])
    alarms = sum(one["inverted"] for one in found)
    return {
        **lowest,
        "inside": float(np.mean([one["inside"] for one in found])),
        "inside_lowest": lowest["inside"],
        "inverted": alarms > 0,
        "inverted_runs": f"{alarms} of {len(found)}",
    }


def _inverted_map(predictions: Sequence[Prediction], *, n: int = RESAMPLES) -> dict[str, Any]:
    """Whether the map is high on the wrong side: AUROC inside positive cases, its whole 95 % interval below 0.5.

    The AUROC is that of each positive case by itself, averaged; how high a map is from case to case plays no part.
    (Pooled over cases, a map that is right in every case can come out below 0.5: where large lesions have low levels.)
    A model may classify well with such a map; used as it is it would show the clinician the healthy part. Without an
    interval (undefined, or from too few patients) there is no alarm.
    """
    found = bootstrap_ci(bags_of_pool(predictions, "positive_bags"), "inst_auroc", pool="per_bag", n=n)
    ends = {f"inside_{end}": found[end] for end in ("low", "high")}
    unanimous = found["method"] == "none" and not found["shortage"] and found["value"] < 0.5
    return {"inside": found["value"], **ends, "inverted": bool(found["high"] < 0.5 or unanimous)}


def _position_priors(runs: Sequence[Sequence[Prediction]], *, n: int = RESAMPLES) -> dict[str, Any]:
    """The position prior of every run, within positive cases: means over runs, and how many maps do not beat it."""
    found = [position_prior(bags_of_pool(run, "positive_bags"), n=n) for run in runs]
    inside = [one["per_bag"] for one in found if "per_bag" in one]
    judged = [one["better"] for one in found if one["better"] is not None]
    names = {"prior": "truth", "own_prior": "own", "residual": "residual", "prior_difference": "difference"}
    return {
        **{column: float(np.mean([one[key] for one in inside])) if inside else np.nan for column, key in names.items()},
        "no_better": not all(judged),
        "no_better_runs": f"{judged.count(False)} of {len(judged)}" if judged else "–",
    }


def trust_report(
    study: Study,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    executor: str = "serial",
    workers: int | None = None,
    resamples: int = RESAMPLES,
    on_begin: Callable[[int, int], Any] | None = None,
    on_step: OnRun | None = None,
) -> list[Path]:
    """trust.csv and trust.md for every data set and variant of a study whose runs are done.

    Trains each variant once more for each data set, on permuted labels, with the first seed, fold and learning rate.

    on_begin  called with the number of finished steps and of all: these runs, and the maps of every variant
    on_step   called with the name of each step that ends, and the reason if it failed
    """
    folder = _StudyFolder(Path(out), study.name)
    results = _finished_results(study, out, only)[0]
    if _chosen_by(results) != "val_auroc":
        raise ConfigError(f"{study.name}: the trust report is for targets of kind class; its runs predict another one")
    chosen = _chosen_rows(results)
    used = [d for d in study.datasets if d.name in set(chosen["set"])]
    ready = {d.name: _prepare(d, folder.out / "data") for d in used}
    parts = list(chosen.groupby(["set", "variant"], sort=True))
    told: dict[str, Any] = {"executor": executor, "workers": workers, "on_run": on_step}
    if on_begin is not None:
        told["on_begin"] = lambda done, total: on_begin(done, total + len(parts))
    extra = _extra_results(study, folder, [(d, ready[d.name]) for d in used], **told)
    rows: list[dict[str, Any]] = []
    for (set_, variant), part in parts:
        model = next(v.model for v in study.variants if v.name == variant)
        measured = _map_measures(part, model, Manifest.read(ready[str(set_)].manifest), folder, resamples)
        random = extra[(extra["set"] == f"{set_} ({RANDOM})") & (extra["variant"] == variant)].iloc[0]
        rows.append({"set": set_, "variant": variant, **measured, "random_labels": float(random["bag_auroc"])})
        if on_step is not None:
            on_step(f"maps of {set_} · {variant}", None)
    order = [v.name for v in study.variants]
    rows.sort(key=lambda row: (row["set"], order.index(row["variant"])))
    write_text(folder.own / "trust.csv", _for_spreadsheets(DataFrame(rows)))
    write_text(folder.own / "trust.md", _trust_markdown(rows, study.headline(_TITLE)))
    return [folder.own / "trust.csv", folder.own / "trust.md"]


def _map_measures(rows: DataFrame, name: str, table: Manifest, folder: _StudyFolder, resamples: int) -> dict[str, Any]:
    """Measures of the maps of one variant on one data set.

    name   of its model: the only code outside smmil that its runs may name
    table  manifest at its current path; the config of a run may name an older one
    """
    first = rows.sort_values(["fold", "seed"])
    runs = [load_predictions(folder.run(key) / "test") for key in first["run"]]
    seeds = int((first["fold"] == first["fold"].iloc[0]).sum())  # runs of the first fold, which come first
    trained = load_trained(folder.run(first["run"].iloc[0]) / "train", trust_code=name)
    positive = [p.id for p in runs[0] if p.y][:_MOST_CASES]
    bags = bags_to_read(trained, table, positive)
    return {
        **_map_stability(runs[:seeds]),
        **_inverted_maps(runs, n=resamples),
        **_position_priors(runs, n=resamples),
        **_deletion_insertion(trained.model, [bags.bag(id_) for id_ in bags.ids]),
        "bag_auroc": exact_mean(rows["bag_auroc"].tolist()),
    }


def _extra_results(
    study: Study, folder: _StudyFolder, sets: list[tuple[Dataset, _PreparedSet]], **how: Any
) -> DataFrame:
    """Results of the runs on random labels; `how` is for `run_study`."""
    derived = [_random_labels(*one, folder.out / "data") for one in sets]
    smaller = {"folds": [0], "seeds": study.seeds[:1], "learning_rates": study.learning_rates[:1]}
    name = f"{study.name}-trust"
    further = study.model_copy(update={"name": name, "datasets": derived, "tables": [], "figures": [], **smaller})
    report = run_study(further, folder.out, **how)
    if report.failed:
        label, reason = next(iter(report.failed.items()))
        raise DataError(f"{len(report.failed)} runs of the trust report failed, such as {label}: {reason}")
    return load_results(further, folder.out)


def _trust_markdown(rows: Sequence[dict[str, Any]], title: str = _TITLE) -> str:
    """Markdown page of the trust report, with an alarm for every inverted map and every one no better than position."""
    heads = ["data set", "model", *_HEADINGS.values()]
    lines = [f"## {title}", "", f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * len(_HEADINGS)}"]
    for row in rows:
        values = [row[key] for key in _HEADINGS]
        cells = [v if isinstance(v, str) else "–" if v != v else f"{v:.3f}" for v in values]
        lines.append(f"| {_markdown_cell(row['set'])} | {_markdown_cell(row['variant'])} | {' | '.join(cells)} |")
    alarms = [
        f"- **Inverted map**: {r['variant']} on {r['set']} is high on the wrong side in {r['inverted_runs']} runs."
        for r in rows
        if r["inverted"]
    ]
    alarms += [
        f"- **No better than position**: {r['variant']} on {r['set']} does not beat knowing where lesions usually lie "
        f"in {r['no_better_runs']} runs (AUROC inside positive cases {r['inside']:.3f}, of the prior {r['prior']:.3f})."
        for r in rows
        if r["no_better"]
    ]
    return "\n".join([*lines, "", *alarms, *(f"- {note}" for note in _READING), ""])
