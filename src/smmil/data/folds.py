"""Dividing patients into parts of similar class shares, every class in every part where that can be done."""

import warnings
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True, eq=False)
class Cases:
    """Bags to divide: ids in ascending order, with label and patient of each."""

    ids: np.ndarray
    labels: np.ndarray
    groups: np.ndarray

    def take(self, where: np.ndarray) -> "Cases":
        return Cases(self.ids[where], self.labels[where], self.groups[where])

    def patients_per_class(self) -> dict[int, int]:
        """Number of patients with at least one bag of each class."""
        return {int(c): len(set(self.groups[self.labels == c])) for c in np.unique(self.labels)}


def deal(cases: Cases, parts: int, seed: int) -> np.ndarray | None:
    """Part of every bag, patients kept whole, each part holding every class; None where no such division is found."""
    if len(np.unique(cases.labels)) < 2 or min(cases.patients_per_class().values()) < parts:
        return None
    for division in (_stratified, _one_by_one):
        part = division(cases, parts, seed)
        if all(_complete(cases, part == p) for p in range(parts)):
            return part
    return None


def draw(cases: Cases, share: float, seed: int, keep: int = 1) -> np.ndarray | None:
    """Mask of about `share` of the bags with every class in it, leaving `keep` patients of each class outside."""
    patients = len(set(cases.groups))
    ratio = Fraction(share).limit_denominator(min(20, patients))
    parts, taken = ratio.denominator, max(1, ratio.numerator)
    if not 0 < taken < parts:
        parts, taken = (patients, 1) if share < 0.5 else (patients, patients - 1)
    for division in (_stratified, _one_by_one):
        part = division(cases, parts, seed)
        for first in range(parts):
            where = (part - first) % parts < taken
            if _complete(cases, where) and _leaves(cases, ~where, keep):
                return where
    return None


def _complete(cases: Cases, where: np.ndarray) -> bool:
    return set(cases.labels[where]) == set(cases.labels)


def _leaves(cases: Cases, where: np.ndarray, patients: int) -> bool:
    return _complete(cases, where) and min(cases.take(where).patients_per_class().values()) >= patients


def _stratified(cases: Cases, parts: int, seed: int) -> np.ndarray:
    """scikit-learn's division: class shares as even as whole patients allow."""
    from sklearn.model_selection import StratifiedGroupKFold

    part = np.full(len(cases.ids), -1)
    if max(np.unique(cases.labels, return_counts=True)[1]) < parts or parts < 2:
        return part
    divider = StratifiedGroupKFold(parts, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about rare classes; the caller checks that every part has them
        for number, (_, chosen) in enumerate(divider.split(cases.ids, cases.labels, cases.groups)):
            part[chosen] = number
    return part


def _one_by_one(cases: Cases, parts: int, seed: int) -> np.ndarray:
    """Deal patients one by one to the part that gains most new classes: with two classes this fills every part."""
    names, member = np.unique(cases.groups, return_inverse=True)
    counts = np.zeros((len(names), cases.labels.max() + 1), dtype=int)
    np.add.at(counts, (member, cases.labels), 1)
    shuffled = np.random.default_rng(seed).permutation(len(names))
    order = shuffled[np.lexsort((-counts[shuffled].sum(1), -(counts[shuffled] > 0).sum(1)))]
    held, place = np.zeros((parts, counts.shape[1]), dtype=int), np.zeros(len(names), dtype=int)
    for patient in order:
        gained = ((held == 0) & (counts[patient] > 0)).sum(1)
        fullness = held[:, counts[patient] > 0].sum(1)
        place[patient] = np.lexsort((held.sum(1), fullness, -gained))[0]
        held[place[patient]] += counts[patient]
    return place[member]
