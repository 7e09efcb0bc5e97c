"""Large bags, a block of rows at a time: what models without all-pairs attention need, in little memory.

A model of this kind sees a row of features by itself, apart from Sm and the pooling. Sm acts on narrow matrices only,
because it commutes with linear layers: Sm(h) Wᵀ = Sm(h Wᵀ), and Sm(h)ᵀ s = hᵀ Smᵀ(s). So features are read twice, a
block at a time: for the narrow matrix, and for the weighted sum once the weights are known. Embedded rows (n, dim) are
never kept.

A model that can do this offers `in_blocks(blocks, batch)`: what `forward(batch)` gives in use, for a batch of one bag
whose features are in `blocks` and not in the batch.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from smmil.errors import ConfigError
from smmil.graph import Graph
from smmil.nn.parameters import compute_dtype, linear_bias
from smmil.nn.smooth import Sm, sm

_COLUMNS = 16  # smoothed at a time


class _FeatureRows(Protocol):
    """Feature rows of one bag, in memory or in a file."""

    def blocks(self, size: int) -> Iterator[Tensor]: ...


class RowBlocks:
    """Rows of one bag, `size` at a time, in the precision and on the device of a model."""

    def __init__(self, rows: _FeatureRows, n: int, size: int, model: nn.Module):
        self.rows, self.n, self.size = rows, n, size
        self.dtype = compute_dtype(model)
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def __iter__(self) -> Iterator[Tensor]:
        for block in self.rows.blocks(self.size):
            yield block.to(self.device, self.dtype)

    def map(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """`of` every block of rows, below each other: what it gives should be narrow."""
        found: Tensor | None = None
        begin = 0
        for block in self:
            part = of(block)
            if found is None:
                found = part.new_empty(self.n, part.shape[1])
            found[begin : begin + len(part)] = part
            begin += len(part)
        assert found is not None  # a bag has at least one row
        return found

    def weighted_sums(self, of: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
        """For every column of weights (n, k) the sum of `of` the rows, so weighted: (k, d)."""
        total: Tensor | None = None
        begin = 0
        for block in self:
            part = weights[begin : begin + len(block)].T.to(self.dtype) @ of(block)
            total = part if total is None else total.add_(part)
            begin += len(block)
        assert total is not None
        return total


def smooth_columns(smoother: Sm, u: Tensor, graph: Graph) -> Tensor:
    """`smoother(u, graph)` in place of u, a few columns at a time: Sm treats every column alone."""
    graph = smoother.normalize(graph)
    for columns in u.split(_COLUMNS, 1):
        columns.copy_(smoother(columns.contiguous(), graph))
    return u


def smooth_in_blocks(u: Tensor, graph: Graph, alpha: float, steps: int, block: int) -> Tensor:
    """`sm(u, graph, alpha, steps)` of `block` rows at a time, each with its halo of `steps` hops: the same values.

    For signals that do not fit where they are smoothed. What is read again at the borders grows with `steps` and with
    the border of a block, so rows should be in an order that keeps neighbours together.
    """
    found = torch.empty_like(u)
    for inside in torch.arange(graph.n).split(block):
        halo = graph.halo(inside, steps)
        place = torch.searchsorted(halo, inside)
        found[inside] = sm(u[halo], graph.induced(halo), alpha, steps)[place]
    return found


def linear_in_blocks(
    layers: list[Any],
    of: Callable[[Tensor], Tensor],
    blocks: RowBlocks,
    smoother: Sm,
    graph: Graph,
    *,
    before_bias: bool = True,
) -> tuple[Tensor, ...]:
    """What linear layers give for the smoothed rows of `of`: layer(Sm(h)) = Sm(h Wᵀ) + b, of narrow matrices.

    before_bias  False: Sm(h Wᵀ + b), smoothed behind the layers
    """
    for layer in layers:
        if type(layer).forward is not nn.Linear.forward:
            name = type(layer).__name__
            raise ConfigError(f"block: Sm stands before a {name}, which is no plain linear layer; leave block out")
    weights = [layer.weight for layer in layers]
    joined = torch.cat(weights)
    found = blocks.map(lambda x: nn.functional.linear(of(x), joined))
    bias = [linear_bias(layer) if layer.bias is not None else None for layer in layers]
    added = torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, bias, strict=True)])
    if not before_bias:
        found += added
    smooth_columns(smoother, found, graph)
    if before_bias:
        found += added
    parts: tuple[Tensor, ...] = found.split([len(w) for w in weights], 1)
    return parts


def layers_in_blocks(
    smooth: Any, layers: list[Any], of: Callable[[Tensor], Tensor], blocks: RowBlocks, on: Any
) -> tuple[Tensor, ...]:
    """What each linear layer gives for the rows of `of`, smoothed before if that is the place of a `SmoothAt`.

    on  the batch that the rows belong to, which has the graph
    """
    if smooth.where == "early":
        return linear_in_blocks(layers, of, blocks, smooth.sm, on.need("graph"))

    def each(x: Tensor) -> Tensor:
        h = of(x)
        return torch.cat([layer(h) for layer in layers], 1)

    parts: tuple[Tensor, ...] = blocks.map(each).split([layer.out_features for layer in layers], 1)
    return parts
