import itertools

import numpy as np
import pytest
import torch
from support.bags import STEP, grid_coords, random_graph
from torch import nn

from smmil.graph import KINDS, grid_graph, join
from smmil.nn import AttentionPool, SmAttentionPool, kernels, sm
from smmil.nn.kernels import fused_pool
from smmil.nn.kernels.fused_pool import _Tape
from smmil.nn.pool import embed_and_pool

SIZES = (1, 7, 40)
OFFSETS = torch.tensor([0, 1, 8, 48])
DIM, ATT, WIDTH = 11, 6, 9


@pytest.fixture(autouse=True, params=["plain", "fused"])
def way(request):
    """Every law holds for plain torch and for the fused step."""
    with kernels.disabled() if request.param == "plain" else kernels.forced("fused_pool"):
        yield request.param


def batch_graph():
    return join([grid_graph(grid_coords(n), STEP) if n != 7 else random_graph(7, share=0.6) for n in SIZES])


def rows(width=WIDTH, seed=0):
    return torch.randn(48, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(where, seed=3, **options):
    torch.manual_seed(seed)
    if where is None:
        return AttentionPool(DIM, ATT, **options).double()
    return SmAttentionPool(DIM, ATT, where=where, **options).double()


def literal(pool, h, where, graph):
    """The definition, bag by bag, with dense matrices: smooth h itself, pool Sm(h)."""
    kind = "sym" if where is None else pool.sm.normalization
    p = graph.normalized(kind).dense()

    def smooth(u):
        g = u
        for _ in range(pool.sm.steps):
            g = pool.sm.alpha * p @ g + (1 - pool.sm.alpha) * u
        return g

    w, b = pool.project.weight, pool.project.bias
    h = smooth(h) if where == "early" else h
    pre = h @ w.T + b
    gate = None if pool.gate is None else h @ pool.gate.weight.T + pool.gate.bias
    if where == "mid":
        pre, gate = smooth(pre), None if gate is None else smooth(gate)
    hidden = pre.tanh() if gate is None else pre.tanh() * gate.sigmoid()
    f = hidden @ pool.score.weight.T
    f = smooth(f) if where == "late" else f
    z = [f[a:b].softmax(0).T @ h[a:b] for a, b in itertools.pairwise(OFFSETS)]
    return torch.cat(z), f


def gradients(outputs, inputs):
    z, f = outputs
    target = (z * torch.arange(1.0, DIM + 1)).sin().sum() + (f * rows(1, seed=8)).sum()
    return torch.autograd.grad(target, inputs)


@pytest.mark.parametrize("where", [None, "early", "mid", "late"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("embedded", [False, True])
def test_the_pool_is_its_definition_gradients_included(where, gated, kind, embedded, monkeypatch):
    monkeypatch.setattr("smmil.nn.kernels.fused_pool.ROWS", 10)  # several turns, not aligned with the bags
    options = {"gated": gated} if where is None else {"gated": gated, "spectral_norm": False, "normalization": kind}
    pool, graph = make(where, **options), batch_graph()
    args = (OFFSETS,) if where is None else (OFFSETS, graph)
    torch.manual_seed(5)
    embed = nn.Linear(WIDTH, DIM).double()
    x = (rows() if embedded else rows(DIM)).requires_grad_()
    h = embed(x).relu() if embedded else x
    ours = embed_and_pool(embed, pool, x, *args) if embedded else pool(x, *args)
    truth = literal(pool, h, where, graph)
    wanted = [x, *pool.parameters(), *(embed.parameters() if embedded else [])]
    for mine, true in zip((*ours, *gradients(ours, wanted)), (*truth, *gradients(truth, wanted)), strict=True):
        assert torch.allclose(mine, true, atol=1e-10), (mine - true).abs().max()


def test_early_smooths_narrow_matrices_only(monkeypatch):
    """Sm(H)Wᵀ = Sm(HWᵀ) and Sm(H)ᵀs = HᵀSm(s): nothing as wide as the embedding is ever smoothed."""
    widths = []
    monkeypatch.setattr("smmil.nn.smooth.sm", lambda u, *a: widths.append(u.shape[1]) or sm(u, *a))
    make("early")(rows(DIM), OFFSETS, batch_graph())
    assert sorted(widths) == [1, ATT]


def test_spectral_norm_sits_on_the_layers_behind_sm():
    for where, normed in (("early", (1, 1)), ("mid", (0, 1)), ("late", (0, 0))):
        pool = make(where).eval()
        norms = [torch.linalg.matrix_norm(w, 2).item() for w in (pool.project.weight, pool.score.weight)]
        assert [abs(n - 1) < 1e-3 for n in norms] == [bool(k) for k in normed]


def test_spectral_norm_bounds_the_scores():
    pool = SmAttentionPool(DIM, 100).eval()
    _, f = pool(100 * rows(DIM).float(), OFFSETS, batch_graph())
    assert f.abs().max() <= 10 * (1 + 1e-5)


def test_the_power_iteration_rests_in_eval_mode():
    pool, graph = make("early").eval(), batch_graph()
    before = {k: v.clone() for k, v in pool.state_dict().items()}
    pool(rows(DIM), OFFSETS, graph)
    assert all(torch.equal(v, before[k]) for k, v in pool.state_dict().items())


def test_a_bag_twice_is_the_same_bag():
    pool, x = make(None), rows(DIM)[:7]
    z, _ = pool(x, torch.tensor([0, 7]))
    twice, _ = pool(torch.cat([x, x]), torch.tensor([0, 14]))
    assert torch.allclose(z, twice)


def test_a_single_instance_is_its_own_bag_vector():
    x = rows(DIM)[:1]
    assert torch.allclose(make(None)(x, torch.tensor([0, 1]))[0], x)


def test_half_precision_features_are_widened_inside():
    pool, embed = AttentionPool(DIM, ATT), nn.Linear(WIDTH, DIM)
    x = rows().half()
    z, f = embed_and_pool(embed, pool, x, OFFSETS)
    same = embed_and_pool(embed, pool, x.float(), OFFSETS)
    assert torch.equal(z, same[0])
    assert torch.equal(f, same[1])


def test_autocast_computes_in_bfloat16_and_stays_close():
    pool, embed, graph = make("early").float(), nn.Linear(WIDTH, DIM), batch_graph()
    pool.eval()
    x = rows().float()
    wanted = list(embed.parameters())
    plain = embed_and_pool(embed, pool, x, OFFSETS, graph)
    expected = torch.autograd.grad(plain[0].sum(), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = embed_and_pool(embed, pool, x, OFFSETS, graph)
    found = torch.autograd.grad(mixed[0].sum(), wanted)
    assert not torch.equal(mixed[0], plain[0])
    assert torch.allclose(mixed[0], plain[0], atol=0.03)
    assert all(torch.allclose(a, b, atol=0.1, rtol=0.05) for a, b in zip(found, expected, strict=True))


def test_nothing_is_taped_in_use():
    pool, embed = AttentionPool(DIM, ATT), nn.Linear(WIDTH, DIM)
    with torch.no_grad():
        z, f = embed_and_pool(embed, pool, rows().float(), OFFSETS)
    assert not z.requires_grad
    assert not f.requires_grad


def test_scores_can_be_penalised_alone():
    """A loss on the scores only must reach the embedding too."""
    pool, embed = AttentionPool(DIM, ATT).double(), nn.Linear(WIDTH, DIM).double()
    _, f = embed_and_pool(embed, pool, rows(), OFFSETS)
    (grad,) = torch.autograd.grad(f.square().sum(), embed.weight)
    h = embed(rows()).relu()
    (true,) = torch.autograd.grad((pool(h, OFFSETS)[1]).square().sum(), embed.weight)
    assert torch.allclose(grad, true)
    assert np.isfinite(grad.numpy()).all()


@pytest.mark.parametrize("where", ["early", "mid", "late"])
@pytest.mark.parametrize("steps", [0, 1, 3, "exact"])
@pytest.mark.parametrize("alpha", [0.6, "learned"])
def test_every_kind_of_smoothing_trains(where, steps, alpha):
    pool, graph = make(where, steps=steps, alpha=alpha), batch_graph()
    z, f = pool(rows(DIM).requires_grad_(), OFFSETS, graph)
    grads = torch.autograd.grad(z.sum() + f.sum(), list(pool.parameters()), allow_unused=steps == 0)
    assert all(g is None or g.isfinite().all() for g in grads)


@pytest.mark.parametrize("where", [None, "early", "mid", "late"])
@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
def test_two_backward_passes_give_twice_the_gradient(where, embedded, steps):
    pool = make(where).train() if where is None else make(where, spectral_norm=False, steps=steps, alpha=0.5)
    embed = nn.Linear(WIDTH, DIM).double()
    args = (OFFSETS,) if where is None else (OFFSETS, batch_graph())
    z, _ = embed_and_pool(embed, pool, rows(), *args) if embedded else pool(rows(DIM), *args)
    trained = [*pool.parameters(), *(embed.parameters() if embedded else [])]
    z.sin().sum().backward(retain_graph=True)
    once = [p.grad.clone() for p in trained]
    z.sin().sum().backward()
    assert all(torch.allclose(2 * a, p.grad) for a, p in zip(once, trained, strict=True))


@pytest.mark.parametrize("trained", ["project", "score", "sm"])
def test_any_part_can_be_trained_alone(trained):
    pool, embed = make("early", spectral_norm=False), nn.Linear(WIDTH, DIM).double()
    z, _ = embed_and_pool(embed, pool, rows(), OFFSETS, batch_graph())
    wanted = list(getattr(pool, trained).parameters())
    expected = torch.autograd.grad(z.sin().sum(), wanted)
    pool.requires_grad_(False)
    embed.requires_grad_(False)
    for p in wanted:
        p.requires_grad_(True)
    z, _ = embed_and_pool(embed, pool, rows(), OFFSETS, batch_graph())
    found = torch.autograd.grad(z.sin().sum(), wanted)
    assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_training_on_half_precision_gives_the_gradients_of_the_widened_features(compiled, monkeypatch):
    if compiled == "1":
        pytest.importorskip("numba", reason="the extra `fast`")
    monkeypatch.setenv("SMMIL_COMPILED", compiled)
    monkeypatch.setattr("smmil.nn.kernels.fused_pool.ROWS", 10)
    monkeypatch.setattr("smmil.nn.kernels.fused_pool.WIDENED", 15)
    pool, embed = AttentionPool(DIM, ATT), nn.Linear(WIDTH, DIM)
    grads = []
    for x in (rows().half(), rows().half().float()):
        x.requires_grad_()
        z, _ = embed_and_pool(embed, pool, x, OFFSETS)
        found = torch.autograd.grad(z.sin().sum(), [*embed.parameters(), *pool.parameters(), x])
        grads.append([g.float() for g in found])
    for narrow, wide in zip(*grads, strict=True):
        assert torch.allclose(narrow, wide, rtol=2e-3, atol=1e-5)
    for narrow, wide in zip(*(g[:-1] for g in grads), strict=True):
        assert torch.allclose(narrow, wide, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("where", [None, "early", "mid", "late"])
@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_taped_inside_either(where, embedded, mode, monkeypatch, way):
    taped = []
    record = _Tape.record
    monkeypatch.setattr(_Tape, "record", lambda self: record(self) or taped.append(self.scores.requires_grad))
    pool, embed = make(where), nn.Linear(WIDTH, DIM).double()
    args = (OFFSETS,) if where is None else (OFFSETS, batch_graph())
    with mode():
        z, _ = embed_and_pool(embed, pool, rows(), *args) if embedded else pool(rows(DIM), *args)
    assert taped == ([False] if way == "fused" else [])
    assert not z.requires_grad


@pytest.mark.parametrize("where", [None, "early", "mid", "late"])
@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("changed", ["score.weight", "project.bias"])
def test_weights_changed_before_a_second_backward_pass_are_noticed(where, embedded, changed, way):
    pool = make(where) if where is None else make(where, spectral_norm=False)
    embed = nn.Linear(WIDTH, DIM).double()
    args = (OFFSETS,) if where is None else (OFFSETS, batch_graph())
    z, _ = embed_and_pool(embed, pool, rows(), *args) if embedded else pool(rows(DIM), *args)
    z.sin().sum().backward(retain_graph=True)
    with torch.no_grad():
        pool.get_parameter(changed).add_(0.3)
    if way == "plain" and changed == "project.bias":  # torch does not read it again: the gradient stays right
        before = pool.score.weight.grad.clone()
        z.sin().sum().backward()
        assert torch.allclose(pool.score.weight.grad, 2 * before)
        return
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sin().sum().backward()


@pytest.mark.parametrize("where", [None, "early", "mid", "late"])
@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_second_derivatives_agree_with_finite_differences(where, embedded, gated):
    options = {"gated": gated} if where is None else {"gated": gated, "spectral_norm": False, "steps": 2}
    pool, embed = make(where, **options), nn.Linear(WIDTH, DIM).double()
    args = (OFFSETS,) if where is None else (OFFSETS, batch_graph())
    trained = [*pool.parameters(), *(embed.parameters() if embedded else [])]

    def slopes(create_graph):
        z, f = embed_and_pool(embed, pool, rows(), *args) if embedded else pool(rows(DIM), *args)
        return torch.autograd.grad(z.sin().sum() + f.square().sum(), trained, create_graph=create_graph)

    pulls = [torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).double() for i, p in enumerate(trained)]
    first = sum((g * pull).sum() for g, pull in zip(slopes(True), pulls, strict=True))
    second = torch.autograd.grad(first, trained)
    along = sum((g * pull).sum() for g, pull in zip(second, pulls, strict=True))
    steps = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, pull in zip(trained, pulls, strict=True):
                p.add_(sign * 1e-5 * pull)
        steps.append(sum((g * pull).sum() for g, pull in zip(slopes(False), pulls, strict=True)))
        with torch.no_grad():
            for p, pull in zip(trained, pulls, strict=True):
                p.sub_(sign * 1e-5 * pull)
    assert along.item() == pytest.approx(((steps[0] - steps[1]) / 2e-5).item(), rel=1e-5)


@pytest.mark.parametrize("embedded", [False, True])
def test_what_is_not_a_number_is_not_hidden(embedded):
    pool, embed = make(None), nn.Linear(WIDTH, DIM).double()
    x = rows() if embedded else rows(DIM)
    x[3, 2] = torch.nan
    z, f = embed_and_pool(embed, pool, x, OFFSETS) if embedded else pool(x, OFFSETS)
    assert f.isnan()[:, 0].nonzero().flatten().tolist() == [3]
    assert z.isnan().any(1).tolist() == [False, True, False]


def test_gradients_over_many_rows_keep_their_digits():
    """The gradient of the embedding's bias is a sum over all rows."""
    torch.manual_seed(0)
    n = 60_000
    pool, embed, x = AttentionPool(8, 4), nn.Linear(3, 8), torch.randn(n, 3)
    found = []
    for dtype in (torch.float32, torch.float64):
        pool, embed = pool.to(dtype), embed.to(dtype)
        _, f = embed_and_pool(embed, pool, x.to(dtype), torch.tensor([0, n]))
        found.append(torch.autograd.grad(f.sum(), embed.bias)[0].double())
    assert torch.allclose(*found, rtol=2e-5)


class Wrapped(nn.Module):
    """A layer inside another one, as LoRA does it: with neither weight nor bias of its own."""

    def __init__(self, layer):
        super().__init__()
        self.inner = layer

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("where", [None, "early", "mid", "late"])
def test_layers_may_be_wrapped(where):
    pool, embed = make(where, gated=True).eval(), nn.Linear(WIDTH, DIM).double()
    args = (OFFSETS,) if where is None else (OFFSETS, batch_graph())
    plain = embed_and_pool(embed, pool, rows(), *args)
    pool.project, pool.gate, pool.score = Wrapped(pool.project), Wrapped(pool.gate), Wrapped(pool.score)
    wrapped = embed_and_pool(Wrapped(embed), pool, rows(), *args)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(plain, wrapped, strict=True))


HOOKS = ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]


@pytest.mark.parametrize("part", ["embed", "pool", "project", "gate", "score", "sm"])
@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_of_every_part_fire(part, kind):
    pool, embed, graph, fired = make("early", gated=True), nn.Linear(WIDTH, DIM).double(), batch_graph(), []
    layer = {"embed": embed, "pool": pool}.get(part) or pool.get_submodule(part)
    getattr(layer, f"register_{kind}")(lambda *_: fired.append(part))
    z, _ = embed_and_pool(embed, pool, rows().requires_grad_(), OFFSETS, graph)
    z.sum().backward()
    assert fired


class Bent(nn.Linear):
    def forward(self, h):
        return super().forward(h).square()


def test_a_projection_that_is_not_linear_reads_smoothed_rows():
    """Only of a linear layer may the smoothing be exchanged with the projection."""
    graph, pool, h = batch_graph(), make("early", spectral_norm=False, alpha=0.6), rows(DIM)
    pool.project = Bent(DIM, ATT).double()
    _, scores = pool(h, OFFSETS, graph)
    truth = pool.score(pool.project(sm(h, graph.normalized(), 0.6)).tanh())
    assert torch.allclose(scores, truth, atol=1e-12)


def test_the_fused_step_takes_over_only_where_it_may():
    pool, embed, x = make("early"), nn.Linear(WIDTH, DIM).double(), rows()
    with kernels.forced("fused_pool"):
        assert fused_pool.is_applicable(pool, x, embed)
        assert not fused_pool.is_applicable(pool, x, Wrapped(embed))
        assert not fused_pool.is_applicable(pool, x.to("meta"), embed)
        assert not fused_pool.is_applicable(pool.half(), x, embed)
        assert not fused_pool.is_applicable(make(None), x, nn.Linear(WIDTH, DIM, bias=False).double())
        packed = nn.Linear(WIDTH, DIM).double()
        packed.weight = torch.Tensor._make_subclass(type("Packed", (nn.Parameter,), {}), packed.weight.detach())
        assert not fused_pool.is_applicable(make("early"), x, packed)
        pool = make("late")
        pool.forward = lambda *_: None
        assert not fused_pool.is_applicable(pool, x, embed)
        with torch.nn.modules.module.register_module_forward_hook(lambda *_: None):
            assert not fused_pool.is_applicable(make("late"), x, embed)
        for part in ("", "project", "gate", "score", "sm"):
            pool = make("early", gated=True)
            assert fused_pool.is_applicable(pool, x, embed)
            pool.get_submodule(part).register_forward_hook(lambda *_: None)
            assert not fused_pool.is_applicable(pool, x, embed), part
        called, pool = [], make("late")
        torch.func.grad(lambda t: called.append(fused_pool.is_applicable(pool, t, embed)) or t.sum())(x)
        assert called == [False]
    with kernels.disabled():
        assert not fused_pool.is_applicable(make("early"), x, embed)


def test_small_bags_stay_with_plain_torch(monkeypatch):
    monkeypatch.setattr(fused_pool.kernels, "mode", lambda name: "auto")
    pool, embed = make(None), nn.Linear(WIDTH, DIM).double()
    assert not fused_pool.is_applicable(pool, rows()[: fused_pool.MANY - 1], embed)
    assert fused_pool.is_applicable(pool, rows()[: fused_pool.MANY], embed)
