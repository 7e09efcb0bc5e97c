"""GraphCAM: its transformer against torch's own, and the rules of relevance against values computed by hand."""

import pytest
import torch
from torch import nn

from smmil.nn.graphcam import (
    CAM_STARTS,
    TokenTransformer,
    _attention_relevance,
    _divided,
    _relevance_of_both_uses,
    _relevance_of_linear,
    _relevance_of_product,
    _relevance_of_sum,
    _rollout,
    _TokenBlock,
    graph_cam,
)
from smmil.nn.kernels.attention import join_heads

DOUBLE = torch.float64


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def per_bag(r):
    return r.flatten(1).sum(1)


def test_a_linear_map_by_hand():
    """Output 1 = 2·3 + (-1)·1: only the first input helps. Output 2 = 1·3 + (-2)(-1): 3 parts and 2 parts of 5."""
    x, weight = torch.tensor([[3.0, -1.0]], dtype=DOUBLE), torch.tensor([[2.0, 1.0], [1.0, -2.0]], dtype=DOUBLE)
    given = _relevance_of_linear(torch.tensor([[7.0, 10.0]], dtype=DOUBLE), x, weight)
    assert torch.allclose(given, torch.tensor([[7.0 + 6.0, 4.0]], dtype=DOUBLE))


def test_a_sum_by_hand():
    """Entries share 4 as 1:3 and 6 as 2:1; totals 5 and 5, then nothing is left to correct."""
    a, b, r = (torch.tensor([v], dtype=DOUBLE) for v in ([1.0, 2.0], [3.0, 1.0], [4.0, 6.0]))
    to_a, to_b = _relevance_of_sum(r, a, b)
    assert torch.allclose(to_a, torch.tensor([[1.0, 4.0]], dtype=DOUBLE))
    assert torch.allclose(to_b, torch.tensor([[3.0, 2.0]], dtype=DOUBLE))


def test_a_sum_of_opposite_totals_is_shared_by_their_sizes():
    """a = 3 and b = -1 share 4 as 6 and -2 in the entry; by size 6:2 gives 3 to a and 1 to b."""
    to_a, to_b = _relevance_of_sum(*(torch.tensor([[v]], dtype=DOUBLE) for v in (4.0, 3.0, -1.0)))
    assert to_a.item() == pytest.approx(3)
    assert to_b.item() == pytest.approx(1)


def test_a_product_by_hand():
    """z = 2·3 + 1·4 = 10 with relevance 20: parts 12 and 8, half to each factor."""
    a, b = torch.tensor([[[2.0, 1.0]]], dtype=DOUBLE), torch.tensor([[[3.0], [4.0]]], dtype=DOUBLE)
    to_a, to_b = _relevance_of_product(torch.full((1, 1, 1), 20.0, dtype=DOUBLE), a, b)
    assert torch.allclose(to_a, torch.tensor([[[6.0, 4.0]]], dtype=DOUBLE))
    assert torch.allclose(to_b, torch.tensor([[[6.0], [4.0]]], dtype=DOUBLE))


def test_nothing_is_lost():
    r, x = numbers(3, 6, 4, seed=1), numbers(3, 6, 40)
    assert torch.allclose(per_bag(_relevance_of_linear(r, x, numbers(4, 40, seed=2))), per_bag(r), atol=1e-6)
    a, b = numbers(3, 6, 4), numbers(3, 6, 4, seed=3)
    assert torch.allclose(sum(per_bag(part) for part in _relevance_of_sum(r, a, b)), per_bag(r), atol=1e-6)
    parts = _relevance_of_product(r, numbers(3, 6, 7), numbers(3, 7, 4, seed=5))
    assert torch.allclose(sum(per_bag(part) for part in parts), per_bag(r), atol=1e-6)
    assert torch.allclose(per_bag(_relevance_of_both_uses(r, 2 * r, a)), 3 * per_bag(r), atol=1e-6)


def test_bags_do_not_mix():
    r, a, b = numbers(3, 6, 4, seed=1), numbers(3, 6, 4), numbers(3, 6, 4, seed=3)
    together = _relevance_of_sum(r, a, b)
    for i in range(3):
        alone = _relevance_of_sum(r[i : i + 1], a[i : i + 1], b[i : i + 1])
        assert all(torch.allclose(t[i], one[0], atol=1e-12) for t, one in zip(together, alone, strict=True))


def test_what_is_zero_deserves_nothing_and_breaks_nothing():
    zero, r = torch.zeros(1, 2, 2, dtype=DOUBLE), torch.ones(1, 2, 2, dtype=DOUBLE)
    outcomes = [_relevance_of_linear(r, zero, zero[0]), *_relevance_of_sum(r, zero, zero)]
    outcomes += [*_relevance_of_product(r, zero, zero), _relevance_of_both_uses(r, r, zero)]
    assert all((found == 0).all() for found in outcomes)
    assert _divided(torch.ones(1), torch.full((1,), -1e-9)).isfinite()


