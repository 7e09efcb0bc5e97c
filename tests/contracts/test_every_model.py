"""The exam every model sits: `list_models()` decides who comes."""

import copy
import re
import warnings
from dataclasses import replace

import pytest
import torch
from support.bags import chain_bag, grid_bag, reordered, without_edges
from support.quick import slow_unless

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.losses import total_loss
from smmil.models import create_model, list_models, model_options
from smmil.nn import kernels
from smmil.nn.kernels import sm_numba

DIM = 16
SIZES = (1, 2, 3, 7, 57, 300)
# Sm on top of other models sits the exam as well: a name with "+sm" or "+sm@place".
SMOOTHED = [f"{m}+sm" for m in list_models() if "sm" in model_options(m)] + ["clam+sm@late", "dtfd_mil+sm@bag"]
CANDIDATES = [*list_models(), *SMOOTHED]
# Of those with Sm on top, a few sit it in `make test`, all of them in `make test-all`.
QUICK_SMOOTHED = ("clam+sm", "dtfd_mil+sm@bag", "patch_gcn+sm")


def sitting(names):
    return slow_unless(lambda name: "+" not in name or name in QUICK_SMOOTHED, names)


every_model = pytest.mark.parametrize("name", sitting(CANDIDATES))
pytestmark = pytest.mark.filterwarnings("error")


def build(name, n_classes=1, seed=0, **options):
    torch.manual_seed(seed)
    name, smoothed, place = re.fullmatch(r"(\w+)(\+sm)?(?:@(\w+))?", name).groups()
    sm = {"sm": {"where": place or "early"}} if smoothed else {}
    options = SMALLER.get(name, {}) | options
    return create_model(name, DIM, n_classes, **sm, **options)


# Large models, made smaller for small bags: a board of 48 × 48 cells would be mostly empty.
# SMMILe is in its second stage at once.
SMALLER = {"set_mil": {"size": 8, "depth": 2}, "iib_mil": {"dim": 32, "hidden": 64}, "smmile": {"warmup": 0}}


def plain(name):
    return name.split("+")[0]


def pack(*bags):
    return BagBatch.pack(bags)


def loss_of(model, batch):
    return loss_of_output(model(batch), batch)


def loss_of_output(out, batch):
    target = batch.y.float()[:, None] if out.logits.shape[1] == 1 else batch.y
    criterion = torch.nn.functional
    bag = (
        criterion.binary_cross_entropy_with_logits(out.logits, target)
        if out.logits.shape[1] == 1
        else criterion.cross_entropy(out.logits, target)
    )
    return bag + sum(out.losses.values())


@every_model
@pytest.mark.parametrize(
    ("make", "n_classes"), [(grid_bag, 1), (chain_bag, 3), (lambda n, **k: without_edges(grid_bag(n, **k)), 3)]
)
def test_one_logit_row_per_bag_and_one_finite_score_per_instance(name, make, n_classes):
    bags = [make(n, seed=n, y=n % 2) for n in SIZES]
    model = build(name, n_classes)
    for mode in (True, False):
        out = model.train(mode)(pack(*bags))
        assert out.logits.shape == (len(SIZES), n_classes)
        assert out.scores.shape[0] == sum(SIZES)
        assert out.scores.shape[1] in (1, n_classes)
        assert out.logits.isfinite().all()
        assert out.scores.isfinite().all()


@every_model
def test_packed_equals_one_by_one(name):
    bags = [grid_bag(n, seed=n) for n in SIZES]
    model = build(name).eval()
    packed, single = model(pack(*bags)), [model(pack(b)) for b in bags]
    assert torch.allclose(packed.logits, torch.cat([o.logits for o in single]), atol=1e-6)
    assert torch.allclose(packed.scores, torch.cat([o.scores for o in single]), atol=1e-6)


ORDERED = {
    "dtfd_mil": "the cut into pseudo-bags follows the rows, so logits (not scores) depend on their order",
    "trans_mil": "landmarks are means of consecutive tokens, and PPEG folds the sequence into a square",
    "camil": "landmarks are means of consecutive rows, and the values are convolved along the sequence",
}


