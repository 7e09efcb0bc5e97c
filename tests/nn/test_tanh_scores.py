import pytest
import torch

from smmil.nn.kernels.fused_pool import _TanhScores

N, WIDTH = 9, 5


def tanh_scores(v, bias, w, *, own=False):
    return _TanhScores.apply(v, bias, w, own)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


def definition(v, bias, w):
    return torch.tanh(v + bias) @ w.T


@pytest.mark.parametrize("bias", [(WIDTH,), ()])
@pytest.mark.parametrize("own", [False, True])
def test_scores_are_their_definition_with_its_gradients(bias, own):
    leaves = draw(N, WIDTH), draw(*bias, seed=1), draw(1, WIDTH, seed=2)
    v, *rest = leaves
    ours, true = tanh_scores(v * 1, *rest, own=own), definition(*leaves)
    assert torch.allclose(ours, true, atol=1e-14)
    pull = torch.linspace(-1, 2, N, dtype=torch.float64)[:, None]
    for mine, theirs in zip(*(torch.autograd.grad(s, leaves, pull) for s in (ours, true)), strict=True):
        assert mine.shape == theirs.shape
        assert torch.allclose(mine, theirs, atol=1e-14)


def test_what_is_not_ours_is_left_alone():
    v, bias, w = draw(N, WIDTH), draw(WIDTH, seed=1), draw(1, WIDTH, seed=2)
    before = v.detach().clone()
    tanh_scores(v, bias, w).sum().backward()
    assert torch.equal(v, before)


def test_a_bias_that_is_not_trained_needs_no_gradient():
    v, w, nothing = draw(N, WIDTH), draw(1, WIDTH, seed=2), torch.zeros((), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v, w: tanh_scores(v, nothing, w), (v, w))
    assert nothing.grad is None
