"""Bags of patients: all slides or series of one patient as one bag, and clinical covariates beside the features.

The cases of a patient stand below each other in the order of their ids, without an edge between two of them. Their
coordinates are moved apart, so that what looks for neighbours by position finds none in another case. All cases of a
patient are in memory together while their bag is.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smmil.bag import Bag
from smmil.data.covariates import Covariates
from smmil.data.manifest import Manifest
from smmil.data.targets import TargetColumns, target_strata
from smmil.errors import DataError
from smmil.formats.rows import JoinedRows, OpenBag
from smmil.frame import Frame
from smmil.graph import join

# Empty steps between two cases: more than the widest window of a model on a lattice (set_mil) reaches to both sides.
GAP = 20
_SAME_SPACING = 0.01


def join_bags(id_: str, bags: Sequence[Bag], y: int | None = None) -> Bag:
    """Several bags of one patient as one, in this order; a single one only changes its name and label."""
    if len(bags) == 1:
        return replace(bags[0], id=id_, y=y)
    _refuse_unlike(id_, bags)
    coords, graphs = _all_or_none(id_, bags, "coords"), _all_or_none(id_, bags, "graph")
    quality = [bag.quality for bag in bags if bag.quality is not None]
    return Bag(
        id_,
        torch.cat([bag.x for bag in bags]),
        None if coords is None else torch.cat(side_by_side(coords, bags[0].frame)),
        bags[0].frame,
        None if graphs is None else join(graphs),
        y,
        _instance_labels(bags),
        torch.cat(quality) if len(quality) == len(bags) and len({q.shape[1] for q in quality}) == 1 else None,
        _shared_row(id_, bags, "target"),
        _shared_row(id_, bags, "covariates"),
    )


def side_by_side(coords: Sequence[Tensor], frame: Frame | None) -> list[Tensor]:
    """Coordinates (n, k) of several cases, moved so that no two are closer than `GAP` steps along some axis.

    Slides (k = 2) fill rows of a square, scans (k = 1 or 3) follow each other along z. The first stays where it is, the
    others move by whole steps of its lattice, if they have one.
    """
    if len(coords) == 1:
        return list(coords)
    axes = coords[0].shape[1]
    points = [c.double() for c in coords]
    steps = _steps(points, frame, axes)
    extents = torch.stack([torch.ceil((p.amax(0) - p.amin(0)) / steps) + 1 for p in points])
    across = math.ceil(math.sqrt(len(coords))) if axes == 2 else 1
    place = _shelves(extents, across) if axes == 2 else _stacked(extents)
    moved = [p - p.amin(0) + points[0].amin(0) + where * steps for p, where in zip(points, place, strict=True)]
    kept = coords[0].dtype if all(bool((m == m.round()).all()) for m in moved) else torch.float64
    return [m.to(kept if kept.is_floating_point or _fits(m, kept) else torch.int64) for m in moved]


def _fits(points: Tensor, dtype: torch.dtype) -> bool:
    return bool(points.amax() <= torch.iinfo(dtype).max)


def _steps(points: Sequence[Tensor], frame: Frame | None, axes: int) -> Tensor:
    """Distance of neighbours along each axis: the frame's, else the smallest of any case along each axis, else 1."""
    if frame is not None and len(frame.step) in (1, axes):
        return torch.tensor(frame.step, dtype=torch.float64).expand(axes)
    gaps = [[p[:, axis].unique().diff() for p in points] for axis in range(axes)]
    return torch.tensor(
        [min((float(g.min()) for g in found if len(g)), default=1.0) for found in gaps], dtype=torch.float64
    )


def _shelves(extents: Tensor, across: int) -> list[Tensor]:
    """Place (x, y) of each case in steps: rows of `across` cases, each row below the tallest of the one before."""
    places, top = [], 0.0
    for row in extents.split(across):
        left = torch.cat([torch.zeros(1, dtype=torch.float64), (row[:, 0] + GAP).cumsum(0)[:-1]])
        places += [torch.tensor([x, top], dtype=torch.float64) for x in left.tolist()]
        top += float(row[:, 1].max()) + GAP
    return places


def _stacked(extents: Tensor) -> list[Tensor]:
    """Place of each case in steps, one behind the other along the last axis."""
    places = torch.zeros_like(extents)
    places[1:, -1] = (extents[:, -1] + GAP).cumsum(0)[:-1]
    return list(places)


