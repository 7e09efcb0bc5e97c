"""The layers of SETMIL: windows against torch's unfold, relative positions against a table for all pairs."""

import itertools
import math

import pytest
import torch

from smmil.errors import ConfigError
from smmil.models import set_mil
from smmil.models.set_mil import (
    _ClassTokenBlock,
    _distance_bucket,
    _distinct_windows,
    _map_pairs,
    _near_offsets,
    _relative_bias,
    _RelativeBlock,
    _sinusoids,
    _WindowTransformer,
)
from smmil.nn.token_grid import EMPTY, window_index

FULL_MAP = torch.arange(16).view(4, 4)


def literal_bucket(distance):
    d = round(distance)
    if d <= 1.9:
        return d
    return int(min(round(1.9 + math.log(d / 1.9) / math.log(15.2 / 1.9) * (3.8 - 1.9)), 3.8))


def literal_buckets(side):
    """Column of the table for every pair: −3 … 3 come first, the class token's is the eighth."""
    t = side * side + 1
    found = torch.full((t, t), 7)
    for i, j in itertools.product(range(1, t), range(1, t)):
        apart = math.dist(divmod(i - 1, side), divmod(j - 1, side))
        found[i, j] = 3 + literal_bucket(apart)
    return found


def test_buckets_are_fine_near_by_and_end_at_four():
    assert _distance_bucket(torch.tensor([0, 1, 1.42, 2, 2.83, 3, 3.47, 3.6, 4, 15, 100])).tolist() == [
        *(0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
    ]
    far = [math.hypot(r, c) for r in range(30) for c in range(30)]
    assert _distance_bucket(torch.tensor(far)).tolist() == [literal_bucket(d) for d in far]


def test_thirty_seven_tokens_are_near():
    offsets, bucket = _near_offsets()
    assert bucket.bincount().tolist() == [1, 8, 28]
    assert len(offsets) == 37


@pytest.mark.parametrize("side", [1, 2, 3, 5, 9])
def test_the_pairs_stand_for_the_whole_matrix_of_biases(side):
    """Up to a number per row, which a softmax does not notice."""
    table = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(side))
    pairs, t = _map_pairs(side), side * side + 1
    ours = torch.zeros(2, t, t, dtype=torch.float64)
    for i in range(t):
        for p in range(pairs.starts[i], pairs.starts[i + 1]):
            assert pairs.row[p] == i
            ours[:, i, pairs.column[p]] += _relative_bias(table)[:, pairs.kind[p]]
    assert pairs.starts[-1] == len(pairs.row)
    gap = table[:, literal_buckets(side)] - ours
    assert torch.allclose(gap, gap[..., :1].expand_as(gap), atol=1e-14)


