import itertools

import pytest
import torch

from smmil.nn.segment import segment_argmax, segment_ids, segment_mean, segment_softmax, segment_sum, split_bags

OFFSETS = torch.tensor([0, 1, 4, 9])


def pieces(x):
    return [x[a:b] for a, b in itertools.pairwise(OFFSETS)]


def test_every_reduction_stays_inside_its_bag():
    x = torch.randn(9, 3, dtype=torch.float64)
    assert torch.allclose(segment_sum(x, OFFSETS), torch.stack([p.sum(0) for p in pieces(x)]))
    assert torch.allclose(segment_mean(x, OFFSETS), torch.stack([p.mean(0) for p in pieces(x)]))
    assert torch.allclose(segment_softmax(x, OFFSETS), torch.cat([p.softmax(0) for p in pieces(x)]))
    assert torch.equal(x.gather(0, segment_argmax(x, OFFSETS)), torch.stack([p.amax(0) for p in pieces(x)]))
    assert segment_ids(OFFSETS).tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2]


def test_softmax_gradients():
    x = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: segment_softmax(t, OFFSETS), (x,))


def test_softmax_survives_huge_scores():
    x = torch.tensor([[1e4], [1e4], [-1e4], [3e38]])
    assert segment_softmax(x, torch.tensor([0, 3, 4]))[:, 0].tolist() == [0.5, 0.5, 0.0, 1.0]


def test_bags_are_split_at_their_offsets_and_a_single_bag_is_the_whole_tensor():
    x = torch.randn(9, 3)
    assert all(torch.equal(a, b) for a, b in zip(split_bags(x, OFFSETS), pieces(x), strict=True))
    (whole,) = split_bags(x, torch.empty(2, dtype=torch.long, device="meta"))  # offsets that cannot be read
    assert whole is x


def test_second_derivatives():
    x = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    for reduce in (segment_sum, segment_mean, segment_softmax):
        assert torch.autograd.gradgradcheck(lambda t, reduce=reduce: reduce(t, OFFSETS).sin(), (x,))


@pytest.mark.parametrize("shift", [0.0, -1e4, 1e4])
def test_a_traced_program_reduces_the_same(shift, monkeypatch):
    x = torch.randn(9, 3, dtype=torch.float64) + shift
    wanted = [reduce(x, OFFSETS) for reduce in (segment_sum, segment_mean, segment_softmax)]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for reduce, true in zip((segment_sum, segment_mean, segment_softmax), wanted, strict=True):
        assert torch.allclose(reduce(x, OFFSETS), true)