def _refuse_unlike(id_: str, bags: Sequence[Bag]) -> None:
    """Raise an error that names two cases whose features or frames do not belong into one bag."""
    first = bags[0]
    for bag in bags[1:]:
        if bag.x.shape[1] != first.x.shape[1]:
            what = f"{first.x.shape[1]} features per instance, {bag.id} has {bag.x.shape[1]}; use one encoder for all"
            raise DataError(f"patient of {id_}: {first.id} has {what}")
        axes = [None if b.coords is None else b.coords.shape[1] for b in (first, bag)]
        if axes[0] != axes[1] and None not in axes:
            raise DataError(f"patient of {id_}: {first.id} has {axes[0]} coordinates, {bag.id} has {axes[1]}")
        if not _same_frame(first.frame, bag.frame):
            shown = [_in_words(b.frame) for b in (first, bag)]
            raise DataError(
                f"patient of {id_}: {first.id} has {shown[0]}, {bag.id} has {shown[1]}; cases of one bag need the same "
                "patch and spacing: prepare them with one recipe, or use data.bags=case"
            )


def _same_frame(a: Frame | None, b: Frame | None) -> bool:
    """Whether patches, steps and units are equal, and the spacing within a hundredth (two scans of one scanner)."""
    if a is None or b is None:
        return a is b
    if (a.patch, a.step, a.unit) != (b.patch, b.step, b.unit) or (a.spacing is None) != (b.spacing is None):
        return False
    pairs = zip(a.spacing or (), b.spacing or (), strict=False)
    return all(math.isclose(one, other, rel_tol=_SAME_SPACING) for one, other in pairs)


def _in_words(frame: Frame | None) -> str:
    return "no frame" if frame is None else f"patch {frame.patch}, spacing {frame.spacing} {frame.unit}"


def _all_or_none(id_: str, bags: Sequence[Bag], name: str) -> list[Any] | None:
    values = [getattr(bag, name) for bag in bags]
    missing = [bag.id for bag, value in zip(bags, values, strict=True) if value is None]
    if missing and len(missing) < len(bags):
        raise DataError(f"patient of {id_}: {missing[0]} has no {name} while other cases of the patient have it")
    return None if missing else values


def _instance_labels(bags: Sequence[Bag]) -> Tensor | None:
    """Labels of all instances, -1 for cases without; None where no case has any."""
    if all(bag.y_inst is None for bag in bags):
        return None
    return torch.cat([torch.full((bag.n,), -1) if bag.y_inst is None else bag.y_inst.long() for bag in bags])


def _shared_row(id_: str, bags: Sequence[Bag], name: str) -> Tensor | None:
    """A row of numbers that all cases of a patient must share."""
    rows = _all_or_none(id_, bags, name)
    if rows is None:
        return None
    for bag, row in zip(bags[1:], rows[1:], strict=True):
        if row.shape != rows[0].shape or not torch.allclose(row, rows[0], rtol=0, atol=0, equal_nan=True):
            raise DataError(f"patient of {id_}: {name} of {bags[0].id} and {bag.id} differ; state one for the patient")
    return rows[0]


