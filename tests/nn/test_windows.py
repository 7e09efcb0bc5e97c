"""Windows of a map against torch's unfold and a dense reading of the token transformer."""

import math

import pytest
import torch

from smmil.nn import windows
from smmil.nn.windows import EMPTY, WindowTransformer, distinct_windows, whole_map, window_index


def holey_cells(side, seed=0, share=0.3):
    """A map with numbered cells in the upper left quarter, most of it empty."""
    g = torch.Generator().manual_seed(seed)
    cells = torch.full((side, side), EMPTY)
    spots = (torch.rand(side, side, generator=g) < share).nonzero()
    spots = spots[(spots < side / 2).all(1)]
    cells[spots[:, 0], spots[:, 1]] = torch.randperm(len(spots), generator=g)
    return cells, len(spots)


def dense(cells, rows):
    """(channels, side, side), zeros in empty cells."""
    return torch.where(cells[..., None] == EMPTY, 0, rows[cells]).permute(2, 0, 1)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 2), (3, 1), (7, 1)])
@pytest.mark.parametrize("side", [1, 2, 5, 8])
def test_windows_are_those_of_unfold(side, kernel, stride):
    cells, count = holey_cells(side, share=0.9)
    rows = torch.randn(count + 1, 4, dtype=torch.float64)
    rows[-1] = 0
    ours = rows[window_index(cells, kernel, stride)].transpose(1, 2).flatten(1)
    truth = torch.nn.functional.unfold(dense(cells, rows)[None], kernel, stride=stride, padding=kernel // 2)[0].T
    assert torch.equal(ours, truth)
    assert len(ours) == math.ceil(side / stride) ** 2


def test_blank_windows_are_counted_once():
    index = torch.tensor([[EMPTY, EMPTY], [4, EMPTY], [EMPTY, EMPTY], [EMPTY, 2]])
    distinct, place, counts = distinct_windows(index)
    assert distinct.tolist() == [[4, EMPTY], [EMPTY, 2], [EMPTY, EMPTY]]
    assert place.tolist() == [2, 0, 2, 1]
    assert counts.tolist() == [1, 1, 2]
    distinct, place, counts = distinct_windows(index[[1, 3]])
    assert (distinct.tolist(), place.tolist(), counts.tolist()) == ([[4, EMPTY], [EMPTY, 2]], [0, 1], [1, 1])


def made(dropout=0.0, kernel=5):
    torch.manual_seed(0)
    net = WindowTransformer(3, 6, kernel, dropout=dropout).double()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return net


def layer_norm(norm, x):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def literal(net, shown, kernel, stride):
    """Tokens of a dense map (channels, side, side): unfold, one head, all pairs."""
    x = torch.nn.functional.unfold(shown[None], kernel, stride=stride, padding=kernel // 2)[0].T
    q, k, v = (layer_norm(net.norm1, x) @ net.qkv.weight.T).split(6, dim=1)
    y = v + (q @ k.T / math.sqrt(x.shape[1])).softmax(1) @ v @ net.out.weight.T + net.out.bias
    hidden = layer_norm(net.norm2, y) @ net.mlp[0].weight.T + net.mlp[0].bias
    hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    return y + hidden @ net.mlp[3].weight.T + net.mlp[3].bias


@pytest.mark.parametrize("entries", [1, 75 * 4, 2**23])
@pytest.mark.parametrize("side", [1, 2, 5, 12])
def test_tokens_and_slopes_are_those_of_the_dense_map(monkeypatch, side, entries):
    monkeypatch.setattr(windows, "ENTRIES", entries)
    net, (cells, count) = made(), holey_cells(side, share=0.6)
    rows = torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    framed = torch.cat([rows, rows.new_zeros(1, 3)])
    ours = net(framed, window_index(cells, 5, 2))
    truth = literal(net, dense(cells, framed), 5, 2)
    assert torch.allclose(ours, truth, atol=1e-12)
    wanted = [*net.parameters()] if count == 0 else [rows, *net.parameters()]
    found, expected = (torch.autograd.grad(t.sin().sum(), wanted) for t in (ours, truth))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-10)
    with torch.no_grad():
        assert torch.allclose(net(framed, window_index(cells, 5, 2)), truth, atol=1e-12)


def test_dropout_acts_in_training_only():
    net = made(dropout=0.3, kernel=3)
    rows = torch.cat([torch.randn(16, 3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)])
    index = window_index(whole_map(4), 3)
    truth = literal(net, dense(whole_map(4), rows), 3, 1)
    assert torch.allclose(net.eval()(rows, index), truth, atol=1e-12)
    torch.manual_seed(0)
    draws = torch.stack([net.train()(rows, index) for _ in range(3)])
    assert not torch.allclose(draws[0], draws[1])
    assert not torch.allclose(draws[0], truth)


def test_dropout_meets_attention_output_and_mlp():
    net, mixed, middle = made(dropout=0.25, kernel=3).train(), [], []
    rows = torch.cat([torch.randn(16, 3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)])
    v = (layer_norm(net.norm1, torch.nn.functional.unfold(dense(whole_map(4), rows)[None], 3, padding=1)[0].T)
         @ net.qkv.weight.T)[:, 12:]  # fmt: skip
    net.out.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0]))
    net.norm2.register_forward_pre_hook(lambda _, inputs: middle.append(inputs[0] - v))
    with torch.no_grad():
        net.out.weight.zero_()
        net.out.bias.fill_(3)
        torch.manual_seed(0)
        for _ in range(100):
            net(rows, window_index(whole_map(4), 3))
    assert torch.stack(mixed).std(0).min() > 0.01
    steps = torch.stack(middle)
    assert torch.allclose(steps, torch.where(steps.abs() < 1e-9, 0, 4.0).double(), atol=1e-9)
    assert (steps.abs() < 1e-9).double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert [layer.p for layer in net.mlp if isinstance(layer, torch.nn.Dropout)] == [0.25, 0.25]


def test_no_tensor_of_all_pairs_exists_beside_blank_windows():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for t in result if isinstance(result, tuple | list) else (result,):
                if isinstance(t, torch.Tensor):
                    self.most = max(self.most, t.numel())
            return result

    cells, count = holey_cells(160, share=0.9)
    index, rows = window_index(cells, 5, 2), torch.randn(count + 1, 1)
    distinct = len(distinct_windows(index)[0])
    assert 1500 < distinct < len(index)
    with Watch() as watch:
        WindowTransformer(1, 2, 5)(rows, index).sum().backward()
    assert watch.most < distinct**2 / 2