def block(kind=_RelativeBlock, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    made = kind(12, 3, dropout=dropout).double()
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return made


def layer_norm(norm, x):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def literal_block(b, x, side):
    """The block with dense matrices; its output and its attention (heads, t, t)."""
    q, k, v = (layer_norm(b.norm1, x) @ b.qkv.weight.T).split(x.shape[1], dim=1)
    width, attention, mixed = x.shape[1] // b.heads, [], []
    for h in range(b.heads):
        own = slice(h * width, (h + 1) * width)
        logits = q[:, own] @ k[:, own].T / math.sqrt(width) + b.table[h][literal_buckets(side)]
        attention.append(logits.softmax(1))
        mixed.append(attention[-1] @ v[:, own])
    x = x + torch.cat(mixed, dim=1) @ b.out.weight.T + b.out.bias
    first, last = b.mlp[0], b.mlp[3]
    hidden = gelu(layer_norm(b.norm2, x) @ first.weight.T + first.bias)
    return x + hidden @ last.weight.T + last.bias, torch.stack(attention)


def tokens(side, seed=0):
    return torch.randn(side * side + 1, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("side", [1, 2, 3, 6])
def test_the_block_and_its_slopes_are_those_of_the_definition(side):
    b, x = block(), tokens(side).requires_grad_()
    ours, (truth, _) = b(x, _map_pairs(side)), literal_block(b, x, side)
    assert torch.allclose(ours, truth, atol=1e-12)
    wanted = [x, *b.parameters()]
    found, expected = (torch.autograd.grad(t.sin().sum(), wanted) for t in (ours, truth))
    for a, c in zip(found, expected, strict=True):
        assert torch.allclose(a, c, atol=1e-10)


@pytest.mark.parametrize("side", [1, 3, 6])
def test_the_first_row_is_that_of_the_block(side):
    b, x = block(_ClassTokenBlock), tokens(side)
    (z, row), (truth, attention) = b(x), literal_block(b, x, side)
    assert torch.allclose(z, truth[:1], atol=1e-12)
    assert torch.allclose(row, attention[:, 0], atol=1e-12)


def test_the_table_has_no_effect_on_the_first_row():
    b, x = block(), tokens(4)
    before = b(x, _map_pairs(4))
    torch.nn.init.normal_(b.table, std=3)
    after = b(x, _map_pairs(4))
    assert torch.allclose(before[0], after[0], atol=1e-12)
    assert not torch.allclose(before[1:], after[1:], atol=1e-3)


def test_a_fresh_table_is_a_plain_block():
    made = _RelativeBlock(12, 3).double()
    assert torch.equal(made.table, torch.zeros(3, 8).double())
    torch.nn.init.normal_(made.qkv.weight)
    plain = torch.nn.TransformerEncoderLayer(
        12, 3, 48, dropout=0.0, activation="gelu", norm_first=True, batch_first=True, dtype=torch.float64
    )
    names = {
        "norm1": "norm1", "norm2": "norm2", "out": "self_attn.out_proj", "mlp.0": "linear1", "mlp.3": "linear2"
    }  # fmt: skip
    state = {f"{names[n]}.{kind}": p for key, p in made.state_dict().items()
             for n, _, kind in [key.rpartition(".")] if n in names}  # fmt: skip
    state |= {"self_attn.in_proj_weight": made.qkv.weight, "self_attn.in_proj_bias": torch.zeros(36)}
    plain.load_state_dict(state)
    x = tokens(4)
    assert torch.allclose(made(x, _map_pairs(4)), plain(x[None])[0], atol=1e-12)


def test_the_first_buckets_are_idle():
    b, x = block(), tokens(4)
    (slope,) = torch.autograd.grad(b(x, _map_pairs(4)).sin().sum(), b.table)
    assert (slope[:, :3] == 0).all()
    assert (slope[:, 3:].abs() > 1e-6).all()


def test_dropout_of_a_block_acts_in_training_only():
    b, x = block(dropout=0.5), tokens(4)
    assert torch.equal(b.eval()(x, _map_pairs(4)), b(x, _map_pairs(4)))
    assert not torch.allclose(b.train()(x, _map_pairs(4)), b.eval()(x, _map_pairs(4)))
    last = block(_ClassTokenBlock, dropout=0.5)
    assert torch.equal(last.train()(x)[1], last.eval()(x)[1])


@pytest.mark.parametrize("kind", [_RelativeBlock, _ClassTokenBlock])
def test_dropout_of_a_block_meets_attention_output_and_mlp(kind):
    b, x, mixed, middle = block(kind, dropout=0.25).train(), tokens(4), [], []
    given = (x, _map_pairs(4)) if kind is _RelativeBlock else (x,)
    b.out.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0][0]))
    b.norm2.register_forward_pre_hook(lambda _, inputs: middle.append(inputs[0][0] - x[0]))
    with torch.no_grad():
        b.out.weight.zero_()
        b.out.bias.fill_(3)
        torch.manual_seed(0)
        for _ in range(300):
            b(*given)
        b.eval()(*given)
    *draws, still = mixed
    assert torch.stack(draws).std(0).min() > 0.01
    assert torch.allclose(torch.stack(draws).mean(0), still, atol=0.15)
    steps = torch.stack(middle[:-1])
    assert torch.allclose(steps, torch.where(steps.abs() < 1e-9, 0, 4.0).double(), atol=1e-9)
    assert (steps.abs() < 1e-9).double().mean().item() == pytest.approx(0.25, abs=0.04)
    assert [layer.p for layer in b.mlp if isinstance(layer, torch.nn.Dropout)] == [0.25, 0.25]


def test_heads_must_share_the_width():
    with pytest.raises(ConfigError, match="heads=5 must divide"):
        _RelativeBlock(12, 5)


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


