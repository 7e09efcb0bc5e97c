"""Do intervals hold the truth, and do equal models pass as equal? Simulated cohorts of few patients, one table.

Two models of the same quality judge the same patients; their scores share most of what is hard about a case. For each
number of patients of each class: how often p < 0.05 though there is no difference, and how often the 95 % interval of
a single model holds the value of a very large cohort. Dashes where smmil prints neither. Of survival and of numbers the
cohorts have twice as many patients, half of them with an event. In the last rows the test cases are those of five
folds, each judged by models of its own whose scores have a scale and a level of their own.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smmil.evaluate import bootstrap_ci, compare
from smmil.evaluate.bootstrap import Settings, statistic
from smmil.evaluate.metrics import PooledMetric
from smmil.evaluate.resampling import LEAST, interval
from smmil.experiments.variant_tests import _resampled_mean
from smmil.prediction import Prediction

BEGIN, END = "<!-- intervals: begin -->", "<!-- intervals: end -->"
SIZES, INSTANCES = (3, 5, 10, 20, 50), 12
METRICS = (
    ("bag_auroc", "all"),
    ("bag_auprc", "all"),
    ("bag_f1", "all"),
    ("bag_brier", "all"),
    ("inst_auroc", "all"),
    ("inst_auroc", "positive_bags"),
    ("inst_auroc", "per_bag"),
    ("inst_auprc", "all"),
    ("inst_dice", "all"),
    ("inst_pointing_game", "all"),
    ("froc", "all"),
    ("bag_c_index", "all"),
    ("bag_c_index_uno", "all"),
    ("bag_time_auroc", "all"),
    ("bag_integrated_brier", "all"),
    ("bag_spearman", "all"),
    ("bag_mae", "all"),
    ("bag_r2", "all"),
    ("bag_kappa", "all"),
)
LARGE, LARGE_OF_PAIRS = 5000, 1500  # patients of each kind in the cohort that stands for the truth
FOLDS = 5
ROTATING = (("bag_auroc", "all"), ("inst_auroc", "positive_bags"), ("inst_auroc", "per_bag"), ("inst_dice", "all"))


def cohort(rng: np.random.Generator, patients: int, models: int = 2) -> list[list[Prediction]]:
    """So many patients of each class, one case each, judged by equally good models."""
    n = 2 * patients
    y = np.arange(n) % 2
    truth = (np.arange(INSTANCES) < rng.integers(2, 7, size=(n, 1))) & (y[:, None] == 1)
    case, contrast = rng.normal(0, 0.7, n), rng.normal(1.2, 0.7, n)
    rows = rng.normal(0, 0.7, (n, INSTANCES)) + rng.normal(0, 0.5, (n, 1))
    edges = np.stack([np.arange(INSTANCES - 1), np.arange(1, INSTANCES)])
    found = []
    for _ in range(models):
        logits = 1.4 * y - 0.7 + case + rng.normal(0, 0.7, n)
        scores = truth * (contrast + rng.normal(0, 0.5, n))[:, None] + rows + rng.normal(0, 0.7, rows.shape) - 0.6
        found.append([
            Prediction(f"{i:05}", [1 / (1 + np.exp(-logits[i]))], scores[i], edges=edges, y=int(y[i]),
                       y_inst=truth[i].astype(int), meta={"patient": f"p{i}"})
            for i in range(n)
        ])  # fmt: skip
    return found


def survival_cohort(rng: np.random.Generator, patients: int, models: int = 2) -> list[list[Prediction]]:
    """Twice so many patients, so many of them with an event; risks of equally good models."""
    n, events = 2 * patients, np.zeros(0)
    while events.sum() != patients:
        risk = rng.normal(size=n)
        time, lost = rng.exponential(np.exp(-risk)), rng.exponential(np.exp(-risk).mean(), n)
        events = time <= lost
        if patients >= LARGE_OF_PAIRS:
            break
    times = np.array([0.25, 0.5, 1.0])
    facts = {"kind": "cox", "columns": ["time", "event"], "edges": times.tolist()}
    hard, followed = rng.normal(0, 0.7, n), np.minimum(time, lost)
    return [
        [Prediction(f"{i:05}", 1 - np.exp(-times * np.exp(answer[i] / 2)), [0.0], value=float(answer[i]),
                    target=[followed[i], events[i]], meta={"patient": f"p{i}", "target": facts}) for i in range(n)]
        for answer in (risk + hard + rng.normal(0, 0.7, n) for _ in range(models))
    ]  # fmt: skip


def number_cohort(rng: np.random.Generator, patients: int, models: int = 2) -> list[list[Prediction]]:
    """Twice so many patients with a number each, told by equally good models."""
    n, facts = 2 * patients, {"kind": "regression", "columns": ["number"]}
    truth = rng.normal(size=n)
    hard = truth + rng.normal(0, 0.7, n)
    return [
        [Prediction(f"{i:05}", [], [0.0], value=float(answer[i]), target=[truth[i]],
                    meta={"patient": f"p{i}", "target": facts}) for i in range(n)]
        for answer in (hard + rng.normal(0, 0.7, n) for _ in range(models))
    ]  # fmt: skip


def level_cohort(rng: np.random.Generator, patients: int, models: int = 2) -> list[list[Prediction]]:
    """Twice so many patients of four ordered levels, half of them of the lowest, told by equally good models."""
    n, levels = 2 * patients, ["0", "1", "2", "3"]
    facts = {"kind": "ordinal", "columns": ["level"], "levels": levels}
    truth = np.concatenate([np.zeros(patients, dtype=int), 1 + np.arange(patients) % 3])
    hard = truth + rng.normal(0, 0.6, n)
    middles = np.arange(4)
    found = []
    for _ in range(models):
        answer = np.exp(-(((hard + rng.normal(0, 0.6, n))[:, None] - middles) ** 2))
        probs = answer / answer.sum(axis=1, keepdims=True)
        found.append([
            Prediction(f"{i:05}", probs[i], [0.0], value=float(probs[i] @ middles), y=int(truth[i]),
                       meta={"patient": f"p{i}", "target": facts}) for i in range(n)
        ])  # fmt: skip
    return found


OF_SURVIVAL = ("bag_c_index", "bag_c_index_uno", "bag_time_auroc", "bag_integrated_brier")
MAKERS = {
    **dict.fromkeys(OF_SURVIVAL, survival_cohort),
    **dict.fromkeys(("bag_spearman", "bag_mae", "bag_r2"), number_cohort),
    "bag_kappa": level_cohort,
}


def cell(metric: str, pool: str, patients: int, cohorts: int, draws: int) -> tuple[float, float]:
    """Share of cohorts with p < 0.05, and share whose interval holds the true value; nan where none is printed."""
    settings = {"pool": pool, "threshold": 0.0 if metric == "inst_dice" else None}
    make = MAKERS.get(metric, cohort)
    if compare(*make(np.random.default_rng(0), patients), metric, n=2, **settings)["shortage"]:
        return float("nan"), float("nan")  # so few patients carry nothing, whatever the cohort
    large = make(np.random.default_rng(99), LARGE_OF_PAIRS if metric in OF_SURVIVAL else LARGE, models=1)[0]
    truth = statistic(large, metric, Settings(settings["threshold"], pool)).estimate
    differ, held = [], []
    for number in range(cohorts):
        one, other = make(np.random.default_rng([number, patients]), patients)
        p = compare(one, other, metric, n=draws, seed=number, **settings)["p"]
        ends = bootstrap_ci(one, metric, n=draws, seed=number, **settings)
        differ += [] if np.isnan(p) else [p < 0.05]
        held += [] if np.isnan(ends["low"]) else [ends["low"] <= truth <= ends["high"]]
    return tuple(float(np.mean(part)) if part else float("nan") for part in (differ, held))


def rotated(rng: np.random.Generator, predictions: list[Prediction]) -> list[list[Prediction]]:
    """The cases in five folds, with probabilities and scores on a scale and level of each fold."""
    folds = []
    for fold in range(FOLDS):
        scale, level = np.exp(rng.normal(0, 0.7)), rng.normal()
        mine = [p for i, p in enumerate(predictions) if i // 2 % FOLDS == fold]
        logits = [scale * np.log(p.probs[0] / (1 - p.probs[0])) + level for p in mine]
        folds.append([
            replace(p, probs=[1 / (1 + np.exp(-logit))], scores=scale * p.scores + level, meta={**p.meta, "cut": level})
            for p, logit in zip(mine, logits, strict=True)
        ])  # fmt: skip
    return folds


def rotating_cell(metric: str, pool: str, patients: int, cohorts: int, draws: int) -> tuple[float, float]:
    """Share of cohorts with p < 0.05 where every patient was tested once; the interval is that of the difference."""
    name, differ, held = PooledMetric(metric, pool).label, list[bool](), list[bool]()
    for number in range(cohorts if patients >= LEAST else 0):
        rng = np.random.default_rng([number, patients, FOLDS])
        folds = [rotated(rng, model) for model in cohort(rng, patients)]
        cuts = [[part[0].meta["cut"] for part in model] for model in folds]
        one, other = (_resampled_mean(f, name, c, n=draws, seed=number) for f, c in zip(folds, cuts, strict=True))
        gap = one.minus(other)
        found = interval(gap.drawn, gap.value, gap.carriers, list, "percentile", 0.95, difference=True)
        differ += [] if np.isnan(found.p) else [found.p < 0.05]
        held += [] if np.isnan(found.low) else [found.low <= 0 <= found.high]
    return tuple(float(np.mean(part)) if part else float("nan") for part in (differ, held))


class Kept:
    """Results of cells in a file of JSON lines, so that an interrupted simulation goes on where it stopped."""

    def __init__(self, file: Path | None):
        self.file = file
        text = file.read_text(encoding="utf-8") if file and file.exists() else ""
        self.found = {tuple(line["cell"]): tuple(line["shares"]) for line in map(json.loads, text.splitlines())}

    def add(self, cell: tuple[Any, ...], shares: tuple[float, float]) -> None:
        self.found[cell] = shares
        if self.file:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"cell": cell, "shares": shares}) + "\n")


def table(
    cohorts: int,
    draws: int,
    sizes: tuple[int, ...] = SIZES,
    only: str = "",
    workers: int = 1,
    keep: Path | None = None,
) -> str:
    """Rows of Markdown: per metric and number of patients of each class, both shares; only: of these metrics."""
    kept = Kept(keep)
    lines = [f"| metric | | {' | '.join(f'{n} patients' for n in sizes)} |", f"|---|---|{'---:|' * len(sizes)}"]
    with ProcessPoolExecutor(workers) as pool:
        for metrics, function, words in ((METRICS, cell, ""), (ROTATING, rotating_cell, f", {FOLDS} rotating folds")):
            metrics = tuple(one for one in metrics if not only or one[0] in only.split(","))
            cells = [
                (metric, where, patients, words, cohorts, draws) for metric, where in metrics for patients in sizes
            ]
            missing = [one for one in cells if one not in kept.found]
            tasks = list(zip(*((metric, where, n) for metric, where, n, *_ in missing), strict=True))
            shares = pool.map(partial(function, cohorts=cohorts, draws=draws), *tasks) if missing else []
            for one, pair in zip(missing, shares, strict=True):
                kept.add(one, pair)
                print(*one[:3], *(f"{share:.3f}" for share in pair), words, file=sys.stderr, flush=True)
            found = {one[:3]: kept.found[one] for one in cells}
            lines += rows(metrics, found, sizes, words)
    return "\n".join(lines)


def rows(
    metrics: tuple[tuple[str, str], ...],
    results: dict[tuple[str, str, int], tuple[float, float]],
    sizes: tuple[int, ...],
    more: str,
) -> list[str]:
    """Two rows of each metric."""
    lines = []
    for metric, pool in metrics:
        for place, words in enumerate(("p < 0.05, no difference", "truth inside the interval")):
            shares = [results[metric, pool, n][place] for n in sizes]
            cells = ["–" if share != share else f"{share:.1%}" for share in shares]
            name = f"`{metric}`" + (f" ({pool})" if pool != "all" else "") + more
            lines.append(f"| {'' if place else name} | {words} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--only", default="", help="these metrics, separated by commas")
    parser.add_argument("--keep", type=Path, help="file with the results so far; cells in it are not simulated again")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--write", type=Path, help="page that gets the table, between its marks")
    given = parser.parse_args()
    found = table(given.cohorts, given.draws, only=given.only, workers=given.workers, keep=given.keep)
    print(found)
    if given.write:
        head, rest = given.write.read_text(encoding="utf-8").split(BEGIN)
        text = f"{head}{BEGIN}\n\n{found}\n\n{END}{rest.split(END)[1]}"
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
