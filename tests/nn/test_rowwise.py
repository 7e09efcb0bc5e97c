"""Attention by rows against a dense matrix with the same bias and the same dropped entries."""

import pytest
import torch

from smmil.nn import rowwise
from smmil.nn.rowwise import Pairs, attend_by_rows

HEADS, N, KINDS = 3, 11, 4


def tensors(width=5, seed=0, n=N):
    g = torch.Generator().manual_seed(seed)
    made = [torch.randn(HEADS, n, width, generator=g, dtype=torch.float64) for _ in range(3)]
    return [t.requires_grad_() for t in (*made, torch.randn(HEADS, KINDS, generator=g, dtype=torch.float64))]


def some_pairs(n=N, seed=0):
    g = torch.Generator().manual_seed(seed)
    chosen = torch.rand(n, n, generator=g) < 0.3
    chosen[4] = False
    row, column = chosen.nonzero(as_tuple=True)
    kind = torch.randint(KINDS, row.shape, generator=g)
    return Pairs(row, column, kind, [0, *chosen.sum(1).cumsum(0).tolist()])


def dense_weights(q, k, bias, pairs, scale):
    logits = [[[scale * (q[h, i] @ k[h, j]) for j in range(N)] for i in range(N)] for h in range(HEADS)]
    for r, c, kind in zip(pairs.row.tolist(), pairs.column.tolist(), pairs.kind.tolist(), strict=True):
        for h in range(HEADS):
            logits[h][r][c] = logits[h][r][c] + bias[h, kind]
    return torch.stack([torch.stack([torch.stack(row) for row in head]) for head in logits]).softmax(-1)


@pytest.mark.parametrize("entries", [1, HEADS * N * 2 + 5, 2**22])
def test_attention_by_rows_and_its_slopes_are_those_of_the_dense_matrix(monkeypatch, entries):
    monkeypatch.setattr(rowwise, "ENTRIES", entries)
    (q, k, v, bias), pairs = tensors(), some_pairs()
    ours = attend_by_rows(q, k, v, scale=0.4, pairs=pairs, bias=bias)
    truth = dense_weights(q, k, bias, pairs, 0.4) @ v
    assert torch.allclose(ours, truth, atol=1e-13)
    found, expected = (torch.autograd.grad(t.sin().sum(), (q, k, v, bias)) for t in (ours, truth))
    for a, b in zip(found, expected, strict=True):
        assert b.abs().max() > 1e-3
        assert torch.allclose(a, b, atol=1e-12)


def test_without_pairs_and_dropout_it_is_plain_attention():
    q, k, v, _ = tensors()
    truth = (0.3 * q @ k.mT).softmax(-1) @ v
    assert torch.allclose(attend_by_rows(q, k, v, scale=0.3), truth, atol=1e-13)


def thinned(q, k, bias, pairs, dropout):
    """The thinned weights themselves: what identity matrices as values give."""
    one = torch.eye(N, dtype=torch.float64).expand(HEADS, N, N)
    return attend_by_rows(q, k, one, scale=1, dropout=dropout, pairs=pairs, bias=bias)


@pytest.mark.parametrize("entries", [HEADS * N * 3, 2**22])
def test_dropout_silences_some_weights_and_lifts_the_others(monkeypatch, entries):
    monkeypatch.setattr(rowwise, "ENTRIES", entries)
    (q, k, _, bias), pairs = tensors(width=N), some_pairs()
    weights = dense_weights(q, k, bias, pairs, 1)
    torch.manual_seed(0)
    draws = torch.stack([thinned(q, k, bias, pairs, 0.2) for _ in range(200)])
    lifted = weights / (1 - round(0.2 * 2**16) / 2**16)
    assert torch.allclose(draws, torch.where(draws == 0, 0, lifted), atol=1e-13)
    silent = (draws == 0).double()
    assert silent.mean().item() == pytest.approx(0.2, abs=0.005)
    assert silent.mean(0).min() > 0.05
    assert silent.mean(0).max() < 0.4


def test_neighbouring_entries_are_silenced_independently():
    (q, k, _, bias), pairs = tensors(width=N), some_pairs()
    torch.manual_seed(1)
    silent = torch.stack([(thinned(q, k, bias, pairs, 0.2) == 0).flatten() for _ in range(400)]).double()
    for shift in (1, 2, 3, 4):
        both = (silent[:, shift:] * silent[:, :-shift]).mean().item()
        assert both == pytest.approx(0.04, abs=0.003)


@pytest.mark.parametrize("entries", [HEADS * N * 3, 2**22])
def test_slopes_meet_the_same_dropout_as_values(monkeypatch, entries):
    monkeypatch.setattr(rowwise, "ENTRIES", entries)
    (q, k, v, bias), pairs = tensors(width=N), some_pairs()
    torch.manual_seed(5)
    kept = (thinned(q, k, bias, pairs, 0.5) != 0).double()
    torch.manual_seed(5)
    ours = attend_by_rows(q, k, v, scale=1, dropout=0.5, pairs=pairs, bias=bias)
    truth = (dense_weights(q, k, bias, pairs, 1) * kept * 2) @ v
    assert torch.allclose(ours, truth, atol=1e-13)
    torch.manual_seed(99)
    found, expected = (torch.autograd.grad(t.sin().sum(), (q, k, v, bias)) for t in (ours, truth))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_half_precision_is_computed_in_single():
    q, k, v, bias = (t.detach().bfloat16() for t in tensors())
    pairs = some_pairs()
    ours = attend_by_rows(q, k, v, scale=1, pairs=pairs, bias=bias)
    assert ours.dtype == torch.float32
    truth = dense_weights(*(t.float() for t in (q, k, bias)), pairs, 1) @ v.float()
    assert torch.allclose(ours, truth, atol=1e-6)


def test_no_tensor_of_all_pairs_exists_with_dropout_and_bias():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.most = max(self.most, result.numel())
            return result

    n = 4000
    q, k, v = (torch.randn(1, n, 2, requires_grad=True) for _ in range(3))
    row = torch.arange(n)
    pairs = Pairs(row, row.flip(0), torch.zeros_like(row), list(range(n + 1)))
    with Watch() as watch:
        attend_by_rows(q, k, v, scale=1, dropout=0.2, pairs=pairs, bias=torch.ones(1, 1)).sum().backward()
    assert watch.most <= rowwise.ENTRIES < n * n / 2
