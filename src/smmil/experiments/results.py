"""One row per finished run, and what follows from the rows: the chosen learning rate, means and deviations."""

import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smmil.evaluate import METRIC_NAMES, spread
from smmil.files import replacing

if TYPE_CHECKING:
    from pandas import DataFrame

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
    it has not seen yet. A full tie goes to the larger rate. Test results play no part.
    """
    chosen = {}
    for (set_, variant), rows in table.groupby(["set", "variant"], sort=True):
        rates = dict(iter(rows.groupby("lr")))
        most = max(len(part) for part in rates.values())
        chosen[set_, variant] = max(
            (lr for lr in rates if len(rates[lr]) == most), key=lambda lr: _merit(rates[lr], lr)
        )
    return chosen


def _merit(rows: "DataFrame", lr: float) -> tuple[float, float, float]:
    auroc, loss = (math.fsum(rows[name]) / len(rows) for name in ("val_auroc", "val_loss"))
    return (-math.inf if math.isnan(auroc) else auroc, -loss, lr)


def chosen_rows(table: Any) -> "DataFrame":
    """The runs with the chosen learning rate of their data set and variant."""
    chosen = choose_learning_rates(table)
    keep = [chosen[row.set, row.variant] == row.lr for row in table.itertuples()]
    return table[keep].reset_index(drop=True)


def aggregate(table: "DataFrame", metrics: Sequence[str], ddof: int = 1) -> "DataFrame":
    """Mean and standard deviation over folds and seeds at the chosen learning rate, one row per number.

    Columns as in the tables of the paper (dataset, extractor, group, model, metric, mean, std), then n, lr,
    family, set.
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
            rows.append([*facts, found.n, first["lr"], first["family"], set_])
    names = ["dataset", "extractor", "group", "model", "metric", "mean", "std", "n", "lr", "family", "set"]
    return DataFrame(rows, columns=names)


def metric_columns(table: "DataFrame") -> list[str]:
    """The columns of a table of results that hold metrics of the test set."""
    return [name for name in table.columns if name.partition("@")[0] in METRIC_NAMES]
