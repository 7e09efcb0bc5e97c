import numpy as np
import pytest
import torch

from smmil.nn import compiled, relu

needs_numba = pytest.mark.skipif(compiled._kernel() is None, reason="numba is not installed (extra: fast)")
both_ways = pytest.mark.parametrize("switch", ["0", pytest.param("1", marks=needs_numba)])
precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@both_ways
@precisions
@pytest.mark.parametrize("columns", [1, 7, 33])
def test_rows_are_shifted_and_cut_in_place(switch, dtype, columns, monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, switch)
    h, bias = draw(11, columns, dtype=dtype), draw(columns, seed=1, dtype=dtype).requires_grad_()
    expected = np.maximum(h.numpy() + bias.detach().numpy(), 0)
    relu.shifting(h)(h[3:8], bias.detach())
    assert np.array_equal(h[3:8].numpy(), expected[3:8])
    assert torch.equal(h[:3], draw(11, columns, dtype=dtype)[:3])


@both_ways
@precisions
@pytest.mark.parametrize("columns", [1, 7, 33])
def test_the_gradient_takes_the_place_of_what_was_not_cut(switch, dtype, columns, monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, switch)
    h, grad = draw(300, columns, dtype=dtype).relu_(), draw(300, columns, seed=1, dtype=dtype)
    before, open_ = draw(columns, seed=2, dtype=dtype), h > 0
    total = before.clone()
    relu.masking(h)(h, grad, total)
    assert torch.equal(h, torch.where(open_, grad, 0))
    assert torch.allclose(total, before + torch.where(open_, grad, 0).sum(0), rtol=1e-4, atol=1e-4)


@both_ways
def test_what_is_not_a_number_is_not_hidden(switch, monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, switch)
    h = torch.tensor([[torch.nan, -1.0], [2.0, torch.inf]])
    relu.shifting(h)(h, torch.zeros(2))
    assert h.isnan().tolist() == [[True, False], [False, False]]
    assert h[1, 1] == torch.inf
    total = torch.zeros(2)
    relu.masking(h)(h, torch.tensor([[1.0, 1.0], [torch.nan, 1.0]]), total)
    assert h.isnan().tolist() == [[False, False], [True, False]]
    assert h[0].tolist() == [1.0, 0.0]
    assert total.isnan().tolist() == [True, False]


@both_ways
def test_sums_over_many_rows_keep_their_digits(switch, monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, switch)
    h, total = torch.ones(1024, 3), torch.zeros(3)
    mask, grad = relu.masking(h), torch.full((1024, 3), 1 / 3)
    for _ in range(200):
        mask(h.fill_(1), grad, total)
    assert torch.allclose(total, torch.full((3,), 200 * 1024 / 3), rtol=2e-5)


@needs_numba
def test_several_threads_stay_with_torch(monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, "1")
    h = draw(4, 4)
    assert relu.shifting(h) is not relu._shift
    assert relu.masking(h) is not relu._mask
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert relu.shifting(h) is relu._shift
    assert relu.masking(h) is relu._mask