class StudyBags:
    """The bags that a run reads from a manifest: one per case, or one per patient, with their covariates.

    Serves wherever a data set reads bags of a Manifest. The id of a patient's bag is the first id of the patient's
    cases, which identifies no one.

    ids         cases that take part; None: all
    classes     of the model; None: as many as the manifest has
    members     {id of the bag: ids of its cases, sorted}
    """

    def __init__(
        self,
        manifest: Manifest,
        ids: Iterable[str] | None = None,
        *,
        bags: str = "case",
        covariates: Covariates | None = None,
        classes: int | None = None,
    ):
        self.classes = manifest.n_classes if classes is None else classes
        self.manifest, self.covariates, self.name = manifest, covariates, manifest.name
        chosen = list(manifest.ids if ids is None else ids)
        self.members: dict[str, tuple[str, ...]] = {id_: (id_,) for id_ in chosen}
        if bags == "patient":
            first: dict[str, str] = {}
            for id_ in sorted(manifest.ids):
                first.setdefault(manifest.groups[id_], id_)
            keys = dict.fromkeys(first[manifest.groups[id_]] for id_ in chosen)
            held: dict[str, list[str]] = {key: [] for key in keys}
            for id_ in sorted(chosen):
                held[first[manifest.groups[id_]]].append(id_)
            self.members = {key: tuple(cases) for key, cases in held.items()}

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.members)

    @cached_property
    def labels(self) -> dict[str, int | None]:
        """Label of every bag: of 0/1 the highest of the patient's cases; other classes must agree."""
        return {id_: self._label(id_, cases) for id_, cases in self.members.items()}

    def _label(self, id_: str, cases: Sequence[str]) -> int | None:
        labels = {case: self.manifest.labels[case] for case in cases}
        known = {y for y in labels.values() if y is not None}
        if self.classes <= 2:
            unsure = len(known) == 0 or (None in labels.values() and 1 not in known)
            return None if unsure else max(known)
        if len(known) > 1:
            named = ", ".join(f"{case}: {y}" for case, y in list(labels.items())[:5])
            raise DataError(
                f"{self.name}: cases of one patient have different labels ({named}); a bag of a patient has one label: "
                "correct them, or use data.bags=case"
            )
        return next(iter(known), None)

    @property
    def target(self) -> TargetColumns | None:
        """Columns of what is to be predicted; None: classes."""
        return self.manifest.target

    @cached_property
    def groups(self) -> dict[str, str]:
        """Patient of every bag."""
        return {id_: self.manifest.groups[cases[0]] for id_, cases in self.members.items()}

    @cached_property
    def targets(self) -> dict[str, tuple[float, ...] | None]:
        """What is to be predicted of every bag, where it is no class; cases of one patient must agree."""
        return {id_: self._target(cases) for id_, cases in self.members.items()}

    def _target(self, cases: Sequence[str]) -> tuple[float, ...] | None:
        rows = {case: self.manifest.targets[case] for case in cases}
        if len(set(map(repr, rows.values()))) > 1:
            named = ", ".join(f"{case}: {row}" for case, row in list(rows.items())[:5])
            raise DataError(
                f"{self.name}: cases of one patient have different targets ({named}); a bag of a patient has one: "
                "correct them, or use data.bags=case"
            )
        return rows[cases[0]]

    def known(self, id_: str) -> tuple[int | None, list[float] | None]:
        """Label of a bag, and what else of it is to be predicted (a level is the label)."""
        row = None if self.target is None or self.target.kind == "ordinal" else self.targets[id_]
        return self.labels[id_], None if row is None else list(row)

    def strata(self) -> dict[str, int | None]:
        """Kind of every bag that a balanced sampler evens out: its class, or the stratum of its target."""
        return target_strata(self.target, self.labels, self.targets, self.ids)

    def path_of(self, id_: str) -> Path:
        """File of the first case of a bag."""
        return self.manifest.path_of(self.members[id_][0])

    def bag(self, id_: str, *, verify: bool = True, instance_labels: bool = True) -> Bag:
        """Read a bag; options as for `Manifest.bag`."""
        return self.joined(id_, self.cases_of(id_, verify=verify, instance_labels=instance_labels))

    def cases_of(self, id_: str, **options: Any) -> list[Bag]:
        """The bags of a patient's cases, in order."""
        return [self.manifest.bag(case, **options) for case in self.members[id_]]

    def open_bag(self, id_: str, *, verify: bool = True, instance_labels: bool = True) -> OpenBag:
        """As `bag`, but with its features left in the files."""
        return self.joined_open(id_, self.open_cases(id_, verify=verify, instance_labels=instance_labels))

    def open_cases(self, id_: str, **options: Any) -> list[OpenBag]:
        """As `cases_of`, but with the features left in the files."""
        return [self.manifest.open_bag(case, **options) for case in self.members[id_]]

    def joined_open(self, id_: str, cases: Sequence[OpenBag]) -> OpenBag:
        """As `joined`, of bags whose features are in files."""
        rows = cases[0].rows if len(cases) == 1 else JoinedRows(id_, [case.rows for case in cases])
        return OpenBag(self.joined(id_, [case.bag for case in cases]), rows)

    def joined(self, id_: str, cases: Sequence[Bag]) -> Bag:
        """The bags of its cases as one, with label and covariates."""
        bag = join_bags(id_, cases, self.labels[id_])
        if self.covariates is None:
            return bag
        return replace(bag, covariates=self.covariates.row(self.manifest, self.members[id_]))

    def rows(self) -> Manifest:
        """A manifest with one row per bag, which splits can be made of: patients as they are labelled here."""
        table = self.manifest.table.set_index("id", drop=False).loc[[cases[0] for cases in self.members.values()]]
        table = table.reset_index(drop=True).assign(id=list(self.ids))
        if self.target is None:
            table["label"] = ["" if y is None else str(y) for y in self.labels.values()]
        return Manifest(table, self.manifest.folder, self.name, self.target)

    def expanded(self, split: Any) -> Any:
        """A split of these bags as one of their cases."""
        parts = {p: sorted(case for id_ in ids for case in self.members[id_]) for p, ids in split.to_dict().items()}
        return replace(split, **{part: tuple(ids) for part, ids in parts.items()})


def need_patients(manifest: Manifest) -> None:
    """Raise an error unless the manifest says who the patients are."""
    if not {"group", "patient"} & set(map(str, manifest.table.columns)):
        raise DataError(
            f"{manifest.name}: data.bags=patient needs the column group (or patient), which says whose case a row is"
        )
