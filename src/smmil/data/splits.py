"""Train, validation and test splits without leakage: grouped by patient, stratified by label, seeded."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from smmil.data.manifest import Manifest
from smmil.data.tables import _first_few
from smmil.errors import ConfigError, DataError, brief, check_choice
from smmil.files import read_json, write_json

PARTS = ("train", "val", "test")
_MOST_STRATA = 3  # of a target that is no class: finer and coarser ones, tried in turn
TESTS = ("fixed", "rotate")


@dataclass(frozen=True, eq=False)
class _StratifiedCases:
    """Bags to divide: ids in ascending order, with label and patient of each."""

    ids: np.ndarray
    labels: np.ndarray
    groups: np.ndarray

    def take(self, where: np.ndarray) -> "_StratifiedCases":
        return _StratifiedCases(self.ids[where], self.labels[where], self.groups[where])

    def patients_per_class(self) -> dict[int, int]:
        """Number of patients with at least one bag of each class."""
        return {int(c): len(set(self.groups[self.labels == c])) for c in np.unique(self.labels)}

    def by_patient(self) -> "_StratifiedCases":
        """One row for every patient, with the highest of the patient's labels; the same where each has one bag."""
        _, first, member = np.unique(self.groups, return_index=True, return_inverse=True)
        strongest = np.full(len(first), self.labels.min(initial=0))
        np.maximum.at(strongest, member, self.labels)
        rows = np.sort(first)
        return _StratifiedCases(self.ids[rows], strongest[member[rows]], self.groups[rows])

    def complete(self, where: np.ndarray) -> bool:
        """Whether a part of the bags holds every class."""
        return set(self.labels[where]) == set(self.labels)

    def too_few(self) -> str:
        """Beginning of an error message that ends with what the patients are too few for."""
        counts = ", ".join(f"class {c}: {n}" for c, n in self.patients_per_class().items())
        return f"too few patients ({counts}) for"


def _assign_folds(cases: _StratifiedCases, parts: int, seed: int) -> np.ndarray | None:
    """Part of every bag, patients kept whole, each part holding every class; None where no such division is found."""
    if len(np.unique(cases.labels)) < 2 or min(cases.patients_per_class().values()) < parts:
        return None
    for division in (_stratified_assignment, _greedy_assignment):
        part = division(cases, parts, seed)
        if all(cases.complete(part == p) for p in range(parts)):
            return part
    return None


def _folds_of_patients(cases: _StratifiedCases, parts: int, seed: int) -> np.ndarray | None:
    """As `_assign_folds`, with as many patients of each class in every part as can be, however many bags they have.

    Patients are divided by the highest of their labels; where a part would then lack a class of the bags, by bags.
    """
    people = cases.by_patient()
    part = _assign_folds(people, parts, seed)
    if part is not None:
        place = dict(zip(people.groups.tolist(), part.tolist(), strict=True))
        part = np.array([place[who] for who in cases.groups.tolist()])
        if all(cases.complete(part == p) for p in range(parts)):
            return part
    return _assign_folds(cases, parts, seed)


def _draw_subset(cases: _StratifiedCases, share: float, seed: int, keep: int = 1) -> np.ndarray | None:
    """Mask of about `share` of the bags with every class in it, leaving `keep` patients of each class outside."""
    patients = len(set(cases.groups))
    ratio = Fraction(share).limit_denominator(min(20, patients))
    parts, taken = ratio.denominator, max(1, ratio.numerator)
    if not 0 < taken < parts:
        parts, taken = (patients, 1) if share < 0.5 else (patients, patients - 1)
    for division in (_stratified_assignment, _greedy_assignment):
        part = division(cases, parts, seed)
        for first in range(parts):
            where = (part - first) % parts < taken
            whole = cases.complete(where) and cases.complete(~where)
            if whole and min(cases.take(~where).patients_per_class().values()) >= keep:
                return where
    return None


def _stratified_assignment(cases: _StratifiedCases, parts: int, seed: int) -> np.ndarray:
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


def _greedy_assignment(cases: _StratifiedCases, parts: int, seed: int) -> np.ndarray:
    """Assign patients one by one to the part that gains most new classes; with two classes this fills every part."""
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


