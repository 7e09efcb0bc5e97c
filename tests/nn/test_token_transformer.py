"""The token transformer against torch's own encoder, and what its trace promises."""

import torch
from torch import nn

from smmil.nn.token_transformer import TokenBlock, TokenTransformer, join_heads, split_heads

DOUBLE = torch.float64


def tokens(b=3, t=7, dim=12):
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
    block = TokenBlock(12, 3, 24).double()
    assert torch.allclose(block(tokens()), torchs_own(block, 12, 3, 24)(tokens()), atol=1e-12)


def test_logits_are_read_from_the_first_token():
    torch.manual_seed(0)
    model = TokenTransformer(12, 4, layers=2, heads=3, hidden=24).double()
    layers = [torchs_own(block, 12, 3, 24) for block in model.blocks]
    first = layers[1](layers[0](tokens()))[:, 0]
    truth = model.head(nn.functional.layer_norm(first, (12,), eps=1e-5))
    assert torch.allclose(model(tokens()), truth, atol=1e-12)


def test_the_trace_tells_what_was_computed():
    torch.manual_seed(0)
    model = TokenTransformer(12, 4, layers=2, heads=3, hidden=24).double()
    seen = model.trace(tokens())
    assert torch.equal(seen.blocks[0].out, seen.blocks[1].x)
    for block in seen.blocks:
        assert torch.allclose(block.attention.sum(-1), torch.ones(3, 3, 7, dtype=DOUBLE))
        assert torch.allclose(block.x + block.heard + block.thought, block.out)
        assert torch.allclose(join_heads(block.attention @ block.v), block.mixed)


def test_the_other_tokens_have_no_order():
    torch.manual_seed(0)
    model = TokenTransformer(12, 4, layers=2, heads=3, hidden=24).double()
    moved = tokens()[:, [0, 6, 5, 4, 3, 2, 1]]
    assert torch.allclose(model(tokens()), model(moved), atol=1e-12)


def test_heads_are_split_and_joined_again():
    assert torch.equal(join_heads(split_heads(tokens(), 4)), tokens())
