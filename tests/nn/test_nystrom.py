"""Laws of Nyström attention, against a dense matrix over a sequence that really is padded with zeros."""

import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smmil.errors import ConfigError
from smmil.nn.nystrom import (
    NystromAttention,
    NystromClassAttention,
    _nystrom_attention,
    _nystrom_row,
    _pseudo_inverse,
    _Segments,
)

HEADS, WIDTH = 3, 5
CASES = [(n, m) for m in (1, 4, 6, 16) for n in (1, 2, 3, 4, 5, 7, 12, 13, 16, 17, 40)]


def qkv(n, seed=0, gain=1.0, heads=HEADS, width=WIDTH):
    g = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, heads, n, width, generator=g, dtype=torch.float64)
    return gain * q, gain * k, v


def literal_inverses(mats, iterations):
    """The iteration on every head, started with the largest row and column sum of all heads."""
    rows = max(abs(row).sum() for x in mats for row in x)
    columns = max(abs(column).sum() for x in mats for column in x.T)
    found = []
    for x in mats:
        z, one = x.T / (rows * columns), torch.eye(len(x), dtype=x.dtype)
        for _ in range(iterations):
            inner = 15 * one - x @ z @ (7 * one - x @ z)
            z = z @ (13 * one - x @ z @ inner) / 4
        found.append(z)
    return found


def literal_matrix(q, k, m, iterations=6):
    """Â (heads, n, n) without the zero rows, which stand in front of the sequence until the end."""
    heads, n, width = q.shape
    zeros = torch.zeros(heads, (m - n % m) % m, width, dtype=q.dtype)
    q, k = torch.cat([zeros, q], 1) / math.sqrt(width), torch.cat([zeros, k], 1)
    size = q.shape[1] // m
    parts = []
    for h in range(heads):
        marks_q = torch.stack([q[h, i * size : (i + 1) * size].mean(0) for i in range(m)])
        marks_k = torch.stack([k[h, i * size : (i + 1) * size].mean(0) for i in range(m)])
        parts.append([(a @ b.T).softmax(1) for a, b in ((q[h], marks_k), (marks_q, marks_k), (marks_q, k[h]))])
    inverses = literal_inverses([s2 for _, s2, _ in parts], iterations)
    full = torch.stack([s1 @ z @ s3 for (s1, _, s3), z in zip(parts, inverses, strict=True)])
    return full[:, -n:, -n:]


@pytest.mark.parametrize(("n", "m"), CASES)
@pytest.mark.parametrize("iterations", [1, 6])
def test_attention_is_the_dense_product_over_the_padded_sequence(n, m, iterations):
    q, k, v = qkv(n)
    ours = _nystrom_attention(q, k, v, landmarks=m, iterations=iterations)
    assert torch.allclose(ours, literal_matrix(q, k, m, iterations) @ v, atol=1e-12)


@pytest.mark.parametrize(("n", "m"), CASES)
def test_the_row_is_the_first_row_of_the_dense_matrix(n, m):
    q, k, _ = qkv(n, seed=1, gain=2)
    assert torch.allclose(_nystrom_row(q, k, landmarks=m), literal_matrix(q, k, m)[:, 0], atol=1e-12)


@pytest.mark.parametrize(("n", "m"), [(7, 16), (13, 4), (16, 4), (17, 16)])
@pytest.mark.parametrize("entries", [1, 2**24])
def test_gradients_are_those_of_the_dense_product(n, m, entries, monkeypatch):
    monkeypatch.setattr("smmil.nn.nystrom._ENTRIES", entries)
    inputs = [t.requires_grad_() for t in qkv(n)]
    q, k, v = inputs
    dense = literal_matrix(q, k, m)
    ours = _nystrom_attention(q, k, v, landmarks=m).sin().sum() + _nystrom_row(q, k, landmarks=m).cos().sum()
    true = (dense @ v).sin().sum() + dense[:, 0].cos().sum()
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(true, inputs), strict=True):
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize(("n", "m"), [(64, 64), (37, 256)])
@pytest.mark.parametrize(("iterations", "error", "sums"), [(6, 2e-2, 5e-2), (20, 1e-8, 1e-8)])
def test_with_a_landmark_for_every_token_it_is_softmax_attention(n, m, iterations, error, sums):
    """Over the padded sequence: nearly so with the usual six iterations, exactly in the limit."""
    q, k, _ = qkv(n, width=64)
    blank = torch.zeros(HEADS, n, m - n, dtype=q.dtype)
    exact = torch.cat([blank, q @ k.mT / 8], -1).softmax(-1)[..., m - n :]
    near = _nystrom_attention(q, k, torch.eye(n, dtype=q.dtype).expand(HEADS, n, n), landmarks=m, iterations=iterations)
    assert (near - exact).abs().max() < error
    assert (near - exact).sum(-1).abs().max() < sums


