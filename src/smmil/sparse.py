"""Sparse matrices in CSR form and their product with dense rows, as the torch operator `smmil::propagate`."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_T = TypeVar("_T")
_derived: Any = WeakTensorKeyDictionary()  # forms of a matrix in other layouts, for as long as its weights exist


class CSR(NamedTuple):
    """A square matrix: the entries of row i are `weight[indptr[i]:indptr[i+1]]` in the columns `indices[...]`.

    Kernels get matrices in this form; what they derive from one is cached with its `weight` tensor.
    """

    indptr: Tensor
    indices: Tensor
    weight: Tensor

    @property
    def n(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def rows(self) -> Tensor:
        """Row number of every stored entry."""
        return row_numbers(self.indptr, self.indices.shape[0])

    @property
    def bandwidth(self) -> int:
        """Largest distance between the row and the column of an entry."""
        return self._cached(
            "bandwidth", lambda: int((self.rows - self.indices).abs().max()) if len(self.indices) else 0
        )

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The matrix as a sparse torch tensor; cached."""
        return self._cached(dtype, lambda: self._matrix(dtype))

    def arrays(self, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row starts, columns and weights as numpy arrays for compiled code; cached."""

        def convert() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            columns = self.indices.numpy().astype(np.uint32)
            return self.indptr.contiguous().numpy(), columns, self.weight.detach().to(dtype).numpy()

        return self._cached(("arrays", dtype), convert)

    def accumulate(self, out: Tensor, g: Tensor, beta: float, alpha: float) -> Tensor:
        """out ← beta out + alpha (matrix @ g), in place and without autograd.

        (torch would first copy a separate summand into the result, which costs as much as the product itself.)
        """
        if g.shape[1] == 1:  # a matrix-vector product takes two thirds of a product with one column
            torch.addmv(out[:, 0], self.matrix(g.dtype), g[:, 0], beta=beta, alpha=alpha, out=out[:, 0])
        else:
            torch.addmm(out, self.matrix(g.dtype), g, beta=beta, alpha=alpha, out=out)
        return out

    def _cached(self, key: Any, make: Callable[[], _T]) -> _T:
        forms = _derived.get(self.weight)
        if forms is None:
            forms = _derived[self.weight] = {}
        if key not in forms:
            forms[key] = make()
        form: _T = forms[key]
        return form

    def _matrix(self, dtype: torch.dtype) -> Tensor:
        weight = self.weight.detach().to(dtype)  # an alias: a cached form must not keep its own key alive
        with warnings.catch_warnings():  # torch warns once that CSR is in beta
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                self.indptr, self.indices, weight, (self.n, self.n), check_invariants=False, requires_grad=False
            )


def row_numbers(indptr: Tensor, entries: int) -> Tensor:
    """Row number of each of the `entries` of a CSR matrix."""
    starts = torch.zeros(entries + 1, dtype=indptr.dtype, device=indptr.device)
    ends = indptr[1:]  # the last one is the number of entries, a place of its own
    return starts.scatter_add(0, ends, torch.ones_like(ends)).cumsum(0)[:-1]


def sum_by_row(rows: Tensor, values: Tensor, n: int) -> Tensor:
    """Sum of the values (e, ...) that belong to each of n rows; rows without any get 0.

    By scatter_add, which becomes ScatterElements in ONNX: index_add becomes ScatterND, whose threads in onnxruntime
    overwrite each other's sums (its issues 18048 and 23396).
    """
    place = rows.reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return torch.zeros((n, *values.shape[1:]), dtype=values.dtype, device=values.device).scatter_add(0, place, values)


def plain_product(x: Tensor, indptr: Tensor, indices: Tensor, weight: Tensor, *_across: Tensor) -> Tensor:
    """matrix @ x by gather and scatter-add: for formats and devices without sparse matrices."""
    heard = x[indices] * weight.to(x.dtype)[:, None]
    return sum_by_row(row_numbers(indptr, indices.shape[0]), heard, indptr.shape[0] - 1)


@torch.library.custom_op("smmil::propagate", mutates_args=())
def _propagate(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor,
    across_indptr: Tensor,
    across_indices: Tensor,
    across_weight: Tensor,
) -> Tensor:
    """matrix @ x for x (n, k) in float32 or float64; `across_…` is the transposed matrix, which backward uses."""
    if x.device.type == "mps":  # no sparse matrices there
        return plain_product(x, indptr, indices, weight)
    with without_autocast(x):
        return CSR(indptr, indices, weight).matrix(x.dtype) @ x


@_propagate.register_fake
def _(x: Tensor, *_matrices: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _propagate_setup(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.matrices = inputs[1:]


def _propagate_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    matrix, across = ctx.matrices[:3], ctx.matrices[3:]
    return torch.ops.smmil.propagate(grad.contiguous(), *across, *matrix), None, None, None, None, None, None


_propagate.register_autograd(_propagate_backward, setup_context=_propagate_setup)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Context in which products keep the precision of x: sparse products know no bfloat16."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
