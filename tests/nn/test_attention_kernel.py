"""Attention inside bags: fused, dense and chunked paths against the formula, written out or with the same dropout."""

from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smmil.nn import kernels
from smmil.nn.kernels import attention as module
from smmil.nn.kernels.attention import Pairs, attention, bag_attention, join_heads, split_heads

HEADS, N, KINDS = 3, 11, 4
CHUNKS = {"row by row": 1, "several rows": HEADS * N * 2 + 5, "one chunk": 1 << 21}


@pytest.fixture(params=["dense", *CHUNKS])
def path(request, monkeypatch):
    """Every path that computes the weights itself."""
    if request.param != "dense":
        monkeypatch.setattr(module, "DENSE_ENTRIES", 0)
        monkeypatch.setattr(module, "CHUNK_ENTRIES", CHUNKS[request.param])
    return request.param


@pytest.fixture
def _chunked(monkeypatch):
    monkeypatch.setattr(module, "DENSE_ENTRIES", 0)
    monkeypatch.setattr(module, "CHUNK_ENTRIES", CHUNKS["several rows"])


def tensors(width=5, seed=0, queries=N):
    g = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, queries, width), (HEADS, N, width), (HEADS, N, width), (HEADS, KINDS))
    return [torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_() for shape in shapes]


def some_pairs(queries=N, seed=0):
    g = torch.Generator().manual_seed(seed)
    chosen = torch.rand(queries, N, generator=g) < 0.3
    chosen[4] = False
    row, column = chosen.nonzero(as_tuple=True)
    kind = torch.randint(KINDS, row.shape, generator=g)
    return Pairs(row, column, kind, [0, *chosen.sum(1).cumsum(0).tolist()])


def literal_weights(q, k, bias, pairs, scale):
    """Logit by logit."""
    logits = [[[scale * (a @ b) for b in keys] for a in queries] for queries, keys in zip(q, k, strict=True)]
    for r, c, kind in zip(pairs.row.tolist(), pairs.column.tolist(), pairs.kind.tolist(), strict=True):
        for h in range(HEADS):
            logits[h][r][c] = logits[h][r][c] + bias[h, kind]
    return torch.stack([torch.stack([torch.stack(row) for row in head]) for head in logits]).softmax(-1)


def assert_same_gradients(ours, truth, inputs, atol=1e-12):
    found, expected = (torch.autograd.grad(t.sin().sum(), inputs) for t in (ours, truth))
    for a, b in zip(found, expected, strict=True):
        assert b.abs().max() > 1e-3
        assert torch.allclose(a, b, atol=atol)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("queries", [N, 5, 20])
def test_values_and_gradients_with_biased_pairs_are_those_of_the_formula(queries):
    (q, k, v, bias), pairs = tensors(queries=queries), some_pairs(queries)
    ours = attention(q, k, v, scale=0.4, pairs=pairs, bias=bias)
    truth = literal_weights(q, k, bias, pairs, 0.4) @ v
    assert torch.allclose(ours, truth, atol=1e-13)
    assert_same_gradients(ours, truth, (q, k, v, bias))


