import math

import numpy as np
import pytest
import torch
from support.bags import STEP, grid_coords, random_graph
from torch.utils._python_dispatch import TorchDispatchMode

from smmil.errors import ConfigError
from smmil.graph import Graph, chain_graph, grid_graph, join
from smmil.nn import gnn
from smmil.nn.gnn import (
    ChebConv,
    GENConv,
    GINConv,
    Neighbours,
    _softmax_aggregate,
    _softmax_aggregate_by_edge,
    chebyshev_terms,
    nearest,
)

N = 49
BOTH_WAYS = [_softmax_aggregate, _softmax_aggregate_by_edge]


def graph():
    """A lattice with holes, a random graph with lonely nodes, a single node."""
    return join([grid_graph(grid_coords(40), STEP), random_graph(8, share=0.5), chain_graph(1)])


def both_kinds():
    coords = np.concatenate([grid_coords(40), grid_coords(8), [[0, 0]]])
    return [Neighbours.of(graph()), nearest(torch.from_numpy(coords), torch.tensor([0, 40, 48, 49]), 3)]


def rows(width=5, seed=0, n=N):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal_aggregate(m, t, dense):
    """Node by node, channel by channel."""
    result = []
    for i in range(len(m)):
        near = dense[i].nonzero()[:, 0].tolist()
        channels = []
        for c in range(m.shape[1]):
            heard = [m[j, c] for j in near]
            total = sum((t * v).exp() for v in heard)
            channels.append(sum((t * v).exp() / total * v for v in heard) if near else m.new_zeros(()) * t.sum())
        result.append(torch.stack([v.reshape(()) for v in channels]))
    return torch.stack(result)


