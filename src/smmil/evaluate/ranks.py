"""Who wins on average: mean ranks of models over several columns of scores."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from smmil.errors import DataError


def mean_ranks(values: Any, ddof: int = 1) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each model's rank over the columns; rank 1 is best, higher values are better.

    values  a DataFrame (one row per model), or a mapping {model: {column: value}} or {model: [values]}
    ddof    1 for the sample deviation (as in the paper), 0 for the population's
    Equal values share the mean of their ranks. Values are ranked as given: round before, if ties at three digits
    should count as ties. With one column the sample deviation is nan.
    """
    models, ranks = rank_table(values)
    many = ranks.shape[1] > ddof
    spread = ranks.std(1, ddof=ddof) if many else np.full(len(models), np.nan)
    return {model: (float(m), float(s)) for model, m, s in zip(models, ranks.mean(1), spread, strict=True)}


def rank_table(values: Any) -> tuple[list[str], np.ndarray]:
    """Names of the models and their rank in each column, (models, columns); ties share the mean rank."""
    models, columns, table = _as_table(values)
    if not table.size:
        raise DataError("mean_ranks: the table is empty; give at least one model and one column")
    if np.isnan(table).any():
        row, column = np.argwhere(np.isnan(table))[0]
        raise DataError(f"mean_ranks: {models[row]} has no value for {columns[column]}; leave out one of the two")
    return models, _ranks_from_the_top(table)


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