@pytest.mark.parametrize("name", sitting([m for m in CANDIDATES if plain(m) not in ORDERED]))
@pytest.mark.parametrize("n", [3, 57, 300])
def test_the_order_of_instances_does_not_matter(name, n):
    bag, order = grid_bag(n, dtype=torch.float64), torch.randperm(n, generator=torch.Generator().manual_seed(1))
    model = build(name).double().eval()
    a, b = model(pack(bag)), model(pack(reordered(bag, order)))
    assert torch.allclose(a.logits, b.logits, rtol=1e-9, atol=1e-12)
    assert torch.allclose(a.scores[order], b.scores, rtol=1e-9, atol=1e-12)


@every_model
def test_labels_do_not_leak_into_predictions(name):
    batch = pack(grid_bag(40), grid_bag(7, seed=1))
    other = replace(batch, y=1 - batch.y, y_inst=1 - batch.y_inst)
    model = build(name).eval()
    outputs = [model(b) for b in (batch, other, batch.without_labels())]
    for out in outputs[1:]:
        assert torch.equal(out.logits, outputs[0].logits)
        assert torch.equal(out.scores, outputs[0].scores)


@every_model
def test_extra_losses_come_in_training_only(name):
    batch = pack(grid_bag(40), grid_bag(7, seed=1, y=0))
    model = build(name)
    assert all(v.ndim == 0 and v.isfinite() for v in model.train()(batch).losses.values())
    assert model.eval()(batch).losses == {}


# What is added to all logits of a softmax alike has no effect, and no gradient: the bias of a score, and in set_mil's
# last block the relative position between the class token and the others.
CANCELLED = ("score.bias", "blocks.1.table")


@every_model
@pytest.mark.parametrize("n_classes", [1, 3])
def test_every_parameter_gets_a_gradient(name, n_classes):
    batch = pack(*[grid_bag(57 - y, seed=y, y=y) for y in range(max(2, n_classes))])
    model = build(name, n_classes)
    loss_of(model.train(), batch).backward()
    silent = [k for k, p in model.named_parameters() if p.grad is None or not (p.grad.abs().max() > 0)]
    assert [k for k in silent if not k.endswith(CANCELLED)] == []


@every_model
def test_tiny_and_edgeless_bags_train(name):
    for bag in [make(n, seed=n) for make in (grid_bag, chain_bag) for n in (1, 2, 3)] + [without_edges(grid_bag(7))]:
        model = build(name).train()
        loss_of(model, pack(bag)).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()), bag.id


PLACED = {
    "trans_mil": "PPEG and the convolution over the sequence see where an instance stands",
    "camil": "the convolution of the values sees where an instance stands",
    "set_mil": "the twins stand on different tokens of the board",
}


@pytest.mark.parametrize("name", sitting([m for m in CANDIDATES if plain(m) not in PLACED]))
def test_identical_instances_get_finite_equal_scores(name):
    bag = chain_bag(2)
    twins = Bag("twins", bag.x[:1].repeat(2, 1), bag.coords, bag.frame, bag.graph, 1)
    scores = build(name).eval()(pack(twins)).scores
    assert torch.allclose(scores[0], scores[1], atol=1e-6)


@every_model
def test_the_state_survives_a_round_trip(name):
    model, other = build(name), build(name, seed=1)
    model.train()(pack(grid_bag(40)))
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    batch = pack(grid_bag(57))
    assert torch.equal(model.eval()(batch).logits, other.eval()(batch).logits)


@every_model
def test_eval_mode_changes_nothing_and_repeats_itself(name):
    model, batch = build(name).eval(), pack(grid_bag(57))
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        first, second = model(batch), model(batch)
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.scores, second.scores)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@every_model
def test_half_precision_features_are_taken_as_they_are(name):
    bag = grid_bag(40)
    half = replace(bag, x=bag.x.half())
    wide = replace(bag, x=bag.x.half().float())
    model = build(name).eval()
    assert torch.allclose(model(pack(half)).logits, model(pack(wide)).logits, atol=1e-6)


@every_model
def test_float64_runs_throughout(name):
    bag = grid_bag(40, dtype=torch.float64)
    out = build(name).double().eval()(pack(bag))
    assert out.logits.dtype == out.scores.dtype == torch.float64


