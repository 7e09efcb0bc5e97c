"""Which differences of a study are real: intervals and paired tests of means over folds, patients resampled."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate import holm
from smmil.evaluate.cases import units_of
from smmil.evaluate.comparison import two_sided_p
from smmil.evaluate.resampling import Resampling, interval
from smmil.evaluate.statistic import Settings, statistic
from smmil.experiments.results import chosen_rows
from smmil.experiments.writing import piped
from smmil.prediction import Prediction, load_predictions

if TYPE_CHECKING:
    from pandas import DataFrame

LEVEL = 0.95
FEW = 10  # patients, as in `smmil evaluate`


class Resampled(NamedTuple):
    """A metric averaged over folds: its value, those on resamples, those with each patient left out."""

    value: float
    drawn: np.ndarray
    left_out: list[np.ndarray]
    patients: int

    def minus(self, other: "Resampled") -> "Resampled":
        """The difference of two models judged on the same resamples."""
        gaps = [a - b for a, b in zip(self.left_out, other.left_out, strict=True)]
        return Resampled(self.value - other.value, self.drawn - other.drawn, gaps, self.patients)


def resampled_mean(
    folds: Sequence[Sequence[Prediction]],
    metric: str,
    thresholds: Sequence[float | None],
    *,
    n: int = 1000,
    seed: int = 0,
) -> Resampled:
    """The mean over folds of a metric on one test set, with patients drawn n times; every fold sees the same draws.

    The spread is that of the patients; the folds' own spread stands in the tables.
    """
    name, _, pool = metric.partition("@")
    judged = [
        statistic(cases, name, Settings(cut, pool or "all")) for cases, cut in zip(folds, thresholds, strict=True)
    ]
    ids = {tuple(p.id for p in one.cases) for one in judged}
    if len(ids) > 1:
        raise DataError(f"{metric}: the folds were tested on different cases; paired tests need one test set")
    units = units_of(judged[0].cases)[0]
    plan = Resampling(units)

    def value(weights: np.ndarray) -> float:
        return float(np.mean([one.value(weights) for one in judged]))

    drawn = np.array([value(weights) for weights in plan.draws(n, seed)])
    return Resampled(
        value(np.ones(len(judged[0].cases), dtype=np.int64)), drawn, plan.without_each(value), len(set(units))
    )


def comparisons(
    results: "DataFrame", out: str | Path, metrics: Sequence[str], reference: str, *, n: int = 1000
) -> "DataFrame":
    """Every variant against the reference on every data set: value, difference, intervals, p and p by Holm.

    Holm's correction counts the variants compared for one metric of one data set.
    """
    from pandas import DataFrame

    chosen, rows = chosen_rows(results), []
    for set_, part in chosen.groupby("set", sort=True):
        folds = {v: _folds(mine, Path(out)) for v, mine in part.groupby("variant", sort=True)}
        for metric in metrics:
            rows += _family(str(set_), metric, folds, reference, n)
    return DataFrame(rows)


def _folds(rows: "DataFrame", out: Path) -> tuple[list[list[Prediction]], list[float | None]]:
    rows = rows.sort_values(["seed", "fold"])
    cuts = [None if np.isnan(cut) else float(cut) for cut in rows["threshold"]]
    return [load_predictions(out / "runs" / key / "test") for key in rows["run"]], cuts


def _family(
    set_: str, metric: str, folds: dict[Any, tuple[list[list[Prediction]], list[float | None]]], reference: str, n: int
) -> list[dict[str, Any]]:
    """The rows of one metric on one data set."""
    found = {variant: resampled_mean(*mine, n=n) for variant, mine in _with_metric(folds, metric).items()}
    rows = []
    for variant, mine in found.items():
        own = interval(mine.drawn, mine.value, lambda mine=mine: mine.left_out, "bca", LEVEL)  # type: ignore[misc]
        row = {"set": set_, "metric": metric, "variant": variant, "value": mine.value, "low": own.low, "high": own.high}
        row["patients"] = mine.patients
        if reference in found and variant != reference:
            row |= _against(mine.minus(found[reference]), reference)
        rows.append(row)
    tested = [row for row in rows if "p" in row]
    for row, corrected in zip(tested, holm([row["p"] for row in tested]) if tested else [], strict=True):
        row["p_holm"] = corrected
    return rows


def _with_metric(folds: dict[Any, Any], metric: str) -> dict[Any, tuple[Any, str, Any]]:
    return {variant: (cases, metric, cuts) for variant, (cases, cuts) in folds.items()}


def _against(gap: Resampled, reference: str) -> dict[str, Any]:
    found = interval(gap.drawn, gap.value, lambda: gap.left_out, "bca", LEVEL)
    shown = {"difference": gap.value, "difference_low": found.low, "difference_high": found.high}
    return {"reference": reference, **shown, "p": two_sided_p(gap.drawn)}


def comparisons_markdown(rows: "DataFrame", title: str) -> str:
    """The comparisons as a table to read."""
    lines = [f"## {title}", "", "| data set | metric | model | value | − reference | p | p (Holm) |"]
    lines.append("|---|---|---|---:|---:|---:|---:|")
    for row in rows.to_dict("records"):
        value = f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        gap = row.get("difference")
        tested = gap is not None and not np.isnan(gap)
        words = [f"{gap:+.3f} [{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"] if tested else ["–"]
        words += [f"{row[key]:.3g}" if tested else "–" for key in ("p", "p_holm")]
        lines.append(
            f"| {piped(row['set'])} | {row['metric']} | {piped(row['variant'])} | {value} | {' | '.join(words)} |"
        )
    few = sorted({f"{row['set']} ({row['patients']})" for row in rows.to_dict("records") if row["patients"] < FEW})
    warning = [f"- too few patients for intervals and p values to be relied on: {', '.join(few)}"] if few else []
    note = "95 % BCa intervals and two-sided p values; patients resampled, means over folds, Holm within a metric."
    return "\n".join([*lines, "", f"- {note}", *warning, ""])
