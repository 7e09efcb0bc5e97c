"""Predictions of the runs behind a table: the chosen learning rate, one fold and seed per picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from smmil.errors import DataError
from smmil.experiments.results import chosen_rows
from smmil.prediction import Prediction, load_predictions

if TYPE_CHECKING:
    from pandas import DataFrame


def first_predictions(results: "DataFrame", out: Path, variants: Sequence[str]) -> dict[str, list[Prediction]]:
    """Test predictions of each variant at its chosen learning rate, of the first seed and fold, not of the best."""
    rows = chosen_rows(results).sort_values(["seed", "fold"])
    found = {}
    for variant in variants:
        mine = rows[rows["variant"] == variant]
        if len(mine):
            found[variant] = load_predictions(out / "runs" / mine["run"].iloc[0] / "test")
    if not found:
        raise DataError(f"no run of {', '.join(variants)} is done yet; begin with smmil experiment run")
    return found