def planted_bags(seed=0):
    """Eight bags of the same six kinds of tissue; the positive ones hold one instance of a seventh kind."""
    g = torch.Generator().manual_seed(seed)
    kinds, lesion = torch.randn(6, DIM, generator=g), torch.randn(DIM, generator=g) * 4
    bags = []
    for i in range(8):
        bag = grid_bag(20 + i // 2, seed=i, y=i % 2)
        x, labels = kinds[torch.arange(bag.n) % 6], torch.zeros(bag.n, dtype=torch.long)
        if bag.y:
            spot = int(torch.randint(bag.n, (), generator=g))
            x[spot], labels[spot] = lesion, 1
        bags.append(replace(bag, x=x, y_inst=labels))
    return bags


# Max pooling, and DSMIL through its critical instance, teach only the instance that is on top already: a lesion below
# it at the start may never be seen. These starts were chosen because they learn the task; others do not. CAMIL
# classifies from any start, but its attention points at the lesion from most starts only. SMMILe's instance dropout
# always hides the top instance and calls what is left positive: with a single lesion wrongly; its loss stays at 0.6.
PLANTED_START = {
    "max_pool": {"seed": 4},
    "dsmil": {"seed": 14},
    "camil": {"seed": 1},
    "trans_mil": {"lr": 3e-4},
    "smmile": {"options": {"drops": 0}},
}

TOGETHER = {
    "gtp": "batch norm needs several bags: with one at a time its running statistics fit none of them",
    "smmile": "as gtp",
}
FEWER = {
    "gtp": 120,
    "smmile": 120,
    "set_mil": 240,
    "iib_mil": 240,
    "trans_mil": 400,
    "camil": 400,
    "patch_gcn": 480,
    "sm_tap": 480,
}  # steps, where that is enough and a step is slow
BLURRED = {
    "iib_mil": "all instances of a positive bag are taught to be positive, and each is told what bag it is in",
    "gtp": "its rows are sums over neighbours and its map one of soft clusters: the top may be a neighbour",
    "set_mil": "a token sees 17 × 17 cells and four patches share one: its attention need not stand on the lesion",
}


def _learned(model, batch, bags, name):
    """Every label is told with little loss, and every planted instance has the highest score of its bag."""
    model.eval()
    with torch.no_grad():
        out = model(batch)
    model.train()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(out.logits[:, 0], batch.y.float())
    first = [
        bool(scores[:, -1].argmax() == bag.y_inst.argmax())
        for bag, scores in zip(bags, batch.split(out.scores), strict=True)
        if bag.y and plain(name) not in BLURRED
    ]
    return bool(loss < 0.1) and all(first)


def _train_on_planted_bags(name, steps):
    """After every 10 of these steps: whether the task is learned."""
    bags = planted_bags()
    batch, alone = pack(*bags), [pack(bag) for bag in bags]
    start = {"seed": 0, "lr": 1e-3, **PLANTED_START.get(plain(name), {})}
    model = build(name, seed=start["seed"], **start.get("options", {})).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=start["lr"], fused=True)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss_of(model, batch if plain(name) in TOGETHER else alone[5 * step % 8]).backward()
        optimizer.step()
        if step % 10 == 9:
            yield _learned(model, batch, bags, name)


@every_model
def test_eight_planted_bags_can_be_learned_and_the_planted_instance_comes_first(name):
    assert any(_train_on_planted_bags(name, FEWER.get(plain(name), 960)))


@pytest.mark.parametrize("name", ["abmil", "sm_ap"])
def test_what_was_learned_stays_learned(name):
    """Training goes on to a fixed end, however early the task was learned."""
    assert list(_train_on_planted_bags(name, 300))[-16:] == [True] * 16


# Their largest tensors hold some thousand numbers per instance: n² stands out from them at larger sizes only.
WIDE = ("camil", "set_mil", "trans_mil")


@every_model
def test_instances_never_meet_all_pairs(name):
    """No tensor of n² entries exists on the way: seen at a size where it would stand out."""
    n = 6000 if plain(name) in WIDE else 3000
    assert _largest_tensor(build(name).eval(), n) < n**2 / 2


