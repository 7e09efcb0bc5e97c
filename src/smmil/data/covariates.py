"""Clinical covariates: columns of a manifest as standardised numbers, learned on training patients alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from smmil.config import checked
from smmil.data.tables import COLUMNS
from smmil.errors import ConfigError, DataError, brief, suggest

# A column with more words than this is a name or a free text, which would be stored with the weights.
_MOST_WORDS = 20


class _ColumnSource(Protocol):
    """The part of a Manifest that covariates read."""

    @property
    def table(self) -> pd.DataFrame: ...

    @property
    def name(self) -> str: ...

    @property
    def ids(self) -> tuple[str, ...]: ...

    @property
    def groups(self) -> dict[str, str]: ...


class _Column(BaseModel):
    """A covariate as training saw it.

    kind       number, or words: one indicator for each of `words`
    mean, deviation  of each of its numbers over the training patients
    missing    whether training patients lacked it: then its last number says so
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
    name: str
    kind: Literal["number", "words"]
    words: list[str]
    mean: list[float]
    deviation: list[float]
    missing: bool

    def numbers(self, text: str, where: str) -> list[float]:
        """The raw numbers of a cell; nan where it is empty, and at the end whether it is."""
        gone = [float(text == "")] if self.missing else []
        if self.kind == "number":
            return [_number(text, where) if text else math.nan, *gone]
        if text and text not in self.words:
            known = ", ".join(map(brief, self.words))
            raise DataError(f"{where}: {brief(text)} was not seen in training, which knows {known}; correct it")
        return [*(float(text == word) if text else math.nan for word in self.words), *gone]


class _Columns(BaseModel):
    model_config = ConfigDict(strict=True)
    columns: list[_Column]


@dataclass(frozen=True)
class Covariates:
    """How columns of a manifest become the numbers that join a bag's vector.

    A number z becomes (z - mean) / deviation of the training patients, each patient counting once; words become one
    indicator each, standardised alike. What is missing is 0, the mean, and where training patients lacked it too a
    further number says so.
    """

    columns: tuple[_Column, ...]

    @classmethod
    def learned(cls, manifest: _ColumnSource, names: Sequence[str], ids: Iterable[str]) -> "Covariates":
        """Words, means and deviations of these columns over the patients of these cases, which train."""
        twice = [name for n, name in enumerate(names) if name in names[:n]]
        if twice:
            raise ConfigError(f"data.covariates: {twice[0]!r} is given twice")
        _need_columns(manifest, names)
        patients: dict[str, list[str]] = {}
        for id_ in sorted(ids):
            patients.setdefault(manifest.groups[id_], []).append(id_)
        return cls(tuple(_learned(manifest, name, list(patients.values())) for name in names))

    @classmethod
    def from_facts(cls, facts: Any, where: str) -> "Covariates":
        """What `facts` gave, checked."""
        found = tuple(checked(_Columns, {"columns": facts}, f"{where}: covariates").columns)
        for column in found:
            width = (1 if column.kind == "number" else len(column.words)) + column.missing
            sound = len(column.mean) == len(column.deviation) == width and all(d > 0 for d in column.deviation)
            if not sound:
                raise DataError(f"{where}: covariate {column.name!r} is damaged; copy the file again")
        return cls(found)

    def facts(self) -> list[dict[str, Any]]:
        """Plain JSON, to be stored with the weights."""
        return [column.model_dump() for column in self.columns]

    @property
    def width(self) -> int:
        return sum(len(column.mean) for column in self.columns)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def need_columns(self, manifest: _ColumnSource) -> None:
        """Raise an error if the manifest lacks one of the columns."""
        _need_columns(manifest, self.names)

    def need(self, manifest: _ColumnSource, ids: Iterable[str]) -> None:
        """Raise an error if a column is missing, or these cases hold a word or number that cannot be used."""
        for problem in self.unusable(manifest, ids).values():
            raise DataError(problem)

    def unusable(self, manifest: _ColumnSource, ids: Iterable[str]) -> dict[str, str]:
        """Cases of these whose covariates cannot be used, and why; an error if a column is missing."""
        self.need_columns(manifest)
        chosen = list(ids)
        found: dict[str, str] = {}
        for column in self.columns:
            cells = _cells(manifest, column.name)
            for id_ in chosen:
                try:
                    column.numbers(cells[id_], _where(manifest, id_, column.name))
                except DataError as problem:
                    found.setdefault(id_, str(problem))
        return found

    def row(self, manifest: _ColumnSource, cases: Sequence[str]) -> Tensor:
        """The numbers (q,) of a bag of these cases, which must not contradict each other."""
        found: list[float] = []
        for column in self.columns:
            cells = _cells(manifest, column.name)
            text = _agreed(manifest, column.name, {id_: cells[id_] for id_ in cases})
            raw = np.array(column.numbers(text, _where(manifest, cases[0], column.name)))
            scaled = (raw - np.array(column.mean)) / np.array(column.deviation)
            found += np.where(np.isnan(scaled), 0.0, scaled).tolist()
        return torch.tensor(found, dtype=torch.float32)

    def missing_in_words(self, manifest: _ColumnSource, ids: Sequence[str]) -> list[str]:
        """One sentence for each column that is empty in some of these cases."""
        sentences = []
        for column in self.columns:
            cells = _cells(manifest, column.name)
            count = sum(not cells[id_] for id_ in ids)
            more = " and an indicator says so" if column.missing else ""
            if count:
                text = f"covariate {column.name}: missing in {count} of {len(ids)} cases; the mean of training is used"
                sentences.append(text + more)
        return sentences


