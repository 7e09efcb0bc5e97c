"""TransMIL against a literal reading of its equations, and the properties they imply."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from support.bags import chain_bag, grid_bag, reordered, without_edges
from support.quick import slow_unless

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError
from smmil.models import create_model

SIZES = (1, 2, 3, 7, 16, 23, 57)
HEADS = 2


def build(seed=0, n_classes=1, **options):
    torch.manual_seed(seed)
    return create_model("trans_mil", 16, n_classes, dim=8, heads=HEADS, **options).double()


def bags(sizes=SIZES):
    return [grid_bag(n, seed=n, dtype=torch.float64) for n in sizes]


def pack(*some):
    return BagBatch.pack(some)


def layer_norm(norm, x):
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def literal_attention(layer, x, m, iterations):
    """Padded with zero rows in front, every matrix dense; the output rows, and Â (heads, n, n) of the real rows."""
    n, dim = x.shape
    width = dim // HEADS
    x = torch.cat([x.new_zeros((-n) % m, dim), x])
    total = len(x)
    q, k, v = (x @ layer.qkv.weight.T).reshape(total, 3, HEADS, width).permute(1, 2, 0, 3)
    q = q / math.sqrt(width)
    marks_q, marks_k = (t.reshape(HEADS, m, total // m, width).mean(2) for t in (q, k))
    s1, s2, s3 = ((a @ b.mT).softmax(2) for a, b in ((q, marks_k), (marks_q, marks_k), (marks_q, k)))
    z = s2.mT / (s2.sum(2).max() * s2.sum(1).max())
    one = torch.eye(m, dtype=x.dtype)
    for _ in range(iterations):
        z = z @ (13 * one - s2 @ z @ (15 * one - s2 @ z @ (7 * one - s2 @ z))) / 4
    full = s1 @ z @ s3
    mixed = list((full @ v).unbind(1))
    for i, tap in itertools.product(range(total), range(33)):
        if 0 <= i + tap - 16 < total:
            mixed[i] = mixed[i] + layer.local.weight[:, 0, tap] * v[:, i + tap - 16]
    out = torch.stack(mixed).reshape(total, dim) @ layer.out.weight.T + layer.out.bias
    return out[-n:], full[:, -n:, -n:]


def literal_fold(ppeg, x):
    side, convs = round(len(x) ** 0.5), (ppeg.wide, ppeg.middle, ppeg.narrow)
    out = []
    for r, c in itertools.product(range(side), range(side)):
        cell = x[r * side + c]
        for conv, size in zip(convs, (7, 5, 3), strict=True):
            cell = cell + conv.bias
            for i, j in itertools.product(range(size), range(size)):
                row, column = r + i - size // 2, c + j - size // 2
                if 0 <= row < side and 0 <= column < side:
                    cell = cell + conv.weight[:, 0, i, j] * x[row * side + column]
        out.append(cell)
    return torch.stack(out)


def literal_chain(ppeg, x):
    out = []
    for i in range(len(x)):
        cell = x[i]
        for conv, size in zip((ppeg.wide, ppeg.middle, ppeg.narrow), (7, 5, 3), strict=True):
            cell = cell + conv.bias
            for tap in range(size):
                if 0 <= i + tap - size // 2 < len(x):
                    cell = cell + conv.weight[:, 0, tap] * x[i + tap - size // 2]
        out.append(cell)
    return torch.stack(out)


def literal(model, x, m=256, iterations=6, ppeg="fold"):
    """Logits and scores of one bag."""
    n = len(x)
    h = (x @ model.embed.weight.T + model.embed.bias).clamp(min=0)
    side = math.ceil(math.sqrt(n))
    if ppeg == "fold":
        h = torch.cat([h, h[: side * side - n]])
    t = torch.cat([model.token, h])
    t = t + literal_attention(model.attention1, layer_norm(model.norm1, t), m, iterations)[0]
    encode = literal_fold if ppeg == "fold" else literal_chain
    t = torch.cat([t[:1], encode(model.position, t[1:])])
    out, full = literal_attention(model.attention2, layer_norm(model.norm2, t), m, iterations)
    z = layer_norm(model.norm, (t + out)[:1])
    return z @ model.head.weight.T + model.head.bias, full.mean(0)[0, 1 : n + 1, None]


OPTIONS = [
    {},
    {"ppeg": "chain"},
    {"landmarks": 1},
    {"landmarks": 4},
    {"landmarks": 7, "iterations": 3},
    {"landmarks": 16, "ppeg": "chain", "iterations": 1},
]


CASES = [(n_classes, options) for n_classes in (1, 3) for options in OPTIONS]


@pytest.mark.parametrize("case", slow_unless(lambda case: case[0] == 1 or not case[1], CASES))
def test_the_model_is_its_definition(case):
    n_classes, options = case
    model = build(n_classes=n_classes, **options).eval()
    sizes = SIZES if options.get("landmarks") else (1, 3, 23)
    given = {"m" if k == "landmarks" else k: v for k, v in options.items()}
    with torch.no_grad():
        out = model(pack(*bags(sizes)))
        truth = [literal(model, bag.x, **given) for bag in bags(sizes)]
    assert torch.allclose(out.logits, torch.cat([t[0] for t in truth]), atol=1e-10)
    assert torch.allclose(out.scores, torch.cat([t[1] for t in truth]), atol=1e-10)
    assert out.losses == {}


@pytest.mark.parametrize("options", [{"landmarks": 1}, {"landmarks": 4}, {"landmarks": 16, "ppeg": "chain"}])
def test_gradients_are_those_of_the_definition(options):
    model = build(dropout=0.0, **options)
    given = {"m" if k == "landmarks" else k: v for k, v in options.items()}
    some, wanted = bags((3, 7)), list(model.parameters())
    out = model(pack(*some))
    truth = [literal(model, bag.x, **given) for bag in some]
    ours = out.logits.sin().sum() + out.scores.square().sum()
    true = sum(logits.sin().sum() + scores.square().sum() for logits, scores in truth)
    for a, b in zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(true, wanted), strict=True):
        assert a.isfinite().all()
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize(
    ("count", "width", "n_classes"), [(2_410_002, 512, 2), (2_409_489, 512, 1), (2_672_146, 1024, 2)]
)
def test_the_number_of_parameters_is_the_published_one(count, width, n_classes):
    assert sum(p.numel() for p in create_model("trans_mil", width, n_classes).parameters()) == count


def test_the_chain_has_fewer_weights_in_its_pyramid():
    models = [create_model("trans_mil", 512, ppeg=form) for form in ("fold", "chain")]
    fold, chain = (sum(p.numel() for p in model.parameters()) for model in models)
    assert fold - chain == 512 * (49 + 25 + 9 - 7 - 5 - 3)


@pytest.mark.parametrize("n", [2, 3, 7, 23])
def test_the_first_instances_fill_the_square(n):
    """A bag, and the same bag with its first instances written at its end, are one: no square, no copies."""
    model, (bag,) = build(landmarks=4).eval(), bags((n,))
    side = math.ceil(math.sqrt(n))
    full = Bag("full", torch.cat([bag.x, bag.x[: side * side - n]]))
    short, whole = model(pack(replace(bag, graph=None, coords=None))), model(pack(full))
    assert torch.allclose(short.logits, whole.logits, atol=1e-12)
    assert torch.allclose(short.scores, whole.scores[:n], atol=1e-12)


@pytest.mark.parametrize("form", ["fold", "chain"])
def test_the_order_of_the_instances_matters(form):
    model, (bag,) = build(landmarks=4, ppeg=form).eval(), bags((23,))
    turned = reordered(bag, torch.arange(22, -1, -1))
    assert not torch.allclose(model(pack(bag)).logits, model(pack(turned)).logits, atol=1e-4)


def test_neither_coordinates_nor_neighbours_are_looked_at():
    model, (bag,) = build().eval(), bags((23,))
    bare = Bag("bare", bag.x)
    for other in (without_edges(bag), bare):
        assert torch.equal(model(pack(bag)).scores, model(pack(other)).scores)


def test_fold_and_chain_agree_on_a_square_when_the_pyramid_is_silent():
    fold, chain = build().eval(), build(ppeg="chain").eval()
    chain.load_state_dict({k: v for k, v in fold.state_dict().items() if "position" not in k}, strict=False)
    for model in (fold, chain):
        for p in model.position.parameters():
            torch.nn.init.zeros_(p)
    batch = pack(*bags((16,)))
    assert torch.allclose(fold(batch).logits, chain(batch).logits, atol=1e-12)
    assert torch.allclose(fold(batch).scores, chain(batch).scores, atol=1e-12)


def test_another_bag_in_the_batch_changes_nothing():
    model = build(landmarks=4).eval()
    quiet, loud = bags((7, 23))
    alone, together = model(pack(quiet)), model(pack(quiet, replace(loud, x=1000 * loud.x)))
    assert torch.allclose(alone.logits, together.logits[:1], atol=1e-12)
    assert torch.allclose(alone.scores, together.scores[:7], atol=1e-12)


def test_scores_share_out_about_one_unit_in_a_bag():
    """1023 instances, one copy, the token and 255 zero rows: all but a fifth falls on instances."""
    torch.manual_seed(0)
    scores = create_model("trans_mil", 16).eval()(pack(grid_bag(1023))).scores
    assert scores.sum().item() == pytest.approx(1023 / 1280, abs=0.05)


def test_a_short_scan_keeps_a_small_part_of_the_attention():
    """35 slices and a token among 256 places; the rest falls on zero rows, as in the original."""
    torch.manual_seed(0)
    assert create_model("trans_mil", 16).eval()(pack(chain_bag(35))).scores.sum() < 0.3


def test_a_penalty_on_the_scores_reaches_the_embedding():
    model = build(landmarks=4)
    (grad,) = torch.autograd.grad(model(pack(*bags())).scores.square().sum(), model.embed.weight)
    assert grad.abs().max() > 0


def test_training_follows_the_seed():
    model, batch = build().train(), pack(*bags())

    def run(seed):
        torch.manual_seed(seed)
        return model(batch).logits

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_widths_that_heads_cannot_share_are_refused():
    with pytest.raises(ConfigError, match="dim=100 must be a multiple of heads=8"):
        create_model("trans_mil", 16, dim=100)
    with pytest.raises(ConfigError, match="ppeg"):
        create_model("trans_mil", 16, ppeg="folded")
