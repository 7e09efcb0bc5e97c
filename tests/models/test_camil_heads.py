"""The convolution over heads against a loop over taps, and the attention that carries it."""

import itertools

import pytest
import torch

from smmil.errors import ConfigError
from smmil.models.camil import _convolve_heads, _HeadMixingAttention
from smmil.nn.nystrom import NystromAttention


def values(heads, n, width, seed=0):
    return torch.randn(heads, n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal(v, weight):
    heads, n, width = v.shape
    inside, taps = weight.shape[1:]
    out = torch.zeros_like(v)
    for to, row, c, channel, tap in itertools.product(*map(range, (heads, n, width, inside, taps))):
        source = to + tap - taps // 2
        if 0 <= source < heads:
            out[to, row, c] += weight[c, channel, tap] * v[source, row, c // inside * inside + channel]
    return out


@pytest.mark.parametrize(
    ("heads", "width", "groups", "taps"), [(2, 8, 2, 33), (3, 6, 3, 5), (4, 8, 4, 3), (6, 6, 2, 1), (1, 3, 1, 33)]
)
def test_it_is_a_grouped_convolution_over_heads_with_zeros_around(heads, width, groups, taps):
    v, weight = values(heads, 5, width), values(width, width // groups, taps, seed=1)
    assert torch.allclose(_convolve_heads(v, weight), literal(v, weight), atol=1e-12)


def test_torch_knows_the_same_convolution():
    v, weight = values(8, 11, 64), values(64, 8, 33, seed=1)
    channels_first = torch.nn.functional.conv2d(v.permute(2, 0, 1)[None], weight[..., None], padding=(16, 0), groups=8)
    assert torch.allclose(_convolve_heads(v, weight), channels_first[0].permute(1, 2, 0), atol=1e-12)


def test_only_the_middle_taps_ever_meet_a_head():
    weight = values(8, 4, 33).requires_grad_()
    _convolve_heads(values(2, 3, 8, seed=1), weight).square().sum().backward()
    assert (weight.grad.abs().amax((0, 1)) > 0).nonzero()[:, 0].tolist() == [15, 16, 17]


OFFSETS = torch.tensor([0, 1, 8, 48])


def make():
    torch.manual_seed(0)
    return _HeadMixingAttention(12, heads=2, head_dim=6, landmarks=4).double()


def test_it_is_nystrom_attention_with_the_mixed_values_added():
    module, x = make(), values(1, 48, 12)[0]
    plain = NystromAttention(12, heads=2, head_dim=6, landmarks=4, kernel=None).double()
    plain.load_state_dict({k: v for k, v in module.state_dict().items() if k != "across"})
    v = module.qkv(x)[:, -12:].reshape(48, 2, 6).transpose(0, 1)
    added = literal(v.detach(), module.across.detach()).transpose(0, 1).reshape(48, 12)
    assert torch.allclose(module(x, OFFSETS), plain(x, OFFSETS) + added @ module.out.weight.T, atol=1e-11)


@pytest.mark.parametrize("options", [{"heads": 3, "head_dim": 8}, {"kernel": 4}])
def test_shapes_that_cannot_be_shared_out_are_refused(options):
    with pytest.raises(ConfigError, match="convolution over heads"):
        _HeadMixingAttention(16, **options)