@pytest.mark.parametrize("dense", [0, 1 << 18], ids=["fused", "dense"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_without_pairs_and_dropout_it_is_softmax_attention(dense, scale, monkeypatch):
    monkeypatch.setattr(module, "DENSE_ENTRIES", dense)
    q, k, v, _ = tensors()
    truth = ((scale or 5**-0.5) * q @ k.mT).softmax(-1) @ v
    ours = attention(q, k, v, scale=scale)
    assert torch.allclose(ours, truth, atol=1e-13)
    assert_same_gradients(ours, truth, (q, k, v))
    with torch.no_grad():
        assert torch.allclose(attention(q, k, v, scale=scale), truth, atol=1e-13)


@pytest.mark.parametrize("entries", [0, 1 << 18], ids=["large", "small"])
@pytest.mark.parametrize("options", [{}, {"pairs": some_pairs()}])
def test_a_key_with_a_bias_of_ln_c_stands_for_c_equal_keys(entries, options, monkeypatch):
    monkeypatch.setattr(module, "DENSE_ENTRIES", entries)
    q, k, v, bias = tensors()
    counts = torch.tensor([3, 1, 2] + [1] * (N - 3))
    ours = attention(q, k, v, key_bias=counts.double().log(), bias=bias, **options)
    pairs = options.get("pairs", Pairs(*(torch.zeros(0, dtype=torch.long),) * 3, [0] * (N + 1)))
    weights = literal_weights(q, k, bias, pairs, 5**-0.5) * counts
    truth = weights / weights.sum(-1, keepdim=True) @ v
    assert torch.allclose(ours, truth, atol=1e-13)
    assert_same_gradients(ours, truth, (q, k, v))


def after_dropout(q, k, bias, pairs, dropout):
    """The weights after dropout themselves: what identity matrices as values give."""
    one = torch.eye(N, dtype=torch.float64).expand(HEADS, N, N)
    return attention(q, k, one, scale=1, dropout=dropout, pairs=pairs, bias=bias)


def test_dropout_sets_some_weights_to_zero_and_enlarges_the_others(path):
    (q, k, _, bias), pairs = tensors(width=N), some_pairs()
    weights = literal_weights(q, k, bias, pairs, 1)
    torch.manual_seed(0)
    draws = torch.stack([after_dropout(q, k, bias, pairs, 0.2) for _ in range(200)])
    enlarged = weights / (1 - (0.2 if path == "dense" else round(0.2 * 2**16) / 2**16))
    assert torch.allclose(draws, torch.where(draws == 0, 0, enlarged), atol=1e-13)
    dropped = (draws == 0).double()
    assert dropped.mean().item() == pytest.approx(0.2, abs=0.005)
    assert dropped.mean(0).min() > 0.05
    assert dropped.mean(0).max() < 0.4


@pytest.mark.usefixtures("_chunked")
def test_neighbouring_entries_are_dropped_independently():
    (q, k, _, bias), pairs = tensors(width=N), some_pairs()
    torch.manual_seed(1)
    dropped = torch.stack([(after_dropout(q, k, bias, pairs, 0.2) == 0).flatten() for _ in range(400)]).double()
    for shift in (1, 2, 3, 4):
        both = (dropped[:, shift:] * dropped[:, :-shift]).mean().item()
        assert both == pytest.approx(0.04, abs=0.003)


@pytest.mark.usefixtures("path")
def test_gradients_meet_the_same_dropout_as_values():
    (q, k, v, bias), pairs = tensors(width=N), some_pairs()
    torch.manual_seed(5)
    kept = (after_dropout(q, k, bias, pairs, 0.5) != 0).double()
    torch.manual_seed(5)
    ours = attention(q, k, v, scale=1, dropout=0.5, pairs=pairs, bias=bias)
    truth = (literal_weights(q, k, bias, pairs, 1) * kept * 2) @ v
    assert torch.allclose(ours, truth, atol=1e-13)
    torch.manual_seed(99)
    assert_same_gradients(ours, truth, (q, k, v, bias))


@pytest.mark.usefixtures("path")
def test_second_derivatives_meet_the_same_dropout():
    (q, k, v, bias), pairs = tensors(width=N), some_pairs()
    torch.manual_seed(5)
    kept = (after_dropout(q, k, bias, pairs, 0.5) != 0).double()
    torch.manual_seed(5)
    ours = attention(q, k, v, scale=1, dropout=0.5, pairs=pairs, bias=bias)
    truth = (literal_weights(q, k, bias, pairs, 1) * kept * 2) @ v
    inputs, second = (q, k, v, bias), []
    for out in (ours, truth):
        first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
        second.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for a, b in zip(*second, strict=True):
        assert b.abs().max() > 1e-3
        assert torch.allclose(a, b, atol=1e-11)


@pytest.mark.usefixtures("_chunked")
def test_inputs_without_gradient_are_left_out_of_the_second_derivative():
    q, k, v, bias = tensors()
    out = attention(q, k.detach(), v, dropout=0.3, pairs=some_pairs(), bias=bias.detach())
    (first,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), v)[0].abs().max() > 0


def packed(n, d, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def run(q, k, v, offsets, heads=1, p=0.3, seed=1):
    torch.manual_seed(seed)
    return bag_attention(q, k, v, torch.tensor(offsets), heads, p)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.usefixtures("path")
def test_gradients_agree_with_finite_differences_over_bags_and_heads(p):
    assert torch.autograd.gradcheck(lambda q, k, v: run(q, k, v, [0, 1, 4, 9], heads=2, p=p), packed(9, 6))


@pytest.mark.usefixtures("path")
def test_bags_and_heads_keep_to_themselves():
    q, k, v = packed(9, 6)
    first = run(q, k, v, [0, 4, 9], heads=2)
    other = v.detach().clone()
    other[4:] += 1
    other[:, 3:] += 1
    changed = (run(q, k, other, [0, 4, 9], heads=2) - first).abs() > 1e-9
    assert not changed[:4, :3].any()
    assert changed[4:].any(0).all()
    assert changed[:, 3:].any(0).all()


def test_a_packed_batch_is_its_bags_one_by_one():
    q, k, v = packed(9, 6)
    truth = [
        (a.chunk(2, 1)[h] @ b.chunk(2, 1)[h].T / 3**0.5).softmax(1) @ c.chunk(2, 1)[h]
        for a, b, c in zip(*(t.split([4, 5]) for t in (q, k, v)), strict=True)
        for h in range(2)
    ]
    expected = torch.cat([torch.cat(truth[:2], 1), torch.cat(truth[2:], 1)])
    assert torch.allclose(run(q, k, v, [0, 4, 9], heads=2, p=0.0), expected, atol=1e-13)


@pytest.mark.usefixtures("path")
def test_the_global_generator_decides():
    found = [run(*packed(12, 4), [0, 12], seed=seed) for seed in (5, 5, 6)]
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2], atol=1e-3)