@dataclass(frozen=True)
class Split:
    """Ids of the training, validation and test bags."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, list[str]]:
        return {part: list(ids) for part, ids in asdict(self).items()}

    @classmethod
    def from_dict(cls, content: Any, where: str | Path) -> "Split":
        """The split in the content of a file; `where` names it in the error."""
        if not isinstance(content, dict) or sorted(content) != sorted(PARTS):
            raise DataError(f"{where}: a split needs exactly the lists train, val and test")
        for ids in content.values():
            if not isinstance(ids, list) or not all(isinstance(id_, str | int) for id_ in ids):
                raise DataError(f"{where}: expected lists of ids in train, val and test, got {brief(ids)}")
        return cls(*(tuple(str(i) for i in content[part]) for part in PARTS))


def make_splits(
    manifest: Manifest,
    *,
    folds: int = 5,
    val_share: float = 0.2,
    test_share: float = 0.2,
    seed: int = 0,
    test: str = "fixed",
) -> list[Split]:
    """A fixed test set and `folds` train/validation splits of the rest, as in the paper, or rotating test sets.

    A manifest that marks every row as train, val or test gives exactly that one split. Rows marked test are the test
    set; without such rows it is drawn once. When val_share is 1/folds every bag validates exactly once; otherwise each
    fold draws its own validation set. No patient is in two parts; each part holds every class.

    test="rotate": the patients are divided into `folds` parts; fold f tests part f, and the rest is divided into
    training and validation (val_share), so that every patient is tested exactly once. test_share is not used.
    """
    check_choice(test, TESTS, "data.test")
    if folds < 1:
        raise ConfigError(f"folds must be at least 1, got {folds}")
    if not 0 < val_share < 1:
        raise ConfigError(f"val_share must lie between 0 and 1, got {val_share}")
    if not 0 <= test_share < 1:
        raise ConfigError(f"test_share must be 0 or lie between 0 and 1, got {test_share}")
    if test == "rotate":
        _refuse_rotation(manifest, folds)
        return _first_possible(_rotating_splits, manifest, folds, val_share, seed)
    marks = manifest.splits
    if all(marks.values()) and "val" in marks.values():
        split = Split(*(tuple(sorted(i for i, mark in marks.items() if mark == part)) for part in PARTS))
        refuse_leaks(manifest, split)
        known = manifest.labels if manifest.target is None else manifest.targets
        what = "class" if manifest.target is None else "value of the target"
        for part in ("train", "val"):
            if (held := len({known[i] for i in getattr(split, part)})) < 2:
                raise DataError(f"{manifest.name}: the rows marked {part} hold {held} {what}; both need at least two")
        return [split]
    splits = _first_possible(_drawn_splits, manifest, folds, val_share, test_share, seed)
    for split in splits:
        refuse_leaks(manifest, split)
    return splits


def _first_possible(draw: Callable[..., list[Split]], manifest: Manifest, *settings: Any) -> list[Split]:
    """Splits with the finest strata of a target that the patients allow; classes have no others."""
    for coarser in range(0 if manifest.target is None else _MOST_STRATA - 1):
        with suppress(DataError):
            return draw(manifest, coarser, *settings)
    return draw(manifest, _MOST_STRATA - 1, *settings)


def _refuse_rotation(manifest: Manifest, folds: int) -> None:
    """Raise an error where test sets cannot rotate."""
    if folds < 2:
        raise ConfigError(f"data.test: rotate needs at least 2 folds, got {folds}; set data.folds=5")
    marked = Counter(mark for mark in manifest.splits.values() if mark in ("val", "test"))
    if marked:
        counts = ", ".join(f"{word}: {n}" for word, n in sorted(marked.items()))
        raise DataError(
            f"{manifest.name}: the column split marks rows ({counts}), but with data.test: rotate every patient is "
            "tested in turn; remove the column, or keep its test set with data.test: fixed"
        )


def _rotating_splits(manifest: Manifest, coarser: int, folds: int, val_share: float, seed: int) -> list[Split]:
    """One split per part of the patients, which is its test set."""
    cases = _cases(manifest, manifest.ids, coarser)
    part = _folds_of_patients(cases, folds, seed)
    if part is None:
        raise DataError(
            f"{manifest.name}: {cases.too_few()} {folds} test sets that each hold every class; use fewer folds "
            "(--set data.folds=2 is the least), or add patients"
        )
    splits = []
    for fold in range(folds):
        rest, tested = cases.take(part != fold), cases.take(part == fold)
        val = _draw_subset(rest, val_share, seed + 1 + fold)
        if val is None:
            raise DataError(
                f"{manifest.name}: {rest.too_few()} training and validation of fold {fold} that each hold every class; "
                "use more folds, so that fewer test at once, or add patients"
            )
        splits.append(Split(*(tuple(ids.tolist()) for ids in (rest.ids[~val], rest.ids[val], tested.ids))))
        refuse_leaks(manifest, splits[-1])
    return splits


def small_test_note(manifest: Manifest, split: Split, least: int) -> str:
    """What to do when the test set holds fewer than `least` patients of some kind; empty where it holds enough."""
    if not split.test:
        return ""
    kinds = _patients_by_kind(manifest, split.test)
    fewest = min(kinds, key=lambda kind: len(kinds[kind]), default=None)
    if fewest is None or len(kinds[fewest]) >= least:
        return ""
    marked = " and no column split" if any(manifest.splits.values()) else ""
    each = "" if len(kinds) == 1 else " of each kind" if manifest.target else " of each class"
    return (
        f"the test set holds {len(kinds[fewest])} patients{fewest}; with fewer than {least}{each} most metrics will "
        f"have no intervals and no p values: test every patient once with --set data.test=rotate{marked}"
    )


def _patients_by_kind(manifest: Manifest, ids: Iterable[str]) -> dict[str, set[str]]:
    """Patients of each kind that the metrics of a target need, by its words: " of class 1", " with an event"."""
    spec, whole = manifest.target, list(ids)
    if spec is None or spec.kind == "ordinal":
        known = [(id_, y) for id_ in whole if (y := manifest.labels[id_]) is not None]
        present = sorted({y for y in manifest.labels.values() if y is not None})
        if len(present) < 2:
            return {}
        if spec is None:
            return {f" of class {c}": {manifest.groups[i] for i, y in known if y == c} for c in present}
        usual = Counter(y for _, y in known).most_common(1)[0][0] if known else present[0]
        return {f" not of level {usual}": {manifest.groups[i] for i, y in known if y != usual}}
    rows = {id_: row for id_ in whole if (row := manifest.targets[id_]) is not None}
    if spec.kind in ("survival", "cox"):
        return {" with an event": {manifest.groups[i] for i, row in rows.items() if row[1] > 0}}
    if spec.kind == "multilabel":
        return {
            f" {word} {name}": {manifest.groups[i] for i, row in rows.items() if row[column] == state}
            for column, name in enumerate(spec.columns)
            for state, word in ((1, "with"), (0, "without"))
        }
    return {"": {manifest.groups[i] for i in rows}}


def _drawn_splits(
    manifest: Manifest, coarser: int, folds: int, val_share: float, test_share: float, seed: int
) -> list[Split]:
    """Splits with the strata of a target that are `coarser` than its finest ones; classes have no others."""
    rest, test = _fixed_test(manifest, coarser, folds, test_share, seed)
    return [
        Split(tuple(rest.ids[~val].tolist()), tuple(rest.ids[val].tolist()), test)
        for val in _validations(rest, folds, val_share, seed)
    ]


def _fixed_test(
    manifest: Manifest, coarser: int, folds: int, share: float, seed: int
) -> tuple[_StratifiedCases, tuple[str, ...]]:
    """The bags to divide further, and the test set."""
    marks = manifest.splits
    used = set(marks.values())
    if used - {"", "test"} and used != {"train", "test"} and used != {"train"}:
        counts = ", ".join(f"{word or 'empty'}: {n}" for word, n in sorted(Counter(marks.values()).items()))
        raise DataError(
            f"{manifest.name}: the column split is filled for some rows only ({counts}); "
            "mark every row, or only the test rows"
        )
    test = tuple(sorted(i for i, mark in marks.items() if mark == "test"))
    rest = _cases(manifest, [i for i in manifest.ids if marks[i] != "test"], coarser)
    if test or share == 0:
        return rest, test
    where = _draw_subset(rest, share, seed, keep=folds)
    if where is None:
        raise DataError(
            f"{manifest.name}: {rest.too_few()} a test set and {folds} folds; use fewer folds or no test set, such as "
            "--set data.folds=2 --set data.test_share=0"
        )
    return rest.take(~where), tuple(rest.ids[where].tolist())


def _validations(rest: _StratifiedCases, folds: int, share: float, seed: int) -> list[np.ndarray]:
    """One mask of validation bags per fold."""
    if folds > 1 and round(1 / share) == folds and abs(1 / share - folds) < 0.05:
        fold = _assign_folds(rest, folds, seed)
        masks = [] if fold is None else [fold == f for f in range(folds)]
    else:
        drawn = (_draw_subset(rest, share, seed + 1 + f) for f in range(folds))
        masks = [mask for mask in drawn if mask is not None]
    if len(masks) < folds:
        if folds == 1:
            raise DataError(
                f"{rest.too_few()} parts that each hold every class; say in a column split (or --split FILE) which "
                "case trains, validates and tests"
            )
        raise DataError(
            f"{rest.too_few()} {folds} folds with every class in training and validation; use fewer folds, such as "
            "--set data.folds=2"
        )
    return masks


def _cases(manifest: Manifest, ids: Sequence[str], coarser: int = 0) -> _StratifiedCases:
    """Ids, labels and patients in the order of the ids, so that the order of the table does not matter."""
    ordered = sorted(ids)
    if not ordered:
        raise DataError(f"{manifest.name}: every row is marked test, so there is nothing to train on")
    labels = list(manifest.strata(coarser, ordered).values())
    if None in labels:
        raise DataError(f"{manifest.name}: bag {ordered[labels.index(None)]!r} has no label; splits need one for each")
    return _StratifiedCases(np.array(ordered, dtype=object), np.array(labels), _patients_of(manifest, ordered))


def _patients_of(manifest: Manifest, ids: Sequence[str]) -> np.ndarray:
    return np.array([manifest.groups[i] for i in ids])


def refuse_leaks(manifest: Manifest, split: Split) -> None:
    """An error when a patient or a bag sits in two parts, or when an id is not in the manifest."""
    everything = [i for part in PARTS for i in getattr(split, part)]
    if (unknown := sorted(set(everything) - set(manifest.ids))) != []:
        raise DataError(
            f"{manifest.name}: the split names {len(unknown)} bags that are not in it, such as {unknown[0]!r}"
        )
    if (twice := [i for i, n in Counter(everything).items() if n > 1]) != []:
        raise DataError(f"{manifest.name}: bag {twice[0]!r} sits in two parts of the split")
    places: dict[str, set[str]] = {}
    for part in PARTS:
        for i in getattr(split, part):
            places.setdefault(manifest.groups[i], set()).add(part)
    leaks = sorted(f"{g} ({', '.join(sorted(p))})" for g, p in places.items() if len(p) > 1)
    if leaks:
        raise DataError(f"{manifest.name}: patient in two splits: {_first_few(leaks)}; keep each in one part")


def save_splits(path: str | Path, splits: Sequence[Split]) -> None:
    """Write splits as JSON, atomically."""
    write_json(path, [split.to_dict() for split in splits])


def load_splits(path: str | Path) -> list[Split]:
    """The splits that `save_splits` wrote."""
    content = read_json(path)
    if not isinstance(content, list) or not content:
        raise DataError(f"{path}: expected a list of splits, each with train, val and test")
    return [Split.from_dict(part, path) for part in content]


def run_split(run_dir: Path) -> Split:
    """The split in the folder of a run, in which some bags train and some validate."""
    path = run_dir / "split.json"
    split = Split.from_dict(read_json(path), path)
    if not split.train or not split.val:
        raise DataError(f"{path}: names no bags to train or to validate; restore it, or train again in another folder")
    return split