def _where(manifest: _ColumnSource, id_: str, column: str) -> str:
    return f"{manifest.name}: {id_}: {column}"


def _need_columns(manifest: _ColumnSource, names: Sequence[str]) -> None:
    there = list(map(str, manifest.table.columns))
    for name in names:
        if name in COLUMNS:
            raise ConfigError(f"data.covariates: {name!r} is a column of the study itself, not a fact about patients")
        if name not in there:
            others = [column for column in there if column not in COLUMNS]
            raise DataError(
                f"{manifest.name}: the model reads the covariate {name!r}, which is no column here; add it "
                f"({suggest(name, others) if others else 'there are no further columns'})"
            )


def _cells(manifest: _ColumnSource, column: str) -> Mapping[str, str]:
    """A column as text by id, empty where nothing is written; read once for every manifest."""
    kept: dict[str, dict[str, str]] = manifest.__dict__.setdefault("_covariate_cells", {})
    if column not in kept:
        texts = ["" if pd.isna(cell) else str(cell).strip() for cell in manifest.table[column]]
        kept[column] = dict(zip(manifest.ids, texts, strict=True))
    return kept[column]


def _agreed(manifest: _ColumnSource, column: str, cells: Mapping[str, str]) -> str:
    """What the cases of a patient say, those that say anything."""
    said = {text: id_ for id_, text in cells.items() if text}
    if len(said) > 1:
        (one, first), (other, second), *_ = said.items()
        raise DataError(
            f"{manifest.name}: cases of one patient have different {column} ({first}: {brief(one)}, {second}: "
            f"{brief(other)}); state one for the patient, or use data.bags=case"
        )
    return next(iter(said), "")


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{where}: {brief(text)} is no number, as it was in training; correct it") from None
    if not math.isfinite(value):
        raise DataError(f"{where}: {brief(text)} is no finite number; leave the cell empty where it is unknown")
    return value


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _learned(manifest: _ColumnSource, name: str, patients: Sequence[Sequence[str]]) -> _Column:
    """A column as these patients show it; of several cases of a patient the mean counts."""
    cells = _cells(manifest, name)
    texts = sorted({cells[id_] for cases in patients for id_ in cases} - {""})
    words = [] if all(map(_is_number, texts)) else texts
    if len(words) > _MOST_WORDS:
        raise ConfigError(
            f"data.covariates: {name!r} holds {len(words)} different words in training, at most {_MOST_WORDS} are "
            "possible; names and free text are no covariates"
        )
    missing = any(not cells[id_] for cases in patients for id_ in cases)
    plain = _Column(name=name, kind="words" if words else "number", words=words, mean=[], deviation=[], missing=missing)
    rows = [[plain.numbers(cells[id_], _where(manifest, id_, name)) for id_ in cases] for cases in patients]
    known = np.array([_mean(np.array(cases)) for cases in rows])
    if len(texts) < 2 or not (deviation := np.nanstd(known, axis=0)).all():
        raise ConfigError(
            f"data.covariates: {name!r} is {brief(texts[0]) if texts else 'empty'} in every training patient, or tells "
            "none of them apart; leave it out"
        )
    return plain.model_copy(update={"mean": np.nanmean(known, axis=0).tolist(), "deviation": deviation.tolist()})


def _mean(rows: np.ndarray) -> np.ndarray:
    """Mean over the cases of a patient where they are known, nan where none is."""
    known = ~np.isnan(rows)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, rows, 0.0).sum(0) / np.maximum(count, 1), np.nan)
