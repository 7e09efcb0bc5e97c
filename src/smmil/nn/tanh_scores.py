"""Attention scores tanh(v + bias) wᵀ with a backward pass of few sweeps: autograd would make twice as many."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def tanh_scores(v: Tensor, bias: Tensor, w: Tensor, *, own: bool = False) -> Tensor:
    """Scores (n, 1) of v (n, a), for a bias (a,) or () and weights w (1, a); a v that is our `own` is overwritten."""
    return _TanhScores.apply(v, bias, w, own)


class _TanhScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, bias, w, own):
        t = (v.detach().add_(bias) if own else v + bias).tanh_()
        ctx.save_for_backward(t, w)
        return t @ w.T

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        t, w = ctx.saved_tensors
        grad_v = grad @ w
        torch.ops.aten.tanh_backward.grad_input(grad_v, t, grad_input=grad_v)
        grad_bias = grad_v.T @ grad_v.new_ones(len(grad_v)) if ctx.needs_input_grad[1] else None
        return grad_v, grad_bias, grad.T @ t, None