def test_zero_rows_take_their_share_of_a_short_sequence():
    """37 tokens among 256 places keep about 37/256 of the attention when all logits are alike."""
    q, k, _ = qkv(37, gain=1e-3)
    assert torch.allclose(_nystrom_row(q, k).sum(1), torch.full((HEADS,), 37 / 256, dtype=q.dtype), atol=1e-3)


def test_segments_of_a_sequence_that_does_not_fit():
    """257 rows, 256 landmarks of two: 255 zero rows in front, 127 landmarks of zeros, one half full."""
    segments = _Segments.of(257, 256)
    assert segments == (2, 255, 127)
    means = segments.means(torch.arange(1.0, 258)[None, :, None])
    assert means[0, :4, 0].tolist() == [0, 0.5, 2.5, 4.5]
    assert segments.counts(means).tolist() == [127] + [1] * 129
    assert _Segments.of(512, 256) == (2, 0, 0)


def stochastic(heads, m, seed=0, gain=1.0):
    g = torch.Generator().manual_seed(seed)
    return (gain * torch.randn(heads, m, m, generator=g, dtype=torch.float64)).softmax(-1)


def test_the_inverse_is_the_inverse():
    x = stochastic(4, 12, gain=3)
    z = _pseudo_inverse(x, 40)
    assert torch.allclose(z, torch.linalg.inv(x), atol=1e-8)
    low_rank = x[:, :, :5] @ x[:, :5]
    assert torch.allclose(_pseudo_inverse(low_rank, 16), torch.linalg.pinv(low_rank, rtol=1e-10), atol=1e-6)


def test_the_start_is_scaled_by_the_maxima_over_all_heads():
    x = stochastic(3, 6)
    for ours, true in zip(_pseudo_inverse(x, 2), literal_inverses(list(x), 2), strict=True):
        assert torch.allclose(ours, true, atol=1e-12)
    assert not torch.allclose(_pseudo_inverse(x, 2)[1], _pseudo_inverse(x[1:2], 2)[0], atol=1e-4)


