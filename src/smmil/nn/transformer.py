"""A transformer encoder over the instances of each bag, optionally smoothed inside its layers."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from smmil.errors import check_choice
from smmil.graph import Graph
from smmil.nn.smooth import Sm


def bag_attention(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, heads: int) -> Tensor:
    """Scaled dot-product attention of every instance to all instances of its own bag; (n, heads·d) each.

    The fused kernel runs bag by bag: time grows with n², memory with n.
    """
    sizes = offsets.diff().tolist()
    by_head = (t.unflatten(-1, (heads, -1)).transpose(0, 1)[None].split(sizes, dim=2) for t in (q, k, v))
    mixed = [scaled_dot_product_attention(*one) for one in zip(*by_head, strict=True)]
    return torch.cat([piece[0].transpose(0, 1).flatten(1) for piece in mixed])


class EncoderLayer(nn.Module):
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
        self.heads = heads
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
        b = self.merge(bag_attention(q, k, v, offsets, self.heads))
        if self.sm is not None and graph is not None:
            b = self.sm(b, graph)
        z = self.skip(x) + b
        return self.out(self._feed(z if self.pre else self.norm1(z)))

    def _feed(self, z: Tensor) -> Tensor:
        if self.mlp is None:
            return self.norm2(z)
        return z + self.mlp(self.norm2(z)) if self.pre else self.norm2(z + self.mlp(z))


class Encoder(nn.Module):
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
            EncoderLayer(*w, heads=heads, inner=inner, mlp=mlp, norm=norm, sm=make_sm("layers")) for w in widths
        )
        self.norm = nn.LayerNorm(out_dim)
        self.sm = make_sm("output")

    def forward(self, x: Tensor, offsets: Tensor, graph: Graph | None = None) -> Tensor:
        h = x.to(self.norm.weight.dtype)
        for layer in self.layers:
            h = layer(h, offsets, graph)
        h = self.norm(h)
        return h if self.sm is None or graph is None else self.sm(h, graph)
