"""Who wins on average: mean ranks of models over several columns of scores."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from smmil.errors import DataError


def mean_ranks(values: Any) -> dict[str, tuple[float, float]]:
    """Mean and sample standard deviation of each model's rank over the columns; rank 1 is best, higher is better.

    values  a DataFrame (one row per model), or a mapping {model: {column: value}} or {model: [values]}
    Equal values share the mean of their ranks. Values are ranked as given: round before, if ties at three digits
    should count as ties. With one column the deviation is nan.
    """
    models, columns, table = _as_table(values)
    if not table.size:
        raise DataError("mean_ranks: the table is empty; give at least one model and one column")
    if np.isnan(table).any():
        row, column = np.argwhere(np.isnan(table))[0]
        raise DataError(f"mean_ranks: {models[row]} has no value for {columns[column]}; leave out one of the two")
    ranks = _ranks_from_the_top(table)
    spread = ranks.std(1, ddof=1) if table.shape[1] > 1 else np.full(len(models), np.nan)
    return {model: (float(m), float(s)) for model, m, s in zip(models, ranks.mean(1), spread, strict=True)}


def _as_table(values: Any) -> tuple[list[str], list[Any], np.ndarray]:
    if hasattr(values, "columns") and hasattr(values, "to_numpy"):
        return list(values.index), list(values.columns), values.to_numpy(dtype=np.float64)
    rows = {model: row if isinstance(row, Mapping) else dict(enumerate(row)) for model, row in values.items()}
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = [[row.get(name, np.nan) for name in columns] for row in rows.values()]
    return list(rows), columns, np.array(table, dtype=np.float64)


def _ranks_from_the_top(table: np.ndarray) -> np.ndarray:
    """Rank within each column: 1 + number of better models + half the number of equal ones."""
    better = (table[None, :, :] > table[:, None, :]).sum(1)
    equal = (table[None, :, :] == table[:, None, :]).sum(1) - 1
    return 1 + better + equal / 2