def test_rollout_multiplies_later_by_earlier():
    maps = [numbers(2, 4, 4, seed=s) for s in range(3)]
    one = torch.eye(4, dtype=DOUBLE)
    truth = (maps[2] + one) @ (maps[1] + one) @ (maps[0] + one)
    assert torch.allclose(_rollout(maps), truth, atol=1e-12)


def transformer(classes=2, seed=0):
    torch.manual_seed(seed)
    return TokenTransformer(8, classes, layers=3, heads=2, hidden=16).double()


def test_relevance_grows_with_what_it_starts_from():
    """So relevance times gradient carries the start twice, and its sign cancels."""
    model, tokens = transformer(), numbers(4, 6, 8)
    with torch.no_grad():
        seen = model(tokens)
        one = _attention_relevance(model, seen, torch.ones(4, dtype=DOUBLE), 1)
        many = _attention_relevance(model, seen, torch.full((4,), -3.0, dtype=DOUBLE), 1)
    for a, b in zip(one, many, strict=True):
        assert torch.allclose(-3 * a, b, rtol=1e-4, atol=1e-9)


def test_the_maps_of_a_batch_are_those_of_its_bags():
    model, tokens = transformer(), numbers(4, 6, 8)
    for start in CAM_STARTS:
        alone = torch.cat([graph_cam(model, one[None], start) for one in tokens])
        assert torch.allclose(graph_cam(model, tokens, start), alone, rtol=1e-6)


def test_equal_tokens_speak_equally():
    tokens = numbers(1, 6, 8)
    tokens[:, 4] = tokens[:, 2]
    cam = graph_cam(transformer(), tokens)
    assert cam.shape == (1, 5, 2)
    assert torch.allclose(cam[:, 1], cam[:, 3], rtol=1e-9)


def test_a_class_nobody_can_speak_for_has_an_empty_map():
    model = transformer()
    with torch.no_grad():
        model.head.weight[1] = 0
    cam = graph_cam(model, numbers(2, 6, 8))
    assert (cam[..., 1] == 0).all()
    assert (cam[..., 0] > 0).any()


def test_the_precision_of_the_tokens_is_kept():
    model, tokens = transformer().float(), numbers(1, 6, 8).float()
    assert graph_cam(model, tokens).dtype == torch.float32
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


def some_tokens(b=3, t=7, dim=12):
    return torch.randn(b, t, dim, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


def torchs_own(block, dim, heads, hidden):
    """torch's pre-norm layer with the weights of a block."""
    layer = nn.TransformerEncoderLayer(
        dim, heads, hidden, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True, dtype=DOUBLE
    )
    with torch.no_grad():
        layer.self_attn.in_proj_bias.zero_()
        layer.self_attn.in_proj_weight.copy_(block.qkv.weight)
        pairs = (layer.self_attn.out_proj, block.merge), (layer.linear1, block.expand), (layer.linear2, block.contract)
        for theirs, ours in (*pairs, (layer.norm1, block.norm1), (layer.norm2, block.norm2)):
            theirs.load_state_dict(ours.state_dict())
    return layer


def test_a_block_is_torchs_pre_norm_layer():
    torch.manual_seed(0)
    block = _TokenBlock(12, 3, 24).double()
    assert torch.allclose(block(some_tokens()).out, torchs_own(block, 12, 3, 24)(some_tokens()), atol=1e-12)


def test_logits_are_read_from_the_first_token():
    torch.manual_seed(0)
    model = TokenTransformer(12, 4, layers=2, heads=3, hidden=24).double()
    layers = [torchs_own(block, 12, 3, 24) for block in model.blocks]
    first = layers[1](layers[0](some_tokens()))[:, 0]
    truth = model.head(nn.functional.layer_norm(first, (12,), eps=1e-5))
    assert torch.allclose(model(some_tokens()).logits, truth, atol=1e-12)


def test_the_trace_holds_what_was_computed():
    torch.manual_seed(0)
    model = TokenTransformer(12, 4, layers=2, heads=3, hidden=24).double()
    seen = model(some_tokens())
    assert torch.equal(seen.blocks[0].out, seen.blocks[1].x)
    for block in seen.blocks:
        assert torch.allclose(block.attention.sum(-1), torch.ones(3, 3, 7, dtype=DOUBLE))
        assert torch.allclose(block.x + block.attended + block.fed, block.out)
        assert torch.allclose(join_heads(block.attention @ block.v), block.mixed)


def test_the_other_tokens_have_no_order():
    torch.manual_seed(0)
    model = TokenTransformer(12, 4, layers=2, heads=3, hidden=24).double()
    moved = some_tokens()[:, [0, 6, 5, 4, 3, 2, 1]]
    assert torch.allclose(model(some_tokens()).logits, model(moved).logits, atol=1e-12)
