"""Transformers over the instances of packed bags: a pre- or post-norm encoder with Sm, and a decoder with queries."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from smmil.errors import ConfigError, check_choice
from smmil.graph import Graph
from smmil.nn import kernels
from smmil.nn.kernels.attention import bag_attention
from smmil.nn.parameters import compute_dtype
from smmil.nn.smooth import Sm

SMALL = 1 << 21  # numbers that are cheaper to keep than to compute again


def _check_heads(heads: int, width: int) -> int:
    if width % heads:
        raise ConfigError(f"heads={heads} must divide the width of the attention, {width}")
    return heads


class _EncoderLayer(nn.Module):
    """Self-attention with skip connection, then an MLP with skip connection.

    in_dim → dim → out_dim; linear maps bridge widths that differ. `inner` is the width of queries, keys and values over
    all heads; when it is not `dim` the attended values are projected. With an `Sm`, the attended values are smoothed
    before they are added. `norm="pre"` normalises what enters a sub-layer, "post" what leaves it. Without the MLP the
    second normalisation closes the layer.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int,
        out_dim: int,
        *,
        heads: int = 8,
        inner: int | None = None,
        mlp: bool = True,
        norm: str = "pre",
        sm: Sm | None = None,
    ):
        super().__init__()
        inner = inner or dim
        self.heads = _check_heads(heads, inner)
        self.pre = check_choice(norm, ("pre", "post"), "norm") == "pre"
        self.norm1 = nn.LayerNorm(in_dim if self.pre else dim)
        self.qkv = nn.Linear(in_dim, 3 * inner, bias=False)
        self.merge = nn.Identity() if inner == dim else nn.Linear(inner, dim)
        self.sm = sm
        self.skip = nn.Identity() if in_dim == dim else nn.Linear(in_dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) if mlp else None
        self.out = nn.Identity() if dim == out_dim else nn.Linear(dim, out_dim)

    def forward(self, x: Tensor, offsets: Tensor, graph: Graph | None = None) -> Tensor:
        q, k, v = self.qkv(self.norm1(x) if self.pre else x).chunk(3, dim=-1)
        b: Tensor = self.merge(bag_attention(q, k, v, offsets, self.heads))
        if self.sm is not None and graph is not None:
            b = self.sm(b, graph)
        z = self.skip(x) + b
        out: Tensor = self.out(self._feed(z if self.pre else self.norm1(z)))
        return out

    def _feed(self, z: Tensor) -> Tensor:
        fed: Tensor
        if self.mlp is None:
            fed = self.norm2(z)
        else:
            fed = z + self.mlp(self.norm2(z)) if self.pre else self.norm2(z + self.mlp(z))
        return fed


