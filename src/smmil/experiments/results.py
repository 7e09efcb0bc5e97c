"""One row per finished run, and what follows from the rows: the chosen learning rate, means and deviations."""

import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smmil.evaluate import spread
from smmil.files import replacing

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ORDER = ("set", "variant", "lr", "seed", "fold")
FACTS = ("run", "set", "dataset", "extractor", "group", "family", "variant", "lr", "seed", "fold")


def results_table(rows: Iterable[dict[str, Any]]) -> "DataFrame":
    """The rows sorted by data set, variant, learning rate, seed and fold; columns in the order of the first row."""
    from pandas import DataFrame

    listed = sorted(rows, key=lambda row: tuple(row[key] for key in ORDER))
    columns = list(dict.fromkeys([*FACTS, *(key for row in listed for key in row)]))
    return DataFrame(listed, columns=columns)


def write_results(table: "DataFrame", folder: Path) -> None:
    """results.csv and results.parquet; the same rows give the same bytes."""
    text = table.to_csv(index=False, lineterminator="\n")
    with replacing(folder / "results.csv") as temporary:
        temporary.write_text(text, encoding="utf-8")
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False, engine="pyarrow")
    with replacing(folder / "results.parquet") as temporary:
        temporary.write_bytes(buffer.getvalue())


def choose_learning_rates(table: Any) -> dict[tuple[str, str], float]:
    """For each (data set, variant) the learning rate with the highest mean validation AUROC; ties: lower mean loss.

    Only rates with as many finished runs as the best covered one compete, so that a rate is not chosen for the folds
    it has not seen yet, and they are compared over the folds and seeds that all of them have. A full tie, and rates
    without a fold in common, go to the larger rate. Test results play no part. Whether all rates could compete is told
    by `shortfall.shortfall_notes`.
    """
    chosen = {}
    for (set_, variant), rows in table.groupby(["set", "variant"], sort=True):
        chosen[set_, variant] = _best({lr: part.set_index(["seed", "fold"]) for lr, part in rows.groupby("lr")})
    return chosen


def _best(rates: "dict[Any, DataFrame]") -> float:
    """The best of some learning rates, each with its runs by seed and fold."""
    most = max(len(part) for part in rates.values())
    best_covered = {lr: part for lr, part in rates.items() if len(part) == most}
    shared = set.intersection(*(set(part.index) for part in best_covered.values()))
    return max(best_covered, key=lambda lr: _merit(best_covered[lr].loc[sorted(shared)], lr))


def _merit(rows: "DataFrame", lr: float) -> tuple[float, float, float]:
    if not len(rows):
        return -math.inf, -math.inf, lr
    auroc, loss = (math.fsum(rows[name]) / len(rows) for name in ("val_auroc", "val_loss"))
    return (-math.inf if math.isnan(auroc) else auroc, -loss, lr)


def chosen_rows(table: Any) -> "DataFrame":
    """The runs with the chosen learning rate of their data set and variant."""
    chosen = choose_learning_rates(table)
    keep = [i for i, row in enumerate(table.itertuples()) if chosen[row.set, row.variant] == row.lr]
    return table.iloc[keep].reset_index(drop=True)


def aggregate(table: "DataFrame", metrics: Sequence[str], ddof: int = 1) -> "DataFrame":
    """Mean and standard deviation over folds and seeds at the chosen learning rate, one row per number.

    Columns as in the tables of the paper (dataset, extractor, group, model, metric, mean, std), then n, lr,
    family, set and state: where a metric is undefined in some runs there is no mean, and the state says so.
    ddof  1: divided by n - 1, 0: by n
    """
    from pandas import DataFrame

    rows = []
    for (set_, variant), part in chosen_rows(table).groupby(["set", "variant"], sort=True):
        first = part.iloc[0]
        for metric in metrics:
            found = spread(part[metric])
            std = found.sample_std if ddof else found.population_std
            facts = [first["dataset"], first["extractor"], first["group"], variant, metric, found.mean, std]
            rows.append([*facts, found.n, first["lr"], first["family"], set_, _undefined(part[metric])])
    names = ["dataset", "extractor", "group", "model", "metric", "mean", "std", "n", "lr", "family", "set", "state"]
    return DataFrame(rows, columns=names)


def _undefined(values: "Series[float]") -> str:
    """In how many runs a metric has no value, such as F1 without a positive instance; empty when in none."""
    gone = int(values.isna().sum())
    return f"undefined in {gone} of {len(values)} run{'s' * (len(values) != 1)}" if gone else ""