@pytest.mark.usefixtures("path")
def test_every_bag_and_head_draws_its_own_dropout():
    q, k, _ = packed(6, 6)
    one = torch.cat([torch.cat([t, t], 1).repeat(2, 1)[None] for t in (q, k, torch.eye(6, dtype=q.dtype))])
    out = run(*one, [0, 6, 12], heads=2)
    parts = [out[:6, :6], out[:6, 6:], out[6:, :6], out[6:, 6:]]
    assert not any(torch.allclose(a, b) for i, a in enumerate(parts) for b in parts[:i])


@pytest.mark.usefixtures("path")
def test_the_mean_over_many_draws_is_attention_without_dropout():
    q, k, v = packed(5, 4)
    with torch.no_grad():
        mean = sum(run(q, k, v, [0, 5], seed=s) for s in range(600)) / 600
        assert torch.allclose(mean, run(q, k, v, [0, 5], p=0.0), atol=0.12)


@pytest.mark.usefixtures("path")
def test_half_precision_is_computed_in_single():
    q, k, v, bias = (t.detach().bfloat16() for t in tensors())
    pairs = some_pairs()
    with torch.autocast("cpu", torch.bfloat16):
        ours = attention(q, k, v, scale=1, pairs=pairs, bias=bias)
    assert ours.dtype == torch.bfloat16
    wide = attention(q.float(), k.float(), v.float(), scale=1, pairs=pairs, bias=bias.float())
    assert torch.equal(ours, wide.bfloat16())
    truth = literal_weights(*(t.float() for t in (q, k, bias)), pairs, 1) @ v.float()
    assert torch.allclose(wide, truth, atol=1e-6)


class Largest(TorchDispatchMode):
    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else (result,):
            self.most = max(self.most, t.numel() if isinstance(t, torch.Tensor) else 0)
        return result


@pytest.mark.parametrize("with_pairs", [False, True])
def test_no_tensor_has_n_times_n_entries_forward_or_backward(with_pairs):
    n = 4000
    q, k, v = (torch.randn(1, n, 2, requires_grad=True) for _ in range(3))
    row = torch.arange(n)
    pairs = Pairs(row, row.flip(0), torch.zeros_like(row), list(range(n + 1))) if with_pairs else None
    with Largest() as largest:
        attention(q, k, v, dropout=0.2, pairs=pairs, bias=torch.ones(1, 1)).sum().backward()
    assert 1 << 20 < largest.most <= module.CHUNK_ENTRIES < n * n / 2


@pytest.mark.parametrize(
    ("n", "switch", "chunked"),
    [
        (512, nullcontext, False),
        (513, nullcontext, True),
        (513, kernels.disabled, False),
        (3, kernels.forced, True),
    ],
)
def test_only_large_bags_are_computed_in_chunks_unless_the_switch_says_otherwise(n, switch, chunked, monkeypatch):
    served, run_chunked = [], module._chunked
    monkeypatch.setattr(module, "_chunked", lambda *given: served.append(n) or run_chunked(*given))
    with switch():
        attention(*(torch.randn(1, n, 2) for _ in range(3)), dropout=0.2)
    assert served == [n] * chunked


def test_an_exported_program_takes_bags_of_any_size():
    class Attend(torch.nn.Module):
        def forward(self, x):
            return bag_attention(x, x, x, torch.tensor([0, 7]), 2)

    x = torch.randn(7, 4, requires_grad=True)
    program = torch.export.export(Attend(), (x,), dynamic_shapes=({0: torch.export.Dim("n")},), strict=False)
    for n in (1, 2, 900):
        x = torch.randn(n, 4)
        assert torch.allclose(program.module()(x), bag_attention(x, x, x, torch.tensor([0, n]), 2), atol=1e-5)


def test_heads_are_split_and_joined_again():
    x = torch.randn(3, 7, 12)
    assert split_heads(x, 4).shape == (3, 4, 7, 3)
    assert torch.equal(join_heads(split_heads(x, 4)), x)
