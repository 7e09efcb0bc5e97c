"""Columns of a manifest that hold what is to be predicted where it is no class: their values, checks and strata.

multilabel            one column per label, 0, 1 or empty (unknown); by default all columns `label_…`
ordinal, regression   one column, `label`: a level 0..K-1, or a number
survival, cox         two columns, `time` (above 0) and `event` (1, or 0 where the case was censored)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pandas as pd

from smmil.config import TargetConfig
from smmil.data.tables import COLUMNS, _first_few
from smmil.errors import ConfigError, DataError, brief

_USUAL = {"ordinal": ("label",), "regression": ("label",), "survival": ("time", "event"), "cox": ("time", "event")}
_LABELS = "label_"
_UNKNOWN = ("", "na", "nan", "none")
# Fewer events than these, in all parts together, leave nothing to learn, select and test on.
_LEAST_EVENTS = 5


@dataclass(frozen=True)
class TargetColumns:
    """Which columns of a table hold the target, and of which kind it is."""

    kind: str
    columns: tuple[str, ...]

    def values(self, table: pd.DataFrame) -> list[tuple[float, ...] | None]:
        """The row of numbers of every case; None where it is unknown (of several labels: where all are)."""
        if not set(self.columns) <= set(table.columns):
            return [None] * len(table)
        rows = np.column_stack([_numbers(table[column])[0] for column in self.columns])
        nothing = np.isnan(rows).all(1) if self.kind == "multilabel" else np.isnan(rows).any(1)
        return [None if empty else tuple(row) for row, empty in zip(rows.tolist(), nothing, strict=True)]

    def label(self, values: tuple[float, ...] | None) -> int | None:
        """What `y` of a case is: the level of an ordinal target, of several labels whether any is 1, else nothing."""
        if values is None or self.kind not in ("ordinal", "multilabel"):
            return None
        return int(values[0]) if self.kind == "ordinal" else int(1.0 in values)

    def problems(self, table: pd.DataFrame, training: bool) -> Iterator[str]:
        """What is wrong with the columns, in words; a table to predict may lack them."""
        missing = [column for column in self.columns if column not in table]
        if missing and training:
            near = get_close_matches(missing[0], map(str, table.columns), n=1)
            hint = f"; did you mean {near[0]!r}? rename it, or set target.columns" if near else "; set target.columns"
            yield f"column {missing[0]!r} is missing, which a target of kind {self.kind} needs{hint}"
        if missing:
            return
        wrong = [text for column in self.columns for text in self._wrong_cells(table, column)]
        yield from wrong
        if not wrong and training:
            yield from self._empty(table)
            yield from self._too_little(table)

    def _wrong_cells(self, table: pd.DataFrame, column: str) -> Iterator[str]:
        numbers, words = _numbers(table[column])
        if words:
            gone = sorted({text for cell in table[column] if (text := str(cell).strip()) and _is_unknown(text)})
            read = f" ({_first_few(list(map(brief, gone)))} means unknown)" if gone else ""
            wrong = f"{_first_few(list(map(brief, words)))} is no number{read}"
            yield f"column {column}: {wrong}; correct these rows"
        known = numbers[~np.isnan(numbers)]
        if np.isinf(known).any():
            yield f"column {column}: holds an infinite number; correct these rows"
        elif self._is_binary(column) and not np.isin(known, (0, 1)).all():
            found = _first_few([f"{v:g}" for v in np.unique(known) if v not in (0, 1)])
            yield f"column {column}: must be 0 or 1{self._meaning(column)}, got {found}"
        elif self.kind == "ordinal" and not ((known >= 0) & (known == np.floor(known))).all():
            found = _first_few([f"{v:g}" for v in np.unique(known) if v < 0 or v % 1])
            yield f"column {column}: levels must be whole numbers from 0 on, got {found}"
        elif self.kind in ("survival", "cox") and column == self.columns[0] and (known <= 0).any():
            yield f"column {column}: times must be above 0, {table['id'][numbers <= 0].iloc[0]} has {known.min():g}"

    def _is_binary(self, column: str) -> bool:
        return self.kind == "multilabel" or (self.kind in ("survival", "cox") and column == self.columns[1])

    def _meaning(self, column: str) -> str:
        return " or empty (unknown)" if self.kind == "multilabel" else " (1: event, 0: censored)"

    def _empty(self, table: pd.DataFrame) -> Iterator[str]:
        empty = [id_ for id_, row in zip(table["id"], self.values(table), strict=True) if row is None]
        if empty:
            what = "no label is known" if self.kind == "multilabel" else f"empty {' or '.join(self.columns)}"
            yield f"{what} for {_first_few(empty)}; add it or leave the rows out"

    def _too_little(self, table: pd.DataFrame) -> Iterator[str]:
        """Columns in which nothing differs, levels with gaps, too few events, patients with two times."""
        for column in self.columns:
            found = np.unique(values := _numbers(table[column])[0][~np.isnan(_numbers(table[column])[0])])
            if len(found) == 1 and not (self.kind in ("survival", "cox") and column == self.columns[1]):
                yield f"column {column}: only one value ({values[0]:g}); nothing can be learned from it"
        if self.kind == "ordinal":
            levels = sorted({int(v) for v in _numbers(table[self.columns[0]])[0] if not np.isnan(v)})
            if len(levels) > 1 and levels != list(range(len(levels))):
                yield f"levels must be 0..K-1 without gaps, got {_first_few(list(map(str, levels)))}; renumber them"
        if self.kind in ("survival", "cox"):
            events = int(np.nansum(_numbers(table[self.columns[1]])[0]))
            if events < _LEAST_EVENTS:
                have = "1 case has" if events == 1 else f"{events} cases have"
                yield f"{have} an event, at least {_LEAST_EVENTS} are needed; add cases or follow them up"
            yield from self._two_times(table)

    def _two_times(self, table: pd.DataFrame) -> Iterator[str]:
        group = next((name for name in ("group", "patient") if name in table), None)
        if group is None:
            return
        seen: dict[str, set[tuple[float, ...] | None]] = {}
        for patient, row in zip(table[group], self.values(table), strict=True):
            seen.setdefault(patient, set()).add(row)
        if unlike := [patient for patient, rows in seen.items() if patient and len(rows) > 1]:
            yield f"patient with two times or events: {_first_few(unlike)}; all bags of a patient have the same"

    def strata(self, rows: Sequence[tuple[float, ...]]) -> list[np.ndarray]:
        """Strata of cases that keep the parts of a split alike, the finest first, coarser ones for few patients."""
        values = np.array(rows, dtype=np.float64)
        if self.kind == "ordinal":
            return [values[:, 0].astype(int)]
        if self.kind == "regression":
            return [_ranked(values[:, 0], 4), _ranked(values[:, 0], 2)]
        if self.kind == "multilabel":
            positive = values == 1
            rarest = np.argsort(positive.sum(0), kind="stable")
            first = [next((n + 1 for n, label in enumerate(rarest) if row[label]), 0) for row in positive]
            return [_numbered(np.array(first)), positive.any(1).astype(int), _numbered(positive[:, rarest[-1]])]
        event = values[:, 1] > 0
        late = values[:, 0] > np.median(values[event, 0]) if event.any() else event
        return [_numbered(np.where(event, 1 + late, 0)), event.astype(int)]


def target_strata(
    target: TargetColumns | None,
    labels: Mapping[str, int | None],
    rows: Mapping[str, tuple[float, ...] | None],
    ids: Iterable[str],
    coarser: int = 0,
) -> dict[str, int | None]:
    """Stratum of each bag: its class, or the finest (or a coarser) one of its target; None where nothing is known."""
    if target is None:
        return {i: labels[i] for i in ids}
    known = {i: row for i in ids if (row := rows[i]) is not None}
    choices = target.strata(list(known.values())) if known else []
    strata = choices[min(coarser, len(choices) - 1)].tolist() if choices else []
    found = dict(zip(known, strata, strict=True))
    return {i: found.get(i) for i in ids}


def _numbered(values: np.ndarray) -> np.ndarray:
    """The same partition with strata 0..s-1."""
    return np.unique(values, return_inverse=True)[1]


def _ranked(values: np.ndarray, parts: int) -> np.ndarray:
    """Which of `parts` equally large groups of rising values each belongs to."""
    ranks = np.searchsorted(np.sort(values), values, side="left")
    return _numbered(ranks * parts // len(values))


def _is_unknown(text: str) -> bool:
    return text.strip().lower() in _UNKNOWN


def _numbers(cells: pd.Series) -> tuple[np.ndarray, list[str]]:
    """Numbers of a column, nan where it is empty, and the texts that are none."""
    texts = pd.Series(["" if pd.isna(cell) else str(cell).strip() for cell in cells], dtype=object)
    empty = texts.map(_is_unknown)
    numbers = pd.to_numeric(texts.where(~empty, "nan"), errors="coerce").to_numpy(np.float64)
    return numbers, sorted(set(texts[~empty.to_numpy() & np.isnan(numbers)]))


def find_columns(config: TargetConfig, table: pd.DataFrame, where: str) -> TargetColumns | None:
    """The columns that settings name, or the usual ones; None for classes."""
    if config.kind == "class":
        if config.columns is not None:
            raise ConfigError("target.columns: a class is the column label; leave it out, or set target.kind")
        return None
    usual = _USUAL.get(config.kind, tuple(str(c) for c in table.columns if str(c).startswith(_LABELS)))
    columns = usual if config.columns is None else tuple(config.columns)
    if not columns:
        raise DataError(f"{where}: no column {_LABELS}…; name the columns of the labels with target.columns=[…]")
    if len(set(columns)) < len(columns) or {*columns} & {*COLUMNS} - {"label"}:
        raise ConfigError(f"target.columns: {', '.join(columns)} are not columns of their own")
    if config.kind in _USUAL and len(columns) != len(usual):
        wanted = f"{len(usual)} ({' and '.join(usual)})"
        raise ConfigError(f"target.columns: kind {config.kind} takes {wanted}, got {', '.join(columns)}")
    return TargetColumns(config.kind, columns)


def _guessed_kind(table: pd.DataFrame) -> str:
    """The kind that a table looks like, to describe it: nothing but the settings of a run decides it."""
    names = [str(column) for column in table.columns]
    if "label" in names:
        numbers, words = _numbers(table["label"])
        known = numbers[~np.isnan(numbers)]
        return "regression" if not words and len(known) and (known % 1 != 0).any() else "class"
    if {"time", "event"} <= set(names):
        return "survival"
    return "multilabel" if any(name.startswith(_LABELS) for name in names) else "class"


def _described(columns: TargetColumns, table: pd.DataFrame) -> Mapping[str, object]:
    """What the columns of a target hold, as plain JSON values."""
    facts: dict[str, object] = {"kind": columns.kind}
    for column in columns.columns:
        numbers, _ = _numbers(table[column])
        known = numbers[np.isfinite(numbers)]
        empty = {"empty": len(numbers) - len(known)} if len(known) < len(numbers) else {}
        if columns._is_binary(column) or columns.kind == "ordinal":
            found, count = np.unique(known, return_counts=True)
            facts[column] = {f"{v:g}": int(n) for v, n in zip(found, count, strict=True)} | empty
        elif len(known):
            middle = {"least": known.min(), "median": np.median(known), "largest": known.max()}
            facts[column] = {name: float(value) for name, value in middle.items()} | empty
    return facts