def test_blank_windows_are_counted_once():
    index = torch.tensor([[EMPTY, EMPTY], [4, EMPTY], [EMPTY, EMPTY], [EMPTY, 2]])
    distinct, place, counts = _distinct_windows(index)
    assert distinct.tolist() == [[4, EMPTY], [EMPTY, 2], [EMPTY, EMPTY]]
    assert place.tolist() == [2, 0, 2, 1]
    assert counts.tolist() == [1, 1, 2]
    distinct, place, counts = _distinct_windows(index[[1, 3]])
    assert (distinct.tolist(), place.tolist(), counts.tolist()) == ([[4, EMPTY], [EMPTY, 2]], [0, 1], [1, 1])


def window_layer(dropout=0.0, kernel=5):
    torch.manual_seed(0)
    net = _WindowTransformer(3, 6, kernel, dropout=dropout).double()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return net


def literal_tokens(net, shown, kernel, stride):
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
    monkeypatch.setattr(set_mil, "_WINDOW_ENTRIES", entries)
    net, (cells, count) = window_layer(), holey_cells(side, share=0.6)
    rows = torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    framed = torch.cat([rows, rows.new_zeros(1, 3)])
    ours = net(framed, window_index(cells, 5, 2))
    truth = literal_tokens(net, dense(cells, framed), 5, 2)
    assert torch.allclose(ours, truth, atol=1e-12)
    wanted = [*net.parameters()] if count == 0 else [rows, *net.parameters()]
    found, expected = (torch.autograd.grad(t.sin().sum(), wanted) for t in (ours, truth))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-10)
    with torch.no_grad():
        assert torch.allclose(net(framed, window_index(cells, 5, 2)), truth, atol=1e-12)


def test_dropout_of_windows_acts_in_training_only():
    net = window_layer(dropout=0.3, kernel=3)
    rows = torch.cat([torch.randn(16, 3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)])
    index = window_index(FULL_MAP, 3)
    truth = literal_tokens(net, dense(FULL_MAP, rows), 3, 1)
    assert torch.allclose(net.eval()(rows, index), truth, atol=1e-12)
    torch.manual_seed(0)
    draws = torch.stack([net.train()(rows, index) for _ in range(3)])
    assert not torch.allclose(draws[0], draws[1])
    assert not torch.allclose(draws[0], truth)


def test_dropout_of_windows_meets_attention_output_and_mlp():
    net, mixed, middle = window_layer(dropout=0.25, kernel=3).train(), [], []
    rows = torch.cat([torch.randn(16, 3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)])
    v = (layer_norm(net.norm1, torch.nn.functional.unfold(dense(FULL_MAP, rows)[None], 3, padding=1)[0].T)
         @ net.qkv.weight.T)[:, 12:]  # fmt: skip
    net.out.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0]))
    net.norm2.register_forward_pre_hook(lambda _, inputs: middle.append(inputs[0] - v))
    with torch.no_grad():
        net.out.weight.zero_()
        net.out.bias.fill_(3)
        torch.manual_seed(0)
        for _ in range(100):
            net(rows, window_index(FULL_MAP, 3))
    assert torch.stack(mixed).std(0).min() > 0.01
    steps = torch.stack(middle)
    assert torch.allclose(steps, torch.where(steps.abs() < 1e-9, 0, 4.0).double(), atol=1e-9)
    assert (steps.abs() < 1e-9).double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert [layer.p for layer in net.mlp if isinstance(layer, torch.nn.Dropout)] == [0.25, 0.25]


def test_no_tensor_of_all_pairs_exists_with_blank_windows():
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
    distinct = len(_distinct_windows(index)[0])
    assert 1500 < distinct < len(index)
    with Watch() as watch:
        _WindowTransformer(1, 2, 5)(rows, index).sum().backward()
    assert watch.most < distinct**2 / 2


def test_even_channels_are_sines_and_odd_ones_the_cosines():
    table = _sinusoids(5, 6)
    for p in range(5):
        for pair, speed in enumerate((1, 10000 ** (-1 / 3), 10000 ** (-2 / 3))):
            assert math.isclose(table[p, 2 * pair], math.sin(p * speed), abs_tol=1e-14)
            assert math.isclose(table[p, 2 * pair + 1], math.cos(p * speed), abs_tol=1e-14)


def test_positions_do_not_depend_on_how_many_follow():
    assert torch.equal(_sinusoids(10, 8)[:4], _sinusoids(4, 8))
