"""What every model takes: a Bag is one case, a BagBatch several, packed without padding."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from smmil.errors import DataError, check_choice
from smmil.frame import Frame
from smmil.graph import Graph, join, with_keys

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Bag:
    """One slide or scan: a row of features per instance, and whatever is known about it.

    x       (n, d) features, n >= 1          coords  (n, k) position of each instance, x before y before z
    frame   what the coordinates mean        graph   neighbourhood as built, not normalised
    y       label: a class index             y_inst  (n,) instance labels; -1 means unknown
    quality (n, q) physical facts of the images (smmil.images.quality), for the drift alarm; no model sees them
    target  (t,) what is to be predicted where it is no class: labels (nan: unknown), a number, or time and event
    covariates  (q,) numbers known of the patient, standardised, that join the bag's vector

    Arrays of numpy become tensors that share their memory.
    """

    id: str
    x: Tensor
    coords: Tensor | None = None
    frame: Frame | None = None
    graph: Graph | None = None
    y: int | None = None
    y_inst: Tensor | None = None
    quality: Tensor | None = None
    target: Tensor | None = None
    covariates: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("x", "coords", "y_inst", "quality", "target", "covariates"):
            if isinstance(value := getattr(self, name), np.ndarray):
                object.__setattr__(self, name, torch.as_tensor(value))
        if not isinstance(self.x, Tensor) or not self.x.is_floating_point():
            raise DataError(
                f"{self.id}: features must be a floating point tensor, got {getattr(self.x, 'dtype', type(self.x))}"
            )
        if self.y is not None and not _is_class_index(self.y):
            words = "; number the words: y is the place of its class, from 0" if isinstance(self.y, str) else ""
            raise DataError(f"{self.id}: the label must be a class index 0..C-1, got {self.y!r}{words}")
        if self.x.ndim != 2 or self.x.shape[0] == 0:
            raise DataError(f"{self.id}: features must be (n, d) with n >= 1, got {tuple(self.x.shape)}")
        for name, rows in (("coords", self.coords), ("y_inst", self.y_inst), ("quality", self.quality)):
            if rows is not None and len(rows) != self.n:
                raise DataError(f"{self.id}: {name} has {len(rows):,} rows but features has {self.n:,}")
        for name, row in (("target", self.target), ("covariates", self.covariates)):
            if row is not None and row.ndim != 1:
                raise DataError(f"{self.id}: {name} must be one row of numbers, got shape {tuple(row.shape)}")
        if self.graph is not None and self.graph.n != self.n:
            raise DataError(f"{self.id}: graph has {self.graph.n:,} nodes but features has {self.n:,} rows")

    def __repr__(self) -> str:
        graph = "" if self.graph is None else f", graph {self.graph.indices.shape[0] // 2:,} edges"
        label = "" if self.y is None else f", y={self.y}"
        return f"Bag({self.id!r}, {self.x.shape[0]:,} × {self.x.shape[1]}{graph}{label})"

    @property
    def n(self) -> int:
        return self.x.shape[0]


def _is_class_index(y: Any) -> bool:
    try:
        return bool(int(y) == y and y >= 0)
    except (TypeError, ValueError, OverflowError):
        return False


@dataclass(frozen=True, eq=False)
class BagBatch:
    """Several bags as one: their rows below each other; rows offsets[b] to offsets[b+1] belong to bag b.

    A batch is a pytree, so `torch.export` and `torch.compile` take it as an input; an exported program accepts batches
    with other ids.
    """

    ids: tuple[str, ...]
    x: Tensor
    offsets: Tensor
    frames: tuple[Frame | None, ...]
    coords: Tensor | None = None
    graph: Graph | None = None
    y: Tensor | None = None
    y_inst: Tensor | None = None
    target: Tensor | None = None
    covariates: Tensor | None = None

    @classmethod
    def pack(cls, bags: Sequence[Bag]) -> "BagBatch":
        """Bags below each other. What a batch carries, all of its bags must have; instance labels may be missing."""
        if isinstance(bags, Bag):
            raise DataError(f"{bags.id}: a batch is made of a list of bags: BagBatch.pack([bag])")
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
            **{name: _stacked_rows(bags, name) for name in ("target", "covariates")},
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        bags = repr(self.ids[0]) if len(self) == 1 else f"{len(self)} bags"
        graph = "" if self.graph is None else f", graph {self.graph.indices.shape[0] // 2:,} edges"
        label = "" if self.y is None else f", y={self.y.tolist()}" if len(self) <= 8 else ", with labels"
        device = "" if self.x.device.type == "cpu" else f", {self.x.device}"
        return f"BagBatch({bags}, {self.x.shape[0]:,} × {self.x.shape[1]}{graph}{label}{device})"

    @property
    def sizes(self) -> list[int]:
        if self.offsets.shape[0] == 2:  # the number of rows may be open in a traced program
            return [self.x.shape[0]]
        return self.offsets.diff().tolist()

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """A packed (n, ...) tensor as one piece per bag."""
        return (rows,) if len(self) == 1 else rows.split(self.sizes)

    def need(self, name: str) -> Any:
        """The field `name`, or an error that says which bags lack it."""
        check_choice(name, _FIELDS, "field of a batch")
        value = getattr(self, name)
        if value is None:
            raise DataError(f"this model needs {name!r}, which is missing in {', '.join(self.ids[:3])}")
        return value

    def without_labels(self) -> "BagBatch":
        """The same batch with every label removed: what a model sees in use."""
        return replace(self, y=None, y_inst=None, target=None)

    def to(
        self, device: torch.device | str, dtype: torch.dtype | None = None, non_blocking: bool = False
    ) -> "BagBatch":
        """The batch on another device, its features in another precision if `dtype` is given."""
        held = {name: getattr(self, name) for name in _TENSORS}
        moved = {k: v.to(device, non_blocking=non_blocking) for k, v in held.items() if v is not None}
        if dtype is not None:
            moved["x"] = moved["x"].to(dtype)
        return replace(self, **moved)

    def brought_to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "BagBatch":
        """The batch on another device; to a CUDA card from page-locked memory, so that nothing waits for the copy."""
        if torch.device(device).type == "cuda" and self.x.device.type == "cpu":
            return self.pin_memory().to(device, dtype, non_blocking=True)
        return self.to(device, dtype)

    def pin_memory(self) -> "BagBatch":
        """The batch in page-locked memory, from which copies to a GPU need not wait."""
        held = {name: getattr(self, name) for name in _TENSORS}
        return replace(self, **{k: v.pin_memory() for k, v in held.items() if v is not None})


_FIELDS = tuple(f.name for f in fields(BagBatch))
_TENSORS = ("x", "offsets", "coords", "graph", "y", "y_inst", "target", "covariates")
_BAG_TENSORS = ("x", "coords", "graph", "y_inst", "target", "covariates")


class _Ids(tuple[str, ...]):
    """Names of bags; equal to those of any batch of the same size, since they are no part of a program."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and len(self) == len(other)

    def __hash__(self) -> int:
        return hash(len(self))


