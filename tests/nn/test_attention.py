import itertools

import torch

from smmil.nn.pool import GatedAttention, weighted_sums

OFFSETS = torch.tensor([0, 1, 4, 9])


def rows(width, seed=0):
    return torch.randn(9, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_weighted_sums_stay_inside_their_bag_and_column():
    h, weights = rows(4), rows(3, seed=1)
    z = weighted_sums(h, weights, OFFSETS)
    assert z.shape == (3, 3, 4)
    for b, (start, stop) in enumerate(itertools.pairwise(OFFSETS.tolist())):
        for k in range(3):
            expected = sum(weights[n, k] * h[n] for n in range(start, stop))
            assert torch.allclose(z[b, k], expected, atol=1e-14)


def test_gated_attention_is_its_formula():
    torch.manual_seed(0)
    net, h = GatedAttention(5, 7, columns=2).double(), rows(5)
    found = net(h)
    for n, c in itertools.product(range(9), range(2)):
        hidden = (net.project.weight @ h[n] + net.project.bias).tanh()
        gate = (net.gate.weight @ h[n] + net.gate.bias).sigmoid()
        assert torch.isclose(found[n, c], net.score.weight[c] @ (hidden * gate) + net.score.bias[c], atol=1e-14)


def test_dropout_silences_either_side_on_its_own_and_only_in_training():
    torch.manual_seed(0)
    net = GatedAttention(5, 2000, dropout=0.25).double()
    h = rows(5)[:1]
    kept = []
    net.score.register_forward_pre_hook(lambda _, inputs: kept.append((inputs[0] != 0).double().mean().item()))
    net.train()(h)
    net.eval()(h)
    assert abs(kept[0] - 0.75**2) < 0.04
    assert kept[1] == 1.0