def _largest_tensor(model, n):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for t in result if isinstance(result, tuple | list) else (result,):
                if isinstance(t, torch.Tensor) and t.layout == torch.strided:
                    self.most = max(self.most, t.numel())
            return result

    with Watch() as watch, torch.no_grad():
        model(pack(grid_bag(n)))
    return watch.most


@every_model
def test_unknown_options_are_refused_by_name(name):
    with pytest.raises(ConfigError, match="unknown option 'dimm'"):
        build(name, dimm=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clam", {"dropout": -1}),
        ("clam", {"dropout": "abc"}),
        ("trans_mil", {"dropout": 1}),
        ("camil", {"self_loops": "maybe"}),
        ("camil", {"knn": 7.5}),
        ("patch_gcn", {"knn": "abc"}),
        ("iib_mil", {"instance_weight": None}),
        ("deep_graph_surv", {"dim": 1.5}),
        ("clam", {"bag_weight": [1]}),
    ],
)
def test_values_that_cannot_be_meant_are_refused(name, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        create_model(name, DIM, **options)


@every_model
def test_a_label_outside_the_classes_is_one_clear_error(name):
    batch = pack(grid_bag(9, y=2))
    with pytest.raises(DataError, match=r"label.*2.*model.n_classes"):
        total_loss(build(name).train()(batch), batch.y)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("camil", {"dim": 100}),
        ("gtp", {"dim": 60}),
        ("trans_mil", {"dim": 100}),
        ("dtfd_mil", {"residual_blocks": -1}),
        ("deep_graph_surv", {"dropout": 0.1}),
    ],
)
def test_an_error_names_the_model_once(name, options):
    with pytest.raises(ConfigError) as problem:
        create_model(name, DIM, **options)
    assert str(problem.value).startswith(f"model {name}: ")
    assert str(problem.value).count(name) == 1


def test_sm_on_attention_pooling_is_a_model_of_its_own():
    with pytest.raises(ConfigError, match="model abmil: unknown option 'sm'; with Sm it is the model sm_ap"):
        create_model("abmil", DIM, sm={"where": "early"})
    with pytest.raises(ConfigError, match="with Sm it is the model sm_tap"):
        create_model("transformer_abmil", DIM, sm={"where": "early"})
    with pytest.raises(ConfigError, match="Sm is part of this model: give where, alpha and steps without sm"):
        create_model("sm_ap", DIM, sm={"where": "early"})


# Time grows with the square of n; their pools are those of other models, or they read single tokens.
PAIRWISE = ("set_mil", "iib_mil", "transformer_abmil", "sm_tap")


@pytest.mark.parametrize("name", sitting([m for m in CANDIDATES if plain(m) not in PAIRWISE]))
def test_mixed_precision_pools_with_all_digits(name):
    """Sums over thousands of instances in 16 bits would stop growing; products may lose a few digits."""
    batch, model = pack(grid_bag(3000)), build(name).train()
    torch.manual_seed(0)
    wide = model(batch)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = model(batch)
    assert torch.allclose(wide.logits, narrow.logits.float(), atol=0.05)
    for term, value in wide.losses.items():
        assert float(narrow.losses[term].detach()) == pytest.approx(float(value.detach()), rel=0.05, abs=0.02)


# Modules without a forward of their own: they hold state.
NOT_CALLED = {"iib_mil": ("memory",)}


@every_model
def test_forward_hooks_of_every_layer_fire(name):
    """Also with all kernels forced: none may work past a layer to which something is attached."""
    model, fired = build(name), set()
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)
    own = {k: m for k, m in model.named_modules() if k and not isinstance(m, lists) and "parametrizations" not in k}
    for key, layer in own.items():
        layer.register_forward_hook(lambda *_, key=key: fired.add(key))
    with every_kernel():
        for mode in (True, False):
            model.train(mode)(pack(grid_bag(40), grid_bag(7, seed=1, y=0)))
    assert sorted(own.keys() - fired - set(NOT_CALLED.get(plain(name), ()))) == []


def every_kernel():
    installed = [k for k in kernels.NAMES if k not in kernels.COMPILED or sm_numba._kernel() is not None]
    return kernels.forced(*installed)


# The chunked attention kernel draws its dropout itself: another draw than that of plain torch.
OWN_DRAWS = ("iib_mil", "set_mil")