def _rebuild(cls: type[_T], values: dict[str, Any]) -> _T:
    """An object of a frozen class without its checks: a pytree may hold anything in place of tensors."""
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _flatten_batch(batch: BagBatch) -> tuple[list[Any], Any]:
    return [getattr(batch, name) for name in _TENSORS], (_Ids(batch.ids), batch.frames)


def _unflatten_batch(parts: Any, context: Any) -> BagBatch:
    ids, frames = context
    return _rebuild(BagBatch, {"ids": tuple(ids), "frames": frames, **dict(zip(_TENSORS, parts, strict=True))})


def _flatten_bag(bag: Bag) -> tuple[list[Any], Any]:
    return [getattr(bag, name) for name in _BAG_TENSORS], (_Ids((bag.id,)), (bag.frame,), bag.y)


def _unflatten_bag(parts: Any, context: Any) -> Bag:
    ids, frames, y = context
    return _rebuild(Bag, {"id": ids[0], "frame": frames[0], "y": y, **dict(zip(_BAG_TENSORS, parts, strict=True))})


def _dump_context(context: Any) -> Any:
    ids, frames, *rest = context
    return [list(ids), [None if frame is None else frame.to_dict() for frame in frames], *rest]


def _load_context(dumped: Any) -> Any:
    ids, frames, *rest = dumped
    return (_Ids(ids), tuple(None if frame is None else Frame.from_dict(frame) for frame in frames), *rest)


register_pytree_node(
    Bag,
    _flatten_bag,
    _unflatten_bag,
    serialized_type_name="smmil.Bag",
    to_dumpable_context=_dump_context,
    from_dumpable_context=_load_context,
    flatten_with_keys_fn=lambda bag: with_keys(_BAG_TENSORS, *_flatten_bag(bag)),
)
register_pytree_node(
    BagBatch,
    _flatten_batch,
    _unflatten_batch,
    serialized_type_name="smmil.BagBatch",
    to_dumpable_context=_dump_context,
    from_dumpable_context=_load_context,
    flatten_with_keys_fn=lambda batch: with_keys(_TENSORS, *_flatten_batch(batch)),
)


def _stack(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _all_or_none(bags: Sequence[Bag], name: str) -> list[Any] | None:
    values = [getattr(b, name) for b in bags]
    missing = [b.id for b, v in zip(bags, values, strict=True) if v is None]
    if missing and len(missing) < len(bags):
        raise DataError(f"{missing[0]}: {name} is missing while other bags of the batch have it")
    return None if missing else values


def _stacked_rows(bags: Sequence[Bag], name: str) -> Tensor | None:
    """One row per bag, or None where no bag has any."""
    rows = _all_or_none(bags, name)
    if rows is not None and len({row.shape for row in rows}) > 1:
        widths = ", ".join(f"{b.id}: {len(row)}" for b, row in zip(bags, rows, strict=True))
        raise DataError(f"bags with {name} of different length cannot be packed ({widths})")
    return None if rows is None else torch.stack(rows)


def _instance_labels(bags: Sequence[Bag]) -> Tensor | None:
    if all(b.y_inst is None for b in bags):
        return None
    return torch.cat([torch.full((b.n,), -1) if b.y_inst is None else b.y_inst.long() for b in bags])
