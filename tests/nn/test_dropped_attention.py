"""Attention with dropout: the silenced weights are read off, then all must follow from the dense formula."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smmil.nn import dropped_attention as room
from smmil.nn.dropped_attention import dropped_attention
from smmil.nn.transformer import bag_attention


def rows(n, d, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def run(q, k, v, offsets, heads=1, p=0.3, seed=1):
    torch.manual_seed(seed)
    return dropped_attention(q, k, v, torch.tensor(offsets), heads, p)


def dense_weights(q, k):
    return (q @ k.T / q.shape[1] ** 0.5).softmax(1)


def factors(n, seed=1):
    """0 or 1 / (1 - p) for every weight of one bag with one head: values are the unit vectors, so weights come out."""
    q, k, _ = rows(n, n)
    with torch.no_grad():
        return run(q, k, torch.eye(n, dtype=q.dtype), [0, n], seed=seed) / dense_weights(q, k)


@pytest.fixture(params=[1 << 21, 60, 1], ids=["one chunk", "several rows", "row by row"])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(room, "ENTRIES", request.param)


@pytest.mark.usefixtures("_chunks")
def test_every_weight_is_either_silenced_or_enlarged():
    found = factors(23)
    silent = found.abs() < 1e-12
    assert (silent | ((found - 1 / 0.7).abs() < 1e-9)).all()
    assert 0.2 < silent.double().mean() < 0.4


@pytest.mark.usefixtures("_chunks")
def test_output_and_gradients_are_those_of_the_dense_formula():
    n = 23
    given = rows(n, n, seed=3)
    kept = factors(n)
    ours = run(*given, [0, n])
    dense = (dense_weights(given[0], given[1]) * kept) @ given[2]
    assert torch.allclose(ours, dense, rtol=0, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(out.sin().sum(), given) for out in (ours, dense)), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_gradients_agree_with_finite_differences_over_bags_and_heads():
    assert torch.autograd.gradcheck(lambda q, k, v: run(q, k, v, [0, 1, 4, 9], heads=2), rows(9, 6))


def test_bags_and_heads_keep_to_themselves():
    q, k, v = rows(9, 6)
    first = run(q, k, v, [0, 4, 9], heads=2)
    other = v.detach().clone()
    other[4:] += 1
    other[:, 3:] += 1
    changed = (run(q, k, other, [0, 4, 9], heads=2) - first).abs() > 1e-9
    assert not changed[:4, :3].any()
    assert changed[4:].any(0).all()
    assert changed[:, 3:].any(0).all()


def test_without_dropout_it_is_the_fused_kernel():
    q, k, v = rows(9, 6)
    assert torch.equal(run(q, k, v, [0, 4, 9], heads=2, p=0.0), bag_attention(q, k, v, torch.tensor([0, 4, 9]), 2))


def test_the_global_generator_decides():
    assert torch.equal(factors(12, seed=5), factors(12, seed=5))
    assert not torch.allclose(factors(12, seed=5), factors(12, seed=6), atol=1e-3)


def test_every_bag_and_head_draws_its_own():
    q, k, _ = rows(6, 6)
    one = torch.cat([torch.cat([t, t], 1).repeat(2, 1)[None] for t in (q, k, torch.eye(6, dtype=q.dtype))])
    out = run(*one, [0, 6, 12], heads=2)
    parts = [out[:6, :6], out[:6, 6:], out[6:, :6], out[6:, 6:]]
    assert not any(torch.allclose(a, b) for i, a in enumerate(parts) for b in parts[:i])


def test_the_mean_over_many_draws_is_attention_without_dropout():
    q, k, v = rows(5, 4)
    with torch.no_grad():
        mean = sum(run(q, k, v, [0, 5], seed=s) for s in range(1500)) / 1500
    assert torch.allclose(mean, dense_weights(q, k) @ v, atol=0.08)


def test_half_precision_is_computed_in_single():
    q, k, v = (t.detach().bfloat16() for t in rows(9, 6))
    with torch.autocast("cpu", torch.bfloat16):
        half = run(q, k, v, [0, 4, 9], heads=2)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, run(q.float(), k.float(), v.float(), [0, 4, 9], heads=2).bfloat16())


def test_no_tensor_has_n_times_n_entries_forward_or_backward():
    class Widest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for t in result if isinstance(result, tuple | list) else (result,):
                self.most = max(self.most, t.numel() if isinstance(t, torch.Tensor) else 0)
            return result

    q, k, v = (torch.randn(3000, 8, requires_grad=True) for _ in range(3))
    with Widest() as watch:
        run(q, k, v, [0, 3000], heads=2).sum().backward()
    assert 1 << 20 < watch.most <= 1 << 21
