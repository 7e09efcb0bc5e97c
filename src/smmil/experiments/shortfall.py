"""Runs that failed or are still missing: their rows stay in the table, and numbers over fewer runs are marked."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

_LONGEST = 160  # characters of a reason below a table


def with_plan(rows: "DataFrame", plan: Any, metrics: Sequence[str]) -> "DataFrame":
    """The rows with `planned` runs, `fewer` where a number rests on fewer, and `state` where there is no number.

    A variant without a single finished run on a data set gets rows of its own, so that it does not vanish.
    """
    from pandas import DataFrame, concat

    planned: dict[Any, int] = {key: _per_rate(part) for key, part in plan.groupby(["set", "variant"])}
    counts = [planned[key] for key in zip(rows["set"], rows["model"], strict=True)]
    fewer = [n < count for n, count in zip(rows["n"], counts, strict=True)]
    rows = rows.assign(planned=counts, fewer=fewer, state="")
    absent = list(_absent(plan, metrics))
    return concat([rows, DataFrame(absent, columns=rows.columns)], ignore_index=True) if absent else rows


def _per_rate(part: "DataFrame") -> int:
    """How many runs (folds x seeds) stand behind one number."""
    return len(part) // max(part["lr"].nunique(), 1)


def _absent(plan: Any, metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row per metric for every variant that has no finished run on a data set."""
    for (set_, variant), part in plan.groupby(["set", "variant"], sort=True):
        if (part["state"] == "done").any():
            continue
        first, failed = part.iloc[0], int((part["state"] == "failed").sum())
        state = f"failed ({failed} run{'s' * (failed != 1)})" if failed else "not run yet"
        facts = {key: first[key] for key in ("dataset", "extractor", "group", "family")}
        nothing = {"mean": math.nan, "std": math.nan, "n": 0, "lr": math.nan}
        for metric in metrics:
            yield {**facts, "model": variant, "metric": metric, "set": set_, "state": state, "fewer": False} | {
                **nothing,
                "planned": _per_rate(part),
            }


def shortfall_notes(rows: "DataFrame", plan: Any) -> list[str]:
    """What the mark ‡ means for each variant, which runs failed and where to look, and what has not been run yet."""
    notes = [f"‡ {s} · {v}: mean over {n} of {planned} runs" for s, v, n, planned in _fewer(rows)]
    for (set_, variant), part in plan.groupby(["set", "variant"], sort=True):
        failed = part[part["state"] == "failed"]
        if len(failed):
            first = failed.iloc[0]
            told = f"{len(failed)} of {len(part)} runs failed, such as {_short(first['reason'])}"
            notes.append(f"{set_} · {variant}: {told}; look in runs/{first['run']}, or ask smmil experiment status")
    waiting = plan[plan["state"].isin(["missing", "running"])]
    counts = waiting.groupby(["set", "variant"], sort=False).size()
    listed = ", ".join(f"{set_} · {variant} ({count} runs)" for (set_, variant), count in counts.items())
    return notes + ([f"not complete yet: {listed}"] if listed else [])


def _fewer(rows: Any) -> list[tuple[str, str, int, int]]:
    marked = rows[rows["fewer"] & (rows["set"].notna())]
    return list(dict.fromkeys((r.set, r.model, int(r.n), int(r.planned)) for r in marked.itertuples()))


def _short(reason: str) -> str:
    words = reason.partition("; see ")[0]
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