@pytest.mark.parametrize("aggregate", BOTH_WAYS)
@pytest.mark.parametrize("one_sided", [0, 1])
def test_the_softmax_mean_is_its_definition_gradients_included(aggregate, one_sided):
    near = both_kinds()[one_sided]
    m, t = rows().requires_grad_(), torch.tensor([1.7], dtype=torch.float64, requires_grad=True)
    ours, truth = aggregate(m, t, near), literal_aggregate(m, t, near.matrix.dense())
    assert torch.allclose(ours, truth, atol=1e-12)
    target = rows(seed=5)
    for a, b in zip(*(torch.autograd.grad((o * target).sum(), (m, t)) for o in (ours, truth)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("aggregate", BOTH_WAYS)
def test_without_temperature_it_is_the_mean_and_with_much_the_maximum(aggregate):
    near, m = both_kinds()[0], rows()
    dense, lonely = near.matrix.dense(), near.isolated[:, 0]
    mean = (dense @ m / dense.sum(1, keepdim=True))[~lonely]
    top = torch.stack([m[row.bool()].amax(0) for row in dense[~lonely]])
    assert torch.allclose(aggregate(m, torch.zeros(1).double(), near)[~lonely], mean)
    assert torch.allclose(aggregate(m, torch.full((1,), 1e6).double(), near)[~lonely], top)


@pytest.mark.parametrize("aggregate", BOTH_WAYS)
def test_who_hears_nobody_gets_nothing(aggregate):
    m = rows(n=4).requires_grad_()
    edgeless = Neighbours.of(Graph.from_edges(np.zeros((2, 0), int), n=4))
    out = aggregate(m, torch.ones(1).double(), edgeless)
    assert torch.equal(out, torch.zeros(4, 5).double())
    assert torch.equal(torch.autograd.grad(out.sum(), m)[0], torch.zeros(4, 5).double())


@pytest.mark.parametrize("spread", [1.0, 30.0, 70.0, 100.0, 3000.0])
def test_messages_of_any_spread_are_weighed_in_float32(spread):
    """Far below the largest message of a bag there are neighbourhoods too; none may drown or overflow."""
    near = both_kinds()[0]
    m = (torch.rand(N, 5, generator=torch.Generator().manual_seed(0)) * spread).requires_grad_()
    t = torch.ones(1, requires_grad=True)
    wide = [v.detach().double().requires_grad_() for v in (m, t)]
    ours, truth = _softmax_aggregate(m, t, near), _softmax_aggregate_by_edge(*wide, near)
    assert torch.allclose(ours.double(), truth, atol=1e-4 * spread)
    target = rows(seed=5)
    mine = torch.autograd.grad((ours * target.float()).sum(), (m, t))
    true = torch.autograd.grad((truth * target).sum(), wide)
    for a, b in zip(mine, true, strict=True):
        assert a.isfinite().all()
        assert torch.allclose(a.double(), b, atol=1e-3 * spread)


def test_only_messages_far_apart_are_weighed_edge_by_edge(monkeypatch):
    calls = []
    monkeypatch.setattr(gnn, "_softmax_aggregate_by_edge", lambda *a: calls.append(1) or _softmax_aggregate_by_edge(*a))
    near, one = both_kinds()[0], torch.ones(1)
    for spread, by_edge in ((20, 0), (75, 0), (85, 1)):
        calls.clear()
        _softmax_aggregate(torch.linspace(0, spread, N)[:, None].repeat(1, 2), one, near)
        assert len(calls) == by_edge


def test_nothing_is_kept_or_built_per_edge():
    """Forward and backward: no tensor beyond 2 n × the widest layer, though there are almost 8 edges per node."""
    near = Neighbours.of(grid_graph(grid_coords(2000, fill=0.99), STEP))
    n, dim = 2000, 32
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for t in result if isinstance(result, tuple | list) else (result,):
                if isinstance(t, torch.Tensor) and t.layout == torch.strided:
                    sizes.append(t.numel())
            return result

    conv, x = GENConv(dim), torch.randn(n, dim, requires_grad=True)
    with Watch():
        conv(x, near).sum().backward()
    assert near.matrix.indices.numel() * dim > 3 * max(sizes)
    assert max(sizes) == 2 * n * dim


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("one_sided", [0, 1])
def test_genconv_is_its_definition(bias, one_sided):
    torch.manual_seed(0)
    conv, x = GENConv(5, bias=bias).double(), rows()
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(0.3 * torch.randn_like(p))
    near = both_kinds()[one_sided]
    m = x.clamp_min(0) + 1e-7
    s = x + literal_aggregate(m, conv.t, near.matrix.dense())
    p = dict(conv.named_parameters())
    hidden = s @ p["mlp.0.weight"].T + (p["mlp.0.bias"] if bias else 0)
    centred = hidden - hidden.mean(1, keepdim=True)
    hidden = centred / ((centred**2).mean(1, keepdim=True) + 1e-5).sqrt() * p["mlp.1.weight"] + p["mlp.1.bias"]
    wanted = hidden.clamp_min(0) @ p["mlp.3.weight"].T + (p["mlp.3.bias"] if bias else 0)
    assert torch.allclose(conv(x, near), wanted, atol=1e-12)
    assert len(p) == (7 if bias else 5)


@pytest.mark.parametrize("isolated", ["keep", "shrink"])
def test_the_terms_are_chebyshev_polynomials_of_the_scaled_laplacian(isolated):
    """T_k(cos θ) = cos kθ on the eigenvalues of L - I, found by decomposing the dense Laplacian."""
    a = graph().dense()
    degree = a.sum(1)
    root = torch.where(degree > 0, degree.clamp_min(1e-300).rsqrt(), 0.0)
    laplacian = torch.diag((degree > 0).double() if isolated == "keep" else torch.ones(N).double())
    laplacian -= root[:, None] * a * root
    values, vectors = torch.linalg.eigh(laplacian - torch.eye(N, dtype=torch.float64))
    x = rows()
    for k, term in enumerate(chebyshev_terms(x, graph().normalized("sym", isolated), 6)):
        truth = vectors @ torch.diag((k * values.clamp(-1, 1).acos()).cos()) @ vectors.T @ x
        assert torch.allclose(term, truth, atol=1e-6)  # acos is steep at the ends
        assert k > 1 or torch.allclose(term, truth, atol=1e-12)


def test_terms_of_a_lonely_instance_alternate():
    x, lonely = rows(n=1), chain_graph(1)
    kept, faded = (chebyshev_terms(x, lonely.normalized("sym", how), 5) for how in ("keep", "shrink"))
    assert [float((t / x).mean()) for t in kept] == pytest.approx([1, -1, 1, -1, 1])
    assert [float((t / x).mean()) for t in faded] == pytest.approx([1, 0, -1, 0, 1])


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("bias", [True, False])
def test_chebconv_sums_its_terms(order, bias):
    conv, terms = ChebConv(5, 3, order, bias=bias).double(), [rows(seed=k) for k in range(order)]
    if bias:
        torch.nn.init.normal_(conv.bias)
    wanted = sum(t @ w for t, w in zip(terms, conv.weight, strict=True)) + (conv.bias if bias else 0)
    assert torch.allclose(conv(terms), wanted)


def test_chebconv_needs_a_term_and_as_many_as_it_has_weights():
    with pytest.raises(ConfigError, match="at least one term"):
        ChebConv(5, 3, 0)
    with pytest.raises(ValueError):
        ChebConv(5, 3, 4).double()([rows()] * 3)


def test_every_chebyshev_weight_starts_like_a_single_layer():
    bound = math.sqrt(6 / (40 + 60))
    for one in ChebConv(40, 60, 3).weight:
        assert 0.95 * bound < one.abs().max() <= bound


@pytest.mark.parametrize("one_sided", [0, 1])
def test_ginconv_is_an_mlp_of_the_sum(one_sided):
    torch.manual_seed(0)
    conv, x, near = GINConv(5, 3).double(), rows(), both_kinds()[one_sided]
    s = x + near.matrix.dense() @ x
    hidden = (s @ conv.first.weight.T + conv.first.bias).clamp_min(0)
    assert torch.allclose(conv(x, near), hidden @ conv.second.weight.T + conv.second.bias, atol=1e-12)


class Bent(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).square()


def test_gin_sums_before_a_first_layer_that_is_not_linear():
    conv, x, near = GINConv(5, 3).double(), rows(), both_kinds()[0]
    conv.first = Bent(5, 3).double()
    truth = conv.second(conv.first(x + near.sum(x)).relu())
    assert torch.allclose(conv(x, near), truth, atol=1e-12)


@pytest.mark.parametrize("conv", [GENConv(5), GINConv(5, 5)])
def test_autocast_runs_and_stays_close(conv):
    near, x = both_kinds()[0], rows().float()
    plain = conv(x, near)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = conv(x, near)
    mixed.sum().backward()
    assert torch.allclose(mixed.float(), plain, atol=0.1)
    assert not torch.equal(mixed.float(), plain)
