"""Do intervals hold the truth, and do equal models pass as equal? Simulated cohorts of few patients, one table.

Two models of the same quality judge the same patients; their scores share most of what is hard about a case. For each
number of patients of each class: how often p < 0.05 though there is no difference, and how often the 95 % interval of
a single model holds the value of a very large cohort. Dashes where smmil prints neither. Of survival and of numbers the
cohorts have twice as many patients, half of them with an event.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from smmil.evaluate import bootstrap_ci, compare
from smmil.evaluate.bootstrap import Settings, statistic
from smmil.prediction import Prediction

BEGIN, END = "<!-- intervals: begin -->", "<!-- intervals: end -->"
SIZES, INSTANCES = (3, 5, 10, 20, 50), 12
METRICS = (
    ("bag_auroc", "all"),
    ("bag_f1", "all"),
    ("inst_auroc", "all"),
    ("inst_auroc", "positive_bags"),
    ("inst_auroc", "per_bag"),
    ("inst_dice", "all"),
    ("bag_c_index", "all"),
    ("bag_spearman", "all"),
)
LARGE, LARGE_OF_PAIRS = 5000, 1500  # patients of each kind in the cohort that stands for the truth


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


def table(cohorts: int, draws: int, sizes: tuple[int, ...] = SIZES, only: str = "", workers: int | None = None) -> str:
    """Rows of Markdown: per metric and number of patients of each class, both shares; only: of these metrics."""
    wanted = [(metric, pool) for metric, pool in METRICS if not only or metric in only.split(",")]
    tasks = [(metric, pool, patients) for metric, pool in wanted for patients in sizes]
    with ProcessPoolExecutor(workers or os.cpu_count()) as running:
        found = list(running.map(partial(cell, cohorts=cohorts, draws=draws), *zip(*tasks, strict=True)))
    results = dict(zip(tasks, found, strict=True))
    lines = [f"| metric | | {' | '.join(f'{n} patients' for n in sizes)} |", f"|---|---|{'---:|' * len(sizes)}"]
    for metric, pool in wanted:
        for place, words in enumerate(("p < 0.05, no difference", "truth inside the interval")):
            shares = [results[metric, pool, n][place] for n in sizes]
            cells = ["–" if share != share else f"{share:.1%}" for share in shares]
            name = f"`{metric}`" + (f" ({pool})" if pool != "all" else "")
            lines.append(f"| {'' if place else name} | {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--only", default="", help="these metrics, separated by commas")
    parser.add_argument("--workers", type=int, help="processes; default: one per core")
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