class TransformerEncoder(nn.Module):
    """Two or more layers and a final normalisation: the instance network of T+AP and SmTAP.

    smooth  None: plain transformer; "layers": an Sm of its own in every layer; "output": one Sm behind the encoder
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int = 512,
        *,
        dim: int = 128,
        layers: int = 2,
        heads: int = 8,
        head_dim: int | None = None,
        mlp: bool = True,
        norm: str = "pre",
        smooth: str | None = None,
        alpha: float | str = "learned",
        steps: int | str = 10,
        normalization: str = "sym",
    ):
        super().__init__()
        check_choice(str(smooth), ("None", "layers", "output"), "smooth")

        def make_sm(place: str) -> Sm | None:
            return Sm(alpha, steps, normalization=normalization) if smooth == place else None

        widths = [(in_dim if i == 0 else dim, dim, out_dim if i == layers - 1 else dim) for i in range(layers)]
        inner = heads * head_dim if head_dim else dim
        self.layers = nn.ModuleList(
            _EncoderLayer(*w, heads=heads, inner=inner, mlp=mlp, norm=norm, sm=make_sm("layers")) for w in widths
        )
        self.norm = nn.LayerNorm(out_dim)
        self.sm = make_sm("output")

    def forward(self, x: Tensor, offsets: Tensor, graph: Graph | None = None) -> Tensor:
        h = x.to(compute_dtype(self))
        for layer in self.layers:
            h = layer(h, offsets, graph)
        out: Tensor = self.norm(h)
        return out if self.sm is None or graph is None else self.sm(out, graph)


def recomputed(run: Callable[..., Tensor], *rows: Tensor, size: int) -> Tensor:
    """run(*rows), keeping only its input for the backward pass, which runs it again with the same random numbers.

    size  numbers in its widest tensor on the way; if they are few, all is kept as usual
    """
    large = size > SMALL and not torch.compiler.is_compiling()
    if not torch.is_grad_enabled() or not large or not kernels.enabled("recomputed", pays=True):
        return run(*rows)
    found: Tensor = checkpoint(run, *rows, use_reentrant=False)
    return found


class _MultiHeadAttention(nn.Module):
    """Multi-head attention inside bags with biases in all maps; in training `dropout` acts on the attention weights."""

    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = _check_heads(heads, dim), dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.merge = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.merge.bias)

    def forward(
        self, x: Tensor, offsets: Tensor, source: Tensor | None = None, source_offsets: Tensor | None = None
    ) -> Tensor:
        """Rows x (n, dim) attend to all rows of their bag in `source`, by default in x itself."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if source is not None:
            _, k, v = self.qkv(source).chunk(3, dim=-1)
        dropout = self.dropout if self.training else 0.0
        mixed: Tensor = self.merge(bag_attention(q, k, v, offsets, self.heads, dropout, source_offsets))
        return mixed


class _FeedForward(nn.Module):
    """LN(x + W₂ relu(W₁ x)) with dropout after both maps, row by row; the hidden layer is not kept for training."""

    def __init__(self, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.hidden = hidden
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)
        self.norm = nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self._rows, x, size=x.shape[0] * self.hidden)

    def _rows(self, x: Tensor) -> Tensor:
        rows: Tensor = self.norm(x + self.drop(self.contract(self.drop(self.expand(x).relu()))))
        return rows


class PostNormLayer(nn.Module):
    """The original transformer layer: attention inside the bag, then an MLP, each added and then normalised."""

    def __init__(self, dim: int, *, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.attention = _MultiHeadAttention(dim, heads, dropout)
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)
        self.feed = _FeedForward(dim, hidden, dropout)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        rows: Tensor = self.feed(self.norm(x + self.drop(self.attention(x, offsets))))
        return rows


class _QueryLayer(nn.Module):
    """A few queries per bag attend to each other, then to all instances, then pass an MLP."""

    def __init__(self, dim: int, *, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.among, self.norm_among = _MultiHeadAttention(dim, heads, dropout), nn.LayerNorm(dim)
        self.across, self.norm_across = _MultiHeadAttention(dim, heads, dropout), nn.LayerNorm(dim)
        self.feed = _FeedForward(dim, hidden, dropout)

    def forward(self, t: Tensor, t_offsets: Tensor, h: Tensor, offsets: Tensor) -> Tensor:
        """New queries (b·m, dim) from packed queries t and packed instances h (n, dim)."""
        t = self.norm_among(t + self.drop(self.among(t, t_offsets)))
        rows: Tensor = self.feed(self.norm_across(t + self.drop(self.across(t, t_offsets, h, offsets))))
        return rows


class QueryDecoder(nn.Module):
    """Learned queries that read a bag through some layers; their final states in one row per bag: (b, queries·dim).

    All layers begin with the same weights, as copies of one.
    """

    def __init__(self, dim: int, *, queries: int, layers: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, dim))
        first = _QueryLayer(dim, heads=heads, hidden=hidden, dropout=dropout)
        self.layers = nn.ModuleList(deepcopy(first) for _ in range(layers))

    def forward(self, h: Tensor, offsets: Tensor) -> Tensor:
        bags, queries = offsets.numel() - 1, self.queries.shape[0]
        t, t_offsets = self.queries.repeat(bags, 1), queries * torch.arange(bags + 1)
        for layer in self.layers:
            t = layer(t, t_offsets, h, offsets)
        return t.view(bags, -1)