@pytest.mark.parametrize("counts", [(1, 1, 1, 1), (5, 1, 1, 1), (2, 3, 1, 4)])
@pytest.mark.parametrize("iterations", [0, 1, 6])
def test_repeated_rows_and_columns_can_be_counted_instead(counts, iterations):
    """S with repeated rows and columns, and its quotient with their counts, have the same iterates."""
    which = torch.arange(4).repeat_interleave(torch.tensor(counts))
    logits = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole = logits[:, which][:, :, which].softmax(-1)
    members = torch.nn.functional.one_hot(which).double()
    first = [list(which).index(i) for i in range(4)]
    quotient = (whole @ members)[:, first]
    expected = (torch.stack(literal_inverses(list(whole), iterations)) @ members)[:, first]
    ours = _pseudo_inverse(quotient, iterations, torch.tensor(counts))
    assert torch.allclose(ours, expected, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_before_the_inverse(dtype):
    q, k, v = (t.to(dtype) for t in qkv(40))
    ours = _nystrom_attention(q, k, v, landmarks=8)
    assert ours.dtype == _pseudo_inverse(stochastic(1, 4).to(dtype)).dtype == torch.float32
    assert torch.equal(ours, _nystrom_attention(q.float(), k.float(), v.float(), landmarks=8))


def test_autocast_does_not_reach_the_inverse():
    q, k, v = (t.float() for t in qkv(40))
    plain = _nystrom_attention(q, k, v, landmarks=8), _nystrom_row(q, k, landmarks=8), _pseudo_inverse(q[:, :5, :5])
    with torch.autocast("cpu", torch.bfloat16):
        mixed = _nystrom_attention(q, k, v, landmarks=8), _nystrom_row(q, k, landmarks=8), _pseudo_inverse(q[:, :5, :5])
    assert all(torch.equal(a, b) for a, b in zip(plain, mixed, strict=True))


OFFSETS = torch.tensor([0, 1, 8, 48])


def make(kind=NystromAttention, **options):
    torch.manual_seed(0)
    return kind(12, heads=HEADS, head_dim=WIDTH, landmarks=4, **options).double()


def rows(seed=0):
    return torch.randn(48, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal_module(module, x, kernel):
    """One bag: dense attention, and the convolution of the values tap by tap."""
    n, inner = len(x), HEADS * WIDTH
    q, k, v = (
        (x @ module.qkv.weight[i * inner : (i + 1) * inner].T).reshape(n, HEADS, WIDTH).transpose(0, 1)
        for i in range(3)
    )
    mixed = literal_matrix(q, k, 4) @ v
    for h, i, tap in itertools.product(range(HEADS), range(n), range(kernel or 0)):
        source = i + tap - kernel // 2
        if 0 <= source < n:
            mixed[h, i] += module.local.weight[h, 0, tap, 0] * v[h, source]
    return mixed.transpose(0, 1).reshape(n, inner) @ module.out.weight.T + module.out.bias


@pytest.mark.parametrize("kernel", [None, 1, 5, 33])
def test_the_module_is_its_definition_bag_by_bag(kernel):
    module, x = make(kernel=kernel), rows()
    with torch.no_grad():
        ours, (first, _) = module(x, OFFSETS), make(NystromClassAttention, kernel=kernel)(x, OFFSETS)
        true = [literal_module(module, x[a:b], kernel) for a, b in itertools.pairwise(OFFSETS)]
    assert torch.allclose(ours, torch.cat(true), atol=1e-11)
    assert torch.allclose(first, torch.stack([t[0] for t in true]), atol=1e-11)


def test_the_rows_given_with_the_first_row_are_those_it_used():
    module, x = make(NystromClassAttention, kernel=None), rows()
    first, used = module(x, OFFSETS)
    values = module.qkv(x)[:, -HEADS * WIDTH :].reshape(48, HEADS, WIDTH)
    for b, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        taken = torch.einsum("nh,nhd->hd", used[start:stop], values[start:stop]).flatten()
        assert torch.allclose(first[b], module.out(taken))


def test_a_loud_neighbour_in_the_batch_changes_nothing():
    """The scale of the pseudo-inverse is taken inside each bag, not over the batch."""
    module, x = make(), rows()
    loud = torch.cat([x[:8], 100 * x[8:]])
    assert torch.equal(module(x, OFFSETS)[:8], module(loud, OFFSETS)[:8])


def test_dropout_acts_in_training_only_and_follows_the_seed():
    module, x = make(dropout=0.5), rows()

    def run():
        torch.manual_seed(3)
        return module(x, OFFSETS)

    assert torch.equal(run(), run())
    assert (run() == 0).double().mean() == pytest.approx(0.5, abs=0.1)
    module.eval()
    assert not (run() == 0).any()


def test_no_matrix_of_all_heads_is_stored_in_either_direction(monkeypatch):
    monkeypatch.setattr("smmil.nn.nystrom._ENTRIES", 1)
    both = [kind(16, heads=4, head_dim=4, landmarks=64) for kind in (NystromAttention, NystromClassAttention)]
    n = 2048

    class Watch(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for t in result if isinstance(result, tuple | list) else (result,):
                self.most = max(self.most, t.numel() if isinstance(t, torch.Tensor) else 0)
            return result

    x, offsets = torch.randn(n, 16, requires_grad=True), torch.tensor([0, n])
    with Watch() as watch:
        (both[0](x, offsets).sum() + both[1](x, offsets)[1].square().sum()).backward()
    assert watch.most <= 64 * n


@pytest.mark.parametrize("options", [{"kernel": 4}, {"heads": 0}, {"landmarks": 0}])
def test_impossible_shapes_are_refused(options):
    with pytest.raises(ConfigError, match="Nyström attention"):
        NystromAttention(8, **options)
