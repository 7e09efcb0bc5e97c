"""Do intervals hold the truth, and do equal models pass as equal? Simulated cohorts of few patients, one table.

Two models of the same quality judge the same patients; their scores share most of what is hard about a case. For each
number of patients of each class: how often p < 0.05 though there is no difference, and how often the 95 % interval of
a single model holds the value of a very large cohort. Dashes where smmil prints neither. Of survival and of numbers the
cohorts have twice as many patients, half of them with an event. In the last rows the test cases are those of five
folds, each judged by models of its own whose scores have a scale and a level of their own.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

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
    ("bag_spearman", "all"),
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
    facts = {"kind": "cox", "columns": ["time", "event"], "edges": [1.0]}
    hard, followed = rng.normal(0, 0.7, n), np.minimum(time, lost)
    return [
        [Prediction(f"{i:05}", [0.5], [0.0], value=float(answer[i]), target=[followed[i], events[i]],
                    meta={"patient": f"p{i}", "target": facts}) for i in range(n)]
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


MAKERS = {"bag_c_index": survival_cohort, "bag_spearman": number_cohort}


def cell(metric: str, pool: str, patients: int, cohorts: int, draws: int) -> tuple[float, float]:
    """Share of cohorts with p < 0.05, and share whose interval holds the true value; nan where none is printed."""
    settings = {"pool": pool, "threshold": 0.0 if metric == "inst_dice" else None}
    make = MAKERS.get(metric, cohort)
    if compare(*make(np.random.default_rng(0), patients), metric, n=2, **settings)["shortage"]:
        return float("nan"), float("nan")  # so few patients carry nothing, whatever the cohort
    large = make(np.random.default_rng(99), LARGE_OF_PAIRS if metric == "bag_c_index" else LARGE, models=1)[0]
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


def table(cohorts: int, draws: int, sizes: tuple[int, ...] = SIZES, only: str = "", workers: int = 1) -> str:
    """Rows of Markdown: per metric and number of patients of each class, both shares; only: of these metrics."""
    lines = [f"| metric | | {' | '.join(f'{n} patients' for n in sizes)} |", f"|---|---|{'---:|' * len(sizes)}"]
    with ProcessPoolExecutor(workers) as pool:
        for metrics, function, words in ((METRICS, cell, ""), (ROTATING, rotating_cell, f", {FOLDS} rotating folds")):
            metrics = tuple(one for one in metrics if not only or one[0] in only.split(","))
            tasks = [(metric, where, patients) for metric, where in metrics for patients in sizes]
            found = {}
            shares = pool.map(partial(function, cohorts=cohorts, draws=draws), *zip(*tasks, strict=True))
            for task, pair in zip(tasks, shares, strict=True):
                found[task] = pair
                print(*task, *(f"{share:.3f}" for share in pair), words, file=sys.stderr, flush=True)
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
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--write", type=Path, help="page that gets the table, between its marks")
    given = parser.parse_args()
    found = table(given.cohorts, given.draws, only=given.only, workers=given.workers)
    print(found)
    if given.write:
        head, rest = given.write.read_text(encoding="utf-8").split(BEGIN)
        text = f"{head}{BEGIN}\n\n{found}\n\n{END}{rest.split(END)[1]}"
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
