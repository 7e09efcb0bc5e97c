"""The table of results: one row per finished run; chosen learning rates, means, deviations, missing runs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pandas import DataFrame, concat

from smmil.errors import DataError
from smmil.evaluate.ranking import spread
from smmil.files import replacing, write_text
from smmil.prediction import Prediction, load_predictions

ORDER = ("set", "variant", "lr", "seed", "fold")
SURE = 0.05  # p after Holm's correction below which a difference counts as real
FACTS = ("run", "set", "dataset", "extractor", "group", "family", "variant", "lr", "seed", "fold")
_LONGEST = 160  # characters of a reason below a table
ROTATE = "rotate"  # in the column `test` of results: every fold has test cases of its own
UNCONTESTED = "learning rate not chosen among all"


def _results_table(rows: Iterable[dict[str, Any]]) -> DataFrame:
    """The rows sorted by data set, variant, learning rate, seed and fold; columns in the order of the first row."""
    listed = sorted(rows, key=lambda row: tuple(row[key] for key in ORDER))
    columns = list(dict.fromkeys([*FACTS, *(key for row in listed for key in row)]))
    return DataFrame(listed, columns=columns)


def _write_results(table: DataFrame, folder: Path) -> None:
    """results.csv and results.parquet; the same rows give the same bytes."""
    write_text(folder / "results.csv", table.to_csv(index=False, lineterminator="\n"))
    with replacing(folder / "results.parquet") as temporary:
        table.to_parquet(temporary, index=False, engine="pyarrow")


Rates = dict[tuple[str, str], float | dict[int, float]]  # of (data set, variant): one, or one of every fold


def _choose_learning_rates(table: Any) -> Rates:
    """For each (data set, variant) the learning rate with the highest mean validation AUROC; ties: lower mean loss.

    Of a target that is no class the metric that selected its epochs stands in place of the AUROC (`_chosen_by`).
    Where the test set rotates, every fold chooses by its own validation cases: those of the others hold its test cases.

    Only rates with as many finished runs as the best covered one compete, so that a rate is not chosen for the folds
    it has not seen yet, and they are compared over the folds and seeds that all of them have. A full tie, and rates
    without a fold in common, go to the larger rate. Test results play no part. `_missing_run_notes`
    reports rates that could not compete.
    """
    chosen: Rates = {}
    for key, rows in table.groupby(["set", "variant"], sort=True):
        if _rotates(rows):
            chosen[key] = {int(fold): _best_rate(part) for fold, part in rows.groupby("fold", sort=True)}
        else:
            chosen[key] = _best_rate(rows)
    return chosen


def _rotates(rows: Any) -> bool:
    """Whether the folds of these runs have test cases of their own."""
    return "test" in rows and bool((rows["test"] == ROTATE).any())


def _best_rate(rows: Any) -> float:
    rates = {lr: part.set_index(["seed", "fold"]) for lr, part in rows.groupby("lr")}
    most = max(len(part) for part in rates.values())
    covered = {lr: part for lr, part in rates.items() if len(part) == most}
    shared = sorted(set.intersection(*(set(part.index) for part in covered.values())))
    return max((_selection_key(part.loc[shared], lr) for lr, part in covered.items()))[-1]


def _selection_key(rows: DataFrame, lr: float) -> tuple[float, float, float]:
    if not len(rows):
        return -math.inf, -math.inf, lr
    auroc, loss = (math.fsum(rows[name]) / len(rows) for name in (_chosen_by(rows), "val_loss"))
    return (-math.inf if math.isnan(auroc) else auroc, -loss, lr)


def _chosen_by(table: DataFrame) -> str:
    """The column by which learning rates are chosen: val_auroc, or the metric of a target that is no class."""
    return next((str(name) for name in table if str(name).startswith("val_") and name != "val_loss"), "val_auroc")


def _chosen_rows(table: Any) -> DataFrame:
    """The runs with the chosen learning rate of their data set, variant and, where test sets rotate, fold."""
    chosen, keep = _choose_learning_rates(table), list[int]()
    for i, row in enumerate(table.itertuples()):
        rate = chosen[row.set, row.variant]
        keep += [i] if (rate[row.fold] if isinstance(rate, dict) else rate) == row.lr else []
    return table.iloc[keep].reset_index(drop=True)


def _aggregate(table: DataFrame, metrics: Sequence[str], ddof: int = 1) -> DataFrame:
    """Mean and standard deviation over folds and seeds at the chosen learning rate, one row per number.

    Columns as in the tables of the paper (dataset, extractor, group, model, metric, mean, std), then n, lr,
    family, set and state: where a metric is undefined in some runs there is no mean, and the state is a note.
    ddof  1: divided by n - 1, 0: by n
    """
    rows = []
    for (set_, variant), part in _chosen_rows(table).groupby(["set", "variant"], sort=True):
        first = part.iloc[0]
        for metric in metrics:
            found = spread(part[metric])
            std = found.sample_std if ddof else found.population_std
            facts = [first["dataset"], first["extractor"], first["group"], variant, metric, found.mean, std]
            gone = int(part[metric].isna().sum())  # such as F1 without a positive instance
            state = f"undefined in {gone} of {len(part)} run{'s' * (len(part) != 1)}" if gone else ""
            lr = first["lr"] if part["lr"].nunique() == 1 else math.nan  # folds that chose for themselves
            rows.append([*facts, found.n, lr, first["family"], set_, state])
    names = ["dataset", "extractor", "group", "model", "metric", "mean", "std", "n", "lr", "family", "set", "state"]
    return DataFrame(rows, columns=names)


class _Coverage(NamedTuple):
    """Number of planned runs (folds x seeds) of a variant, and of finished runs by learning rate."""

    planned: int
    done: dict[float, int]

    @property
    def lacking(self) -> str:
        """The rates that could not compete with all their runs; empty where there is one rate or nothing is missing."""
        if len(self.done) < 2:
            return ""
        return ", ".join(f"{lr:g} has {n} of {self.planned} runs" for lr, n in self.done.items() if n < self.planned)


def _coverage(plan: Any) -> dict[tuple[str, str], _Coverage]:
    """Planned and finished runs by data set and variant."""
    found = {}
    for (set_, variant), part in plan.groupby(["set", "variant"], sort=True):
        done = {lr: int((runs["state"] == "done").sum()) for lr, runs in part.groupby("lr", sort=False)}
        found[set_, variant] = _Coverage(len(part[["seed", "fold"]].drop_duplicates()), done)
    return found


def _with_plan(rows: DataFrame, plan: Any, metrics: Sequence[str]) -> DataFrame:
    """The rows with `planned` runs, `fewer` where less was done than planned, and `state`: a note.

    A number is marked when it rests on fewer runs, and when its learning rate was chosen although other rates lacked
    runs. A variant without a single finished run on a data set gets rows of its own, so that it does not vanish.
    """
    found = _coverage(plan)
    covered = [found[key] for key in zip(rows["set"], rows["model"], strict=True)]
    fewer = [n < one.planned or bool(one.lacking) for n, one in zip(rows["n"], covered, strict=True)]
    states = [state or (UNCONTESTED if c.lacking else "") for state, c in zip(rows["state"], covered, strict=True)]
    counts = [one.planned for one in covered]
    rows = rows.drop(columns="state").assign(planned=counts, fewer=fewer, state=states)
    absent = list(_absent(plan, found, metrics))
    return concat([rows, DataFrame(absent, columns=rows.columns)], ignore_index=True) if absent else rows


def _absent(plan: Any, found: dict[tuple[str, str], _Coverage], metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row per metric for every variant that has no finished run on a data set."""
    for (set_, variant), part in plan.groupby(["set", "variant"], sort=True):
        if (part["state"] == "done").any():
            continue
        first, failed = part.iloc[0], int((part["state"] == "failed").sum())
        state = f"failed ({failed} run{'s' * (failed != 1)})" if failed else "not run yet"
        facts = {key: first[key] for key in ("dataset", "extractor", "group", "family")}
        facts |= {"model": variant, "set": set_, "state": state, "planned": found[set_, variant].planned}
        nothing = {"mean": math.nan, "std": math.nan, "n": 0, "lr": math.nan, "fewer": False}
        yield from ({**facts, **nothing, "metric": metric} for metric in metrics)