@every_model
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_kernels_give_the_numbers_of_plain_torch(name, dtype, tolerance):
    options = {"dropout": 0.0} if plain(name) in OWN_DRAWS else {}
    batch = pack(*[grid_bag(57 - y, seed=y, y=y, dtype=dtype) for y in range(2)])
    found = []
    for switch in (kernels.disabled, every_kernel):
        model = build(name, **options).to(dtype).train()
        with switch():
            torch.manual_seed(0)
            out = model(batch)
            (out.scores.square().sum() + loss_of_output(out, batch)).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([out.logits.detach(), out.scores.detach(), *out.losses.values(), *grads])
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() <= tolerance * max(1.0, one.abs().max())


BOUND = {
    "camil": "landmarks are means of as many rows as the size of the bag allows",
    "dtfd_mil": "the cut into pseudo-bags is drawn for the size of the bag",
    "gtp": "GraphCAM propagates relevance by gradients of its own (score=attention can be exported)",
    "set_mil": "the board's side is read from the coordinates",
    "trans_mil": "the sequence is padded to a square of the bag's size",
}


QUICK_EXPORTED = ("abmil", "sm_ap", "clam", "dsmil", "patch_gcn", "sm_gcn")


@pytest.mark.parametrize("name", slow_unless(QUICK_EXPORTED.__contains__, [m for m in list_models() if m not in BOUND]))
def test_an_exported_program_gives_the_same_for_bags_of_any_size(name):
    model, bags = build(name).eval(), [grid_bag(n, seed=n) for n in (23, 40, 3)]
    batches = [pack(bag).without_labels() for bag in [*bags, without_edges(grid_bag(9))]]
    sizes, graph = torch.export.ShapesCollection(), batches[0].graph
    for tensor in (batches[0].x, batches[0].coords, graph.indptr, graph.indices, graph.weight):
        sizes[tensor] = {0: torch.export.Dim.AUTO}
    program = torch.export.export(model, (batches[0],), dynamic_shapes=sizes, strict=False).module()
    for batch in batches:
        got, wanted = program(batch), model(batch)
        assert torch.allclose(got.logits, wanted.logits, rtol=1e-5, atol=1e-6)
        assert torch.allclose(got.scores, wanted.scores, rtol=1e-5, atol=1e-6)


# By default tier 2 of dtfd_mil does not train tier 1: what it calls a gradient is that of no single function, so that
# its differences and its second derivatives have nothing to agree about. With joint=True it is one.
ONE_FUNCTION = {"dtfd_mil": {"joint": True}}


@pytest.mark.parametrize("name", list_models())
def test_second_derivatives_agree_with_finite_differences(name):
    batch = pack(grid_bag(9, dtype=torch.float64))
    model = build(name, **ONE_FUNCTION.get(name, {})).double().eval()
    trained = list(model.parameters())
    draw = torch.Generator().manual_seed(1)
    along = [torch.randn(p.shape, generator=draw, dtype=torch.float64) for p in trained]

    def slope(create_graph=False):
        out = model(batch)
        total = loss_of_output(out, batch) + out.scores.square().mean()
        grads = torch.autograd.grad(total, trained, create_graph=create_graph, allow_unused=True)
        return sum((g * a).sum() for g, a in zip(grads, along, strict=True) if g is not None)

    def moved(step):
        with torch.no_grad():
            for p, a in zip(trained, along, strict=True):
                p.add_(step * a)
        return model

    with every_kernel():
        second = torch.autograd.grad(slope(create_graph=True), trained, allow_unused=True)
        curvature = sum((g * a).sum() for g, a in zip(second, along, strict=True) if g is not None)
        ahead, behind = (moved(step) and slope().item() for step in (1e-6, -2e-6))
    assert curvature.item() == pytest.approx((ahead - behind) / 2e-6, rel=1e-4, abs=1e-5)


def test_unknown_models_get_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean sm_ap"):
        create_model("sm_app", 4)


def test_outside_models_are_reached_by_module_and_class():
    from smmil.models.abmil import ABMIL

    assert isinstance(create_model("smmil.models.abmil:ABMIL", 4, dim=8), ABMIL)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        create_model("smmil.models.abmil:Nobody", 4)


def test_no_model_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in list_models():
            build(name)(pack(grid_bag(7)))
