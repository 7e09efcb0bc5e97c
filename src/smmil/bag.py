"""The noun before every model: a Bag is one case, a BagBatch several, packed without padding."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from smmil.errors import DataError, check_choice
from smmil.frame import Frame
from smmil.graph import Graph, join


@dataclass(frozen=True, eq=False)
class Bag:
    """One slide or scan: a row of features per instance, and whatever is known about it.

    x       (n, d) features, n >= 1          coords  (n, k) position of each instance, x before y before z
    frame   what the coordinates mean        graph   neighbourhood as built, not normalised
    y       label: a class index             y_inst  (n,) instance labels; -1 means unknown
    """

    id: str
    x: Tensor
    coords: Tensor | None = None
    frame: Frame | None = None
    graph: Graph | None = None
    y: int | None = None
    y_inst: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.x, Tensor) or not self.x.is_floating_point():
            raise DataError(
                f"{self.id}: features must be a floating point tensor, got {getattr(self.x, 'dtype', type(self.x))}"
            )
        if self.y is not None and (int(self.y) != self.y or self.y < 0):
            raise DataError(f"{self.id}: the label must be a class index 0..C-1, got {self.y}")
        if self.x.ndim != 2 or self.x.shape[0] == 0:
            raise DataError(f"{self.id}: features must be (n, d) with n >= 1, got {tuple(self.x.shape)}")
        for name, rows in (("coords", self.coords), ("y_inst", self.y_inst)):
            if rows is not None and len(rows) != self.n:
                raise DataError(f"{self.id}: {name} has {len(rows):,} rows but features has {self.n:,}")
        if self.graph is not None and self.graph.n != self.n:
            raise DataError(f"{self.id}: graph has {self.graph.n:,} nodes but features has {self.n:,} rows")

    @property
    def n(self) -> int:
        return self.x.shape[0]


@dataclass(frozen=True, eq=False)
class BagBatch:
    """Several bags as one: their rows below each other; rows offsets[b] to offsets[b+1] belong to bag b."""

    ids: tuple[str, ...]
    x: Tensor
    offsets: Tensor
    frames: tuple[Frame | None, ...]
    coords: Tensor | None = None
    graph: Graph | None = None
    y: Tensor | None = None
    y_inst: Tensor | None = None

    @classmethod
    def pack(cls, bags: Sequence[Bag]) -> "BagBatch":
        """Bags below each other. What a batch carries, all of its bags must have; instance labels may be missing."""
        if not bags:
            raise DataError("a batch needs at least one bag")
        if len({b.x.shape[1] for b in bags}) > 1:
            widths = ", ".join(f"{b.id}: {b.x.shape[1]}" for b in bags)
            raise DataError(f"bags of different feature width cannot be packed ({widths}); use one encoder for all")
        if len({b.coords.shape[1:] for b in bags if b.coords is not None}) > 1:
            axes = ", ".join(f"{b.id}: {b.coords.shape[1]}" for b in bags if b.coords is not None)
            raise DataError(f"bags with different numbers of coordinates cannot be packed ({axes}); keep them apart")
        sizes = torch.tensor([0] + [b.n for b in bags])
        graphs = _all_or_none(bags, "graph")
        labels = _all_or_none(bags, "y")
        return cls(
            ids=tuple(b.id for b in bags),
            x=_stack([b.x for b in bags]),
            offsets=sizes.cumsum(0),
            frames=tuple(b.frame for b in bags),
            coords=None if (coords := _all_or_none(bags, "coords")) is None else _stack(coords),
            graph=None if graphs is None else join(graphs),
            y=None if labels is None else torch.tensor(labels),
            y_inst=_instance_labels(bags),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> list[int]:
        return self.offsets.diff().tolist()

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """A packed (n, ...) tensor as one piece per bag."""
        return rows.split(self.sizes)

    def need(self, name: str) -> Any:
        """The field `name`, or an error that says which bags lack it."""
        check_choice(name, [f.name for f in fields(self)], "field of a batch")
        value = getattr(self, name)
        if value is None:
            raise DataError(f"this model needs {name!r}, which is missing in {', '.join(self.ids[:3])}")
        return value

    def without_labels(self) -> "BagBatch":
        """The same batch with every label removed: what a model sees in use."""
        return replace(self, y=None, y_inst=None)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "BagBatch":
        """The batch on another device, its features in another precision if `dtype` is given."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device) for k, v in held.items() if isinstance(v, Tensor | Graph)}
        if dtype is not None:
            moved["x"] = moved["x"].to(dtype)
        return replace(self, **moved)


def _stack(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _all_or_none(bags: Sequence[Bag], name: str) -> list[Any] | None:
    values = [getattr(b, name) for b in bags]
    missing = [b.id for b, v in zip(bags, values, strict=True) if v is None]
    if missing and len(missing) < len(bags):
        raise DataError(f"{missing[0]}: {name} is missing while other bags of the batch have it")
    return None if missing else values


def _instance_labels(bags: Sequence[Bag]) -> Tensor | None:
    if all(b.y_inst is None for b in bags):
        return None
    return torch.cat([torch.full((b.n,), -1) if b.y_inst is None else b.y_inst.long() for b in bags])