def _missing_run_notes(results: DataFrame, plan: Any) -> list[str]:
    """Notes on the missing runs of a study, or of the given part of it, for tables and pages of comparisons.

    Numbers over fewer runs than planned, learning rates chosen without all runs of all rates, which runs failed and
    where to look, and what has not been run yet.
    """
    notes = []
    found, used = _coverage(plan), _chosen_rows(results).groupby(["set", "variant"], sort=True).size()
    for key, n in used.items():  # explains the mark ‡
        one, where = found[key], " · ".join(key)  # type: ignore[index, arg-type]
        notes += [f"‡ {where}: mean over {n} of {one.planned} runs"] if n < one.planned else []
        notes += [f"‡ {where}: {UNCONTESTED}: {one.lacking}"] if one.lacking else []
    for (set_, variant), part in plan.groupby(["set", "variant"], sort=True):
        failed = part[part["state"] == "failed"]
        if len(failed):
            first = failed.iloc[0]
            reason = first["reason"].partition("; see ")[0]
            short = reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 1]}…"
            failures = f"{len(failed)} of {len(part)} runs failed, such as {short}"
            notes.append(f"{set_} · {variant}: {failures}; look in runs/{first['run']}, or ask smmil experiment status")
    waiting = plan[plan["state"].isin(["missing", "running"])]
    counts = waiting.groupby(["set", "variant"], sort=False).size()
    listed = ", ".join(f"{set_} · {variant} ({count} runs)" for (set_, variant), count in counts.items())
    return notes + ([f"not complete yet: {listed}"] if listed else [])


def _incomplete(plan: Any, variants: Iterable[str]) -> list[str]:
    """Those of the variants that lack runs anywhere in the plan."""
    lacking = set(plan["variant"][plan["state"] != "done"])
    return [name for name in variants if name in lacking]


def _first_predictions(results: DataFrame, out: Path, variants: Sequence[str]) -> dict[str, list[Prediction]]:
    """Test predictions of each variant at its chosen learning rate, of the first seed and fold, not of the best."""
    rows = _chosen_rows(results).sort_values(["seed", "fold"])
    found = {}
    for variant in variants:
        mine = rows[rows["variant"] == variant]
        if len(mine):
            found[variant] = load_predictions(out / "runs" / mine["run"].iloc[0] / "test")
    if not found:
        raise DataError(f"no run of {', '.join(variants)} is done yet; begin with smmil experiment run")
    return found
