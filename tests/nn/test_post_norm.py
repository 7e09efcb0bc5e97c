"""Post-norm layers against PyTorch's own, which share no line with them."""

import pytest
import torch
from torch import nn

from smmil.nn import post_norm as room
from smmil.nn.post_norm import FeedForward, PostNormLayer, QueryDecoder, QueryLayer

DIM, SIZES = 8, (1, 4, 11)
OFFSETS = torch.tensor([0, 1, 5, 16])


def rows(seed=0):
    return torch.randn(16, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shaken(module, seed=0):
    """Every weight somewhere else, so that forgotten biases and norms are noticed."""
    g = torch.Generator().manual_seed(seed)
    for p in module.double().parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return module


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
    assert torch.allclose(ours(rows(), OFFSETS), expected, rtol=0, atol=1e-12)


def literal_query_layer(layer, t, bag):
    """One bag: queries t (m, dim) among themselves, then across the bag, then alone."""
    among, across = torchs_attention(layer.among, 2), torchs_attention(layer.across, 2)
    t = layer.norm_among(t + among(t[None], t[None], t[None])[0][0])
    t = layer.norm_across(t + across(t[None], bag[None], bag[None])[0][0])
    return layer.feed.norm(t + layer.feed.contract(torch.clamp(layer.feed.expand(t), min=0)))


def test_queries_look_at_each_other_then_at_their_bag_then_think():
    layer = shaken(QueryLayer(DIM, heads=2, hidden=12, dropout=0.1)).eval()
    t = rows(1)[:9].reshape(3, 3, DIM)
    expected = [literal_query_layer(layer, one, bag) for one, bag in zip(t, rows().split(SIZES), strict=True)]
    assert torch.allclose(layer(t, rows(), OFFSETS), torch.stack(expected), rtol=0, atol=1e-12)


def test_the_decoder_runs_its_layers_and_puts_the_queries_side_by_side():
    decoder = shaken(QueryDecoder(DIM, queries=3, layers=2, heads=2, hidden=12, dropout=0.1)).eval()
    expected = []
    for bag in rows().split(SIZES):
        t = decoder.queries
        for layer in decoder.layers:
            t = literal_query_layer(layer, t, bag)
        expected.append(torch.cat(list(t)))
    assert torch.allclose(decoder(rows(), OFFSETS), torch.stack(expected), rtol=0, atol=1e-12)


def test_all_layers_of_the_decoder_begin_alike_but_are_not_shared():
    first, second = QueryDecoder(DIM, queries=3, layers=2, heads=2, hidden=12, dropout=0.1).layers
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a is not b


def test_dropout_works_at_every_place_in_training_only():
    """Each place is tried alone; in eval mode nothing is dropped."""
    layer = shaken(PostNormLayer(DIM, heads=2, hidden=20, dropout=0.5))
    still = layer.eval()(rows(), OFFSETS)
    assert torch.equal(still, layer(rows(), OFFSETS))
    layer.train()
    for attention, feed in ((0.5, 0.0), (0.0, 0.5)):
        layer.dropout, layer.feed.drop.p = attention, feed
        assert not torch.allclose(layer(rows(), OFFSETS), still, atol=1e-3)
    layer.dropout, layer.feed.drop.p = 0.0, 0.0
    assert torch.allclose(layer(rows(), OFFSETS), still, rtol=0, atol=1e-12)


def test_queries_drop_in_training_only():
    layer = shaken(QueryLayer(DIM, heads=2, hidden=12, dropout=0.5))
    t = rows(1)[:9].reshape(3, 3, DIM)
    still = layer.eval()(t, rows(), OFFSETS)
    assert torch.equal(still, layer(t, rows(), OFFSETS))
    assert not torch.allclose(layer.train()(t, rows(), OFFSETS), still, atol=1e-3)


def test_half_of_the_hidden_units_and_half_of_the_output_are_dropped():
    feed = FeedForward(2000, 2000, 0.5).double()
    nn.init.eye_(feed.expand.weight)
    nn.init.eye_(feed.contract.weight)
    nn.init.zeros_(feed.expand.bias)
    nn.init.zeros_(feed.contract.bias)
    feed.norm = nn.Identity()
    added = feed.train()(torch.ones(1, 2000, dtype=torch.float64)) - 1
    assert set(added.flatten().tolist()) == {0.0, 4.0}
    assert 0.2 < (added > 0).double().mean() < 0.3


@pytest.mark.parametrize("kind", [PostNormLayer, QueryLayer])
def test_computing_again_gives_the_same_numbers_as_keeping(kind, monkeypatch):
    layer = shaken(kind(DIM, heads=2, hidden=20, dropout=0.3)).train()
    found = []
    for small in (0, 10**9):
        monkeypatch.setattr(room, "SMALL", small)
        torch.manual_seed(7)
        x = rows().requires_grad_()
        out = layer(x, OFFSETS) if kind is PostNormLayer else layer(rows(1)[:9].reshape(3, 3, DIM), x, OFFSETS)
        found.append([out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_is_large_is_not_kept(monkeypatch):
    """The tape of the feed-forward step holds its input instead of its wide middle."""
    feed, held = FeedForward(DIM, 500, 0.3), {}
    for small in (0, 10**9):
        monkeypatch.setattr(room, "SMALL", small)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            feed(torch.ones(30, DIM, requires_grad=True))
        held[small] = max(s for s in sizes if s != 500 * DIM)  # the weights themselves are always there
    assert held[0] <= 30 * DIM
    assert held[10**9] >= 30 * 500
