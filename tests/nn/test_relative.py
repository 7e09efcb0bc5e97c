"""Relative positions against a full table of buckets for all pairs."""

import itertools
import math

import pytest
import torch

from smmil.errors import ConfigError
from smmil.nn.relative import RelativeBlock, distance_bucket, map_pairs, near_offsets, relative_bias


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
    assert distance_bucket(torch.tensor([0, 1, 1.42, 2, 2.83, 3, 3.47, 3.6, 4, 15, 100])).tolist() == [
        *(0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
    ]
    far = [math.hypot(r, c) for r in range(30) for c in range(30)]
    assert distance_bucket(torch.tensor(far)).tolist() == [literal_bucket(d) for d in far]


def test_thirty_seven_tokens_are_near():
    offsets, bucket = near_offsets()
    assert bucket.bincount().tolist() == [1, 8, 28]
    assert len(offsets) == 37


@pytest.mark.parametrize("side", [1, 2, 3, 5, 9])
def test_the_pairs_stand_for_the_whole_matrix_of_biases(side):
    """Up to a number per row, which a softmax does not notice."""
    table = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(side))
    pairs, t = map_pairs(side), side * side + 1
    ours = torch.zeros(2, t, t, dtype=torch.float64)
    for i in range(t):
        for p in range(pairs.starts[i], pairs.starts[i + 1]):
            assert pairs.row[p] == i
            ours[:, i, pairs.column[p]] += relative_bias(table)[:, pairs.kind[p]]
    assert pairs.starts[-1] == len(pairs.row)
    gap = table[:, literal_buckets(side)] - ours
    assert torch.allclose(gap, gap[..., :1].expand_as(gap), atol=1e-14)


def block(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    made = RelativeBlock(12, 3, dropout=dropout).double()
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
    ours, (truth, _) = b(x, map_pairs(side)), literal_block(b, x, side)
    assert torch.allclose(ours, truth, atol=1e-12)
    wanted = [x, *b.parameters()]
    found, expected = (torch.autograd.grad(t.sin().sum(), wanted) for t in (ours, truth))
    for a, c in zip(found, expected, strict=True):
        assert torch.allclose(a, c, atol=1e-10)


@pytest.mark.parametrize("side", [1, 3, 6])
def test_the_first_row_is_that_of_the_block(side):
    b, x = block(), tokens(side)
    (z, row), (truth, attention) = b.first_row(x), literal_block(b, x, side)
    assert torch.allclose(z, truth[:1], atol=1e-12)
    assert torch.allclose(row, attention[:, 0], atol=1e-12)


def test_the_table_has_no_say_in_the_first_row():
    b, x = block(), tokens(4)
    before = b(x, map_pairs(4))
    torch.nn.init.normal_(b.table, std=3)
    after = b(x, map_pairs(4))
    assert torch.allclose(before[0], after[0], atol=1e-12)
    assert not torch.allclose(before[1:], after[1:], atol=1e-3)


def test_a_fresh_table_is_a_plain_block():
    made = RelativeBlock(12, 3).double()
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
    assert torch.allclose(made(x, map_pairs(4)), plain(x[None])[0], atol=1e-12)


def test_the_first_buckets_are_idle():
    b, x = block(), tokens(4)
    (slope,) = torch.autograd.grad(b(x, map_pairs(4)).sin().sum(), b.table)
    assert (slope[:, :3] == 0).all()
    assert (slope[:, 3:].abs() > 1e-6).all()


def test_dropout_acts_in_training_only():
    b, x = block(dropout=0.5), tokens(4)
    assert torch.equal(b.eval()(x, map_pairs(4)), b(x, map_pairs(4)))
    assert not torch.allclose(b.train()(x, map_pairs(4)), b.eval()(x, map_pairs(4)))
    torch.manual_seed(0)
    assert torch.equal(b.train().first_row(x)[1], b.eval().first_row(x)[1])


@pytest.mark.parametrize("run", [lambda b, x: b(x, map_pairs(4)), lambda b, x: b.first_row(x)])
def test_dropout_meets_attention_output_and_mlp(run):
    b, x, mixed, middle = block(dropout=0.25).train(), tokens(4), [], []
    b.out.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0][0]))
    b.norm2.register_forward_pre_hook(lambda _, inputs: middle.append(inputs[0][0] - x[0]))
    with torch.no_grad():
        b.out.weight.zero_()
        b.out.bias.fill_(3)
        torch.manual_seed(0)
        for _ in range(300):
            run(b, x)
        run(b.eval(), x)
    *draws, still = mixed
    assert torch.stack(draws).std(0).min() > 0.01
    assert torch.allclose(torch.stack(draws).mean(0), still, atol=0.15)
    steps = torch.stack(middle[:-1])
    assert torch.allclose(steps, torch.where(steps.abs() < 1e-9, 0, 4.0).double(), atol=1e-9)
    assert (steps.abs() < 1e-9).double().mean().item() == pytest.approx(0.25, abs=0.04)
    assert [layer.p for layer in b.mlp if isinstance(layer, torch.nn.Dropout)] == [0.25, 0.25]


def test_heads_must_share_the_width():
    with pytest.raises(ConfigError, match="heads=5 must divide"):
        RelativeBlock(12, 5)
