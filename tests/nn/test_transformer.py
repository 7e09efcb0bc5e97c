import itertools
import math

import pytest
import torch
from bags import STEP, grid_coords
from torch.nn import functional as F

from smmil.graph import chain_graph, grid_graph, join
from smmil.nn.transformer import Encoder

OFFSETS = torch.tensor([0, 1, 6, 26])


def graph():
    return join([chain_graph(1), chain_graph(5), grid_graph(grid_coords(20), STEP)])


def literal_layer(layer, x, p):
    """One layer on one bag with a full attention matrix and a dense propagation matrix."""
    q, k, v = layer.qkv(layer.norm1(x) if layer.pre else x).chunk(3, -1)
    width = q.shape[1] // layer.heads
    heads = []
    for i in range(layer.heads):
        part = slice(i * width, (i + 1) * width)
        heads.append((q[:, part] @ k[:, part].T / math.sqrt(width)).softmax(1) @ v[:, part])
    b = layer.merge(torch.cat(heads, 1))
    if layer.sm is not None:
        u = b
        for _ in range(layer.sm.steps):
            b = layer.sm.alpha * p @ b + (1 - layer.sm.alpha) * u
    z = layer.skip(x) + b
    z = z if layer.pre else layer.norm1(z)
    if layer.mlp is None:
        return layer.out(layer.norm2(z))

    def hidden(t):
        return F.linear(
            F.gelu(F.linear(t, layer.mlp[0].weight, layer.mlp[0].bias)), layer.mlp[2].weight, layer.mlp[2].bias
        )

    return layer.out(z + hidden(layer.norm2(z)) if layer.pre else layer.norm2(z + hidden(z)))


@pytest.mark.parametrize("options", [{}, {"norm": "post"}, {"mlp": False}, {"head_dim": 5}, {"layers": 3}])
@pytest.mark.parametrize("smooth", [None, "layers", "output"])
def test_the_encoder_is_its_definition_bag_by_bag(options, smooth):
    torch.manual_seed(0)
    encoder = Encoder(7, 12, dim=8, heads=2, smooth=smooth, **options).double()
    x = torch.randn(26, 7, dtype=torch.float64)
    ours = encoder(x, OFFSETS, graph())
    dense = graph().normalized().dense()
    for a, b in itertools.pairwise(OFFSETS):
        h, p = x[a:b], dense[a:b, a:b]
        for layer in encoder.layers:
            h = literal_layer(layer, h, p)
        h = encoder.norm(h)
        if smooth == "output":
            u = h
            for _ in range(10):
                h = 0.5 * p @ h + 0.5 * u
        assert torch.allclose(ours[a:b], h, atol=1e-10)


def test_every_layer_has_an_alpha_of_its_own():
    encoder = Encoder(7, 12, dim=8, heads=2, smooth="layers")
    assert [n for n, _ in encoder.named_parameters() if n.endswith("logit")] == [
        "layers.0.sm.logit",
        "layers.1.sm.logit",
    ]
