"""Runs that failed or are still missing: their rows stay in the table, and numbers over fewer runs are marked."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from smmil.experiments.results import chosen_rows

if TYPE_CHECKING:
    from pandas import DataFrame

_LONGEST = 160  # characters of a reason below a table
UNCONTESTED = "learning rate not chosen among all"


class Coverage(NamedTuple):
    """How many runs (folds x seeds) a number should rest on, and how many each planned learning rate has."""

    planned: int
    done: dict[float, int]

    @property
    def lacking(self) -> str:
        """The rates that could not compete with all their runs; empty where there is one rate or nothing is missing."""
        if len(self.done) < 2:
            return ""
        return ", ".join(f"{lr:g} has {n} of {self.planned} runs" for lr, n in self.done.items() if n < self.planned)


def coverage(plan: Any) -> dict[tuple[str, str], Coverage]:
    """By data set and variant: what was planned and what of it is done."""
    found = {}
    for (set_, variant), part in plan.groupby(["set", "variant"], sort=True):
        done = {lr: int((runs["state"] == "done").sum()) for lr, runs in part.groupby("lr", sort=False)}
        found[set_, variant] = Coverage(len(part[["seed", "fold"]].drop_duplicates()), done)
    return found


def with_plan(rows: "DataFrame", plan: Any, metrics: Sequence[str]) -> "DataFrame":
    """The rows with `planned` runs, `fewer` where less was done than planned, and `state`: what there is to say.

    A number is marked when it rests on fewer runs, and when its learning rate was chosen although other rates lacked
    runs. A variant without a single finished run on a data set gets rows of its own, so that it does not vanish.
    """
    from pandas import DataFrame, concat

    found = coverage(plan)
    covered = [found[key] for key in zip(rows["set"], rows["model"], strict=True)]
    fewer = [n < one.planned or bool(one.lacking) for n, one in zip(rows["n"], covered, strict=True)]
    states = [state or (UNCONTESTED if c.lacking else "") for state, c in zip(rows["state"], covered, strict=True)]
    counts = [one.planned for one in covered]
    rows = rows.drop(columns="state").assign(planned=counts, fewer=fewer, state=states)
    absent = list(_absent(plan, found, metrics))
    return concat([rows, DataFrame(absent, columns=rows.columns)], ignore_index=True) if absent else rows


def _absent(plan: Any, found: dict[tuple[str, str], Coverage], metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
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
                "planned": found[set_, variant].planned,
            }


def shortfall_notes(results: "DataFrame", plan: Any) -> list[str]:
    """What is missing of a study, or of the part of it that is given: for tables and for pages of comparisons.

    Numbers over fewer runs than planned, learning rates chosen without all runs of all rates, which runs failed and
    where to look, and what has not been run yet.
    """
    notes = list(_marked(results, plan))
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


def _marked(results: "DataFrame", plan: Any) -> Iterator[str]:
    """What the mark ‡ means for each variant that has numbers."""
    found, used = coverage(plan), chosen_rows(results).groupby(["set", "variant"], sort=True).size()
    for key, n in used.items():
        one, where = found[key], " · ".join(key)  # type: ignore[index, arg-type]
        if n < one.planned:
            yield f"‡ {where}: mean over {n} of {one.planned} runs"
        if one.lacking:
            yield f"‡ {where}: {UNCONTESTED}: {one.lacking}"


def incomplete(plan: Any, variants: Iterable[str]) -> list[str]:
    """Those of the variants that lack runs anywhere in the plan."""
    lacking = set(plan["variant"][plan["state"] != "done"])
    return [name for name in variants if name in lacking]


def _short(reason: str) -> str:
    words = reason.partition("; see ")[0]
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
