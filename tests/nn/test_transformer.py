"""The encoder against its definition; post-norm layers against PyTorch's own, which share no line with them."""

import itertools
import math

import pytest
import torch
from support.bags import STEP, grid_coords
from torch import nn
from torch.nn import functional as F

from smmil.graph import chain_graph, grid_graph, join
from smmil.nn import transformer as module
from smmil.nn.transformer import PostNormLayer, QueryDecoder, TransformerEncoder, _FeedForward, _QueryLayer

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
    encoder = TransformerEncoder(7, 12, dim=8, heads=2, smooth=smooth, **options).double()
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
    encoder = TransformerEncoder(7, 12, dim=8, heads=2, smooth="layers")
    assert [n for n, _ in encoder.named_parameters() if n.endswith("logit")] == [
        "layers.0.sm.logit",
        "layers.1.sm.logit",
    ]


DIM, SIZES = 8, (1, 4, 11)
PACKED = torch.tensor([0, 1, 5, 16])
QUERIES = torch.tensor([0, 3, 6, 9])


def rows(seed=0):
    return torch.randn(16, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shaken(layer, seed=0):
    """Every weight somewhere else, so that forgotten biases and norms are noticed."""
    g = torch.Generator().manual_seed(seed)
    for p in layer.double().parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return layer


def torchs_attention(ours, heads):
    theirs = nn.MultiheadAttention(DIM, heads, batch_first=True).double()
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.merge.weight,
            "out_proj.bias": ours.merge.bias,
        }
    )
    return theirs


def test_the_layer_is_the_standard_transformer_layer():
    ours = shaken(PostNormLayer(DIM, heads=2, hidden=20, dropout=0.1)).eval()
    theirs = nn.TransformerEncoderLayer(DIM, 2, 20, 0.1, batch_first=True).double()
    theirs.self_attn = torchs_attention(ours.attention, 2)
    theirs.linear1, theirs.linear2 = ours.feed.expand, ours.feed.contract
    theirs.norm1, theirs.norm2 = ours.norm, ours.feed.norm
    theirs.eval()
    expected = torch.cat([theirs(bag[None])[0] for bag in rows().split(SIZES)])
    assert torch.allclose(ours(rows(), PACKED), expected, rtol=0, atol=1e-12)


def literal_query_layer(layer, t, bag):
    """One bag: queries t (m, dim) among themselves, then across the bag, then alone."""
    among, across = torchs_attention(layer.among, 2), torchs_attention(layer.across, 2)
    t = layer.norm_among(t + among(t[None], t[None], t[None])[0][0])
    t = layer.norm_across(t + across(t[None], bag[None], bag[None])[0][0])
    return layer.feed.norm(t + layer.feed.contract(torch.clamp(layer.feed.expand(t), min=0)))


def test_queries_attend_to_each_other_then_to_their_bag_then_pass_the_mlp():
    layer = shaken(_QueryLayer(DIM, heads=2, hidden=12, dropout=0.1)).eval()
    t = rows(1)[:9]
    expected = [literal_query_layer(layer, one, bag) for one, bag in zip(t.split(3), rows().split(SIZES), strict=True)]
    assert torch.allclose(layer(t, QUERIES, rows(), PACKED), torch.cat(expected), rtol=0, atol=1e-12)


def test_the_decoder_runs_its_layers_and_joins_the_queries_of_a_bag():
    decoder = shaken(QueryDecoder(DIM, queries=3, layers=2, heads=2, hidden=12, dropout=0.1)).eval()
    expected = []
    for bag in rows().split(SIZES):
        t = decoder.queries
        for layer in decoder.layers:
            t = literal_query_layer(layer, t, bag)
        expected.append(torch.cat(list(t)))
    assert torch.allclose(decoder(rows(), PACKED), torch.stack(expected), rtol=0, atol=1e-12)


def test_all_layers_of_the_decoder_begin_alike_but_are_not_shared():
    first, second = QueryDecoder(DIM, queries=3, layers=2, heads=2, hidden=12, dropout=0.1).layers
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a is not b


def test_dropout_works_at_every_place_in_training_only():
    """Each place is tried alone; in eval mode nothing is dropped."""
    layer = shaken(PostNormLayer(DIM, heads=2, hidden=20, dropout=0.5))
    still = layer.eval()(rows(), PACKED)
    assert torch.equal(still, layer(rows(), PACKED))
    layer.train()
    for shares in ((0.5, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.5)):
        layer.attention.dropout, layer.drop.p, layer.feed.drop.p = shares
        assert not torch.allclose(layer(rows(), PACKED), still, atol=1e-3)
    layer.attention.dropout, layer.drop.p, layer.feed.drop.p = 0.0, 0.0, 0.0
    assert torch.allclose(layer(rows(), PACKED), still, rtol=0, atol=1e-12)


def test_queries_drop_in_training_only():
    layer = shaken(_QueryLayer(DIM, heads=2, hidden=12, dropout=0.5))
    t = rows(1)[:9]
    still = layer.eval()(t, QUERIES, rows(), PACKED)
    assert torch.equal(still, layer(t, QUERIES, rows(), PACKED))
    assert not torch.allclose(layer.train()(t, QUERIES, rows(), PACKED), still, atol=1e-3)


def test_half_of_the_hidden_units_and_half_of_the_output_are_dropped():
    feed = _FeedForward(2000, 2000, 0.5).double()
    nn.init.eye_(feed.expand.weight)
    nn.init.eye_(feed.contract.weight)
    nn.init.zeros_(feed.expand.bias)
    nn.init.zeros_(feed.contract.bias)
    feed.norm = nn.Identity()
    added = feed.train()(torch.ones(1, 2000, dtype=torch.float64)) - 1
    assert set(added.flatten().tolist()) == {0.0, 4.0}
    assert 0.2 < (added > 0).double().mean() < 0.3


@pytest.mark.parametrize("kind", [PostNormLayer, _QueryLayer])
def test_computing_again_gives_the_same_numbers_as_keeping(kind, monkeypatch):
    layer = shaken(kind(DIM, heads=2, hidden=20, dropout=0.3)).train()
    found = []
    for small in (0, 10**9):
        monkeypatch.setattr(module, "SMALL", small)
        torch.manual_seed(7)
        x = rows().requires_grad_()
        out = layer(x, PACKED) if kind is PostNormLayer else layer(rows(1)[:9], QUERIES, x, PACKED)
        found.append([out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_is_large_is_not_kept(monkeypatch):
    """The tape of the feed-forward step holds its input instead of its wide middle."""
    feed, held = _FeedForward(DIM, 500, 0.3), {}
    for small in (0, 10**9):
        monkeypatch.setattr(module, "SMALL", small)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            feed(torch.ones(30, DIM, requires_grad=True))
        held[small] = max(s for s in sizes if s != 500 * DIM)  # the weights themselves are always there
    assert held[0] <= 30 * DIM
    assert held[10**9] >= 30 * 500
