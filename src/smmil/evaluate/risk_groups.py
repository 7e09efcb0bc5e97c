"""Groups of patients by predicted risk: their survival over time, and whether it differs."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError
from smmil.evaluate.bags import SURVIVAL, need_target, units_of
from smmil.evaluate.resampling import Carriers, carriers_of, p_text
from smmil.evaluate.survival import _FollowUp, _log_rank, _SurvivalCurve
from smmil.evaluate.targets import TargetTable
from smmil.prediction import Prediction

_NAMES = {2: ("low risk", "high risk"), 3: ("low risk", "middle risk", "high risk")}


class _RiskGroup(NamedTuple):
    """Patients of similar predicted risk: how many, how many with an event, and their survival."""

    name: str
    n: int
    n_events: int
    curve: _SurvivalCurve


class RiskGroups(NamedTuple):
    """Groups from low to high risk and the log-rank test of equal survival; p is nan where too few carry it."""

    groups: list[_RiskGroup]
    statistic: float
    p: float
    shortage: str
    notes: list[str]
    word: str  # patients, or cases where patients are unknown

    @property
    def p_text(self) -> str:
        """The p value, or "– (7 patients with an event)"."""
        return p_text(self.p, self.shortage)

    def facts(self) -> dict[str, Any]:
        """Plain numbers, without the curves."""
        sizes = [{"name": g.name, "n": g.n, "n_events": g.n_events} for g in self.groups]
        test = {"log_rank": self.statistic, "p": self.p, "shortage": self.shortage}
        return {"groups": sizes, **test, "notes": self.notes}


def risk_groups(predictions: Sequence[Prediction], groups: int = 2) -> RiskGroups:
    """Patients halved at the median risk, or in thirds, with a log-rank test.

    A patient's risk is the mean over its cases; time and event are the patient's, so that cases which disagree about
    them count as patients of their own, without a test. There is no p where fewer than 10 patients are in a group or
    had an event.
    """
    if groups not in _NAMES:
        raise ConfigError(f"groups: got {groups}, expected 2 (halves) or 3 (thirds)")
    need_target(predictions, "a comparison of risk groups", SURVIVAL)
    table = TargetTable(predictions)
    rows, risk, notes = _patients(table)
    follow_up = _FollowUp(table.target[rows, 0], table.target[rows, 1]) if len(rows) else _FollowUp(risk, risk)
    cuts = np.quantile(risk, np.arange(1, groups) / groups) if len(risk) else np.zeros(0)
    place = np.searchsorted(cuts, risk, "left")
    found = [_group(name, follow_up, place == k) for k, name in enumerate(_NAMES[groups])]
    test, carriers = _log_rank(follow_up, place), _carriers(table, found, len(rows))
    p = math.nan if carriers.shortage or notes else test.p
    word = next(iter(carriers.counts))
    return RiskGroups([g for g in found if g.n], test.statistic, p, carriers.shortage, notes, word)


def _patients(table: TargetTable) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """First case of each patient, the patient's mean risk, and a note where cases of one patient disagree."""
    units, _ = units_of(table.cases)
    if not len(units):
        return units, np.zeros(0), []
    _, first = np.unique(units, return_index=True)
    if (table.target != table.target[first][units]).any():
        return np.arange(len(units)), table.value, ["cases of one patient state different times: no log-rank test"]
    return first, np.bincount(units, table.value) / np.bincount(units), []


def _group(name: str, follow_up: _FollowUp, inside: np.ndarray) -> _RiskGroup:
    part = _FollowUp(follow_up.time[inside], follow_up.event[inside])
    return _RiskGroup(name, len(part), int(part.event.sum()), part.curve())


def _carriers(table: TargetTable, groups: Sequence[_RiskGroup], patients: int) -> Carriers:
    """Patients of each group and with an event, by the word that the cases allow."""
    word = next(iter(carriers_of(table.cases, {}).counts))
    sizes = {f"{word} of {g.name}": g.n for g in groups}
    return Carriers({word: patients, f"{word} with an event": sum(g.n_events for g in groups), **sizes})
