"""One bag of unknown size for tracing: the interface of `BagBatch` and `Graph`, of gather and scatter-add alone.

A program that is traced must not ask how many instances there are, and formats such as ONNX know no sparse matrices.
Models are shown these objects instead of a real batch; what they compute is the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smmil.errors import DataError
from smmil.graph import Graph


class OneBag:
    """A batch of a single bag whose number of rows stays open."""

    frames = (None,)
    ids = ("bag",)
    coords = y = y_inst = None

    def __init__(self, x: Tensor, graph: "TracedGraph | None" = None):
        self.x, self.graph = x, graph
        self.offsets = Borders(x)

    def __len__(self) -> int:
        return 1

    @property
    def sizes(self) -> list[int]:
        return [self.x.shape[0]]

    def split(self, rows: Tensor) -> tuple[Tensor]:
        return (rows,)

    def need(self, name: str) -> Any:
        value = getattr(self, name, None)
        if value is None:
            raise DataError(f"the model needs {name!r}")
        return value


class Borders:
    """Offsets (0, n) of that bag: lists hold the open number itself, and reductions by bag go over all rows."""

    def __init__(self, x: Tensor):
        self.x = x

    def numel(self) -> int:
        return 2

    def diff(self) -> "Borders":
        return self

    def tolist(self) -> list[int]:
        return [self.x.shape[0]]

    def __getitem__(self, place: slice) -> Tensor:
        if place != slice(None, -1):
            raise NotImplementedError(f"offsets[{place}]")
        return torch.zeros(1, dtype=torch.long, device=self.x.device)

    @classmethod
    def __torch_function__(cls, function: Callable, _types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is not torch.segment_reduce:
            raise NotImplementedError(function.__name__)
        rows, reduce = args
        return {"mean": rows.mean, "sum": rows.sum, "max": rows.amax}[reduce](0, keepdim=True)


class RowStarts:
    """What stands for `indptr` where only the row of every entry is known."""

    def __init__(self, rows: Tensor, n: int):
        self.rows, self.n, self.device = rows, n, rows.device

    def numel(self) -> int:
        return self.n + 1

    def diff(self) -> Tensor:
        """Entries per row."""
        ones = torch.ones(self.rows.shape[0], dtype=torch.float64, device=self.device)
        return sum_by_row(self.rows, ones, self.n)


class TracedGraph(Graph):
    """A `Graph` from the row, column and weight of every entry; `own` (n,) is the diagonal, where there is one."""

    def __init__(
        self, rows: Tensor, columns: Tensor, weight: Tensor, n: int, kind: str | None = None, own: Tensor | None = None
    ):
        super().__init__(RowStarts(rows, n), columns, weight, kind)  # type: ignore[arg-type]
        object.__setattr__(self, "own", own)

    @property
    def _rows(self) -> Tensor:
        return self.indptr.rows  # type: ignore[attr-defined]

    def propagate(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        heard = x[self.indices] * weight.reshape(-1, *[1] * (x.ndim - 1))
        total = sum_by_row(self._rows, heard, self.n)
        return total if self.own is None else total + self.own.to(x.dtype)[:, None] * x  # type: ignore[attr-defined]

    def _normalize(self, kind: str, isolated: str) -> "TracedGraph":
        degrees = sum_by_row(self._rows, self.weight, self.n)
        alone = (degrees == 0).double()
        own = (
            torch.ones_like(degrees) if kind == "sym_loop" else alone if isolated == "keep" else torch.zeros_like(alone)
        )
        scale = degrees + (1.0 if kind == "sym_loop" else alone)
        if kind == "rw":
            weight = self.weight / scale[self._rows]
        else:
            weight = self.weight * scale.rsqrt()[self._rows] * scale.rsqrt()[self.indices]
        return TracedGraph(self._rows, self.indices, weight, self.n, kind, own / scale)

    def transposed(self) -> "TracedGraph":
        if self.kind != "rw":
            return self
        return TracedGraph(self.indices, self._rows, self.weight, self.n, self.kind, self.own)  # type: ignore[attr-defined]


def sum_by_row(rows: Tensor, values: Tensor, n: int) -> Tensor:
    """Sum of the values (e, …) that belong to each of n rows.

    By scatter_add, which becomes ScatterElements: index_add becomes ScatterND, whose threads in onnxruntime overwrite
    each other's sums (its issues 18048 and 23396).
    """
    place = rows.reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return torch.zeros((n, *values.shape[1:]), dtype=values.dtype, device=values.device).scatter_add(0, place, values)
