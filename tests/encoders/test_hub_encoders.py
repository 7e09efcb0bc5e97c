"""Rows of the hub: full size without memory, and small random weights named as on the hub."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.hub_weights import random_state, transformers_shapes
from support.tiny_encoders import tiles
from torch import nn
from torch.nn import functional as F

from smmil.encoders import encoder_info, hub, list_encoders, load_encoder, table
from smmil.encoders.networks import _prepare_torchvision
from smmil.errors import DataError

HUB = [name for name in list_encoders() if encoder_info(name).family == "hub"]
# Facts typed here a second time: width, depth, patch, tokens with a position, registers, hidden units of the last of
# the two layers (and of the first, twice as many where they are gated), layer scale.
ARCHITECTURES = {
    "uni": (1024, 24, 16, 197, 0, 4096, 1, True),
    "uni2-h": (1536, 24, 14, 256, 8, 4096, 2, True),
    "virchow": (1280, 32, 14, 257, 0, 3416, 2, True),
    "virchow2": (1280, 32, 14, 261, 4, 3416, 2, True),
    "h-optimus-0": (1536, 40, 14, 256, 4, 4096, 2, True),
    "h-optimus-1": (1536, 40, 14, 256, 4, 4096, 2, True),
    "gigapath": (1536, 40, 16, 197, 0, 4096, 2, True),
    "phikon": (768, 12, 16, 197, 0, 3072, 1, False),
    "phikon-v2": (1024, 24, 16, 197, 0, 4096, 1, True),
    "hibou-b": (768, 12, 14, 256, 4, 2048, 2, True),
    "hibou-l": (1024, 24, 14, 256, 4, 2736, 2, True),
    "kaiko-vits8": (384, 12, 8, 785, 0, 1536, 1, False),
    "kaiko-vitb8": (768, 12, 8, 785, 0, 3072, 1, False),
    "kaiko-vitl14": (1024, 24, 14, 1369, 4, 4096, 1, True),
    "lunit-vits8": (384, 12, 8, 785, 0, 1536, 1, False),
    "dinov2-b": (768, 12, 14, 257, 0, 3072, 1, True),
    "dinov2-l": (1024, 24, 14, 257, 0, 4096, 1, True),
    "rad-dino": (768, 12, 14, 1370, 0, 3072, 1, True),
    "conch": (768, 12, 16, 785, 0, 3072, 1, False),
    "conch-v1.5": (1024, 24, 16, 785, 0, 4096, 1, True),
}


def parameters_by_formula(width, depth, patch, places, registers, hidden, gates, scaled):
    def linear(inside, outside):
        return inside * outside + outside

    block = 2 * 2 * width + linear(width, 3 * width) + linear(width, width) + 2 * width * scaled
    block += linear(width, gates * hidden) + linear(hidden, width)
    return linear(3 * patch**2, width) + (1 + registers + places) * width + depth * block + 2 * width


def pooling_by_formula(name):
    width, dim, bias = {"conch": (768, 512, 1), "conch-v1.5": (1024, 768, 0)}.get(name, (0, 0, 0))
    return (2 * dim * dim + 2 * dim * width + 4 * dim * bias + dim + 2 * (2 * dim + width)) if dim else 0


@pytest.fixture(scope="module", autouse=True)
def torchvision():
    _prepare_torchvision("these tests")


@pytest.mark.parametrize("name", HUB)
def test_every_row_builds_at_full_size_with_its_width_and_number_of_parameters(name):
    row = encoder_info(name)
    with torch.device("meta"):
        network = hub._hub_network(row)
        images = torch.zeros(1, 3, row.pixels, row.pixels)
    found = sum(p.numel() for p in network.parameters())
    if name == "ctranspath":  # Swin-T without classifier; two convolutions, normed, and a third instead of one
        stem = 3 * 12 * 9 + 2 * 12 + 12 * 24 * 9 + 2 * 24 + (24 + 1) * 96
        assert found == 27_519_354 - (3 * 4 * 4 + 1) * 96 + stem
    else:
        assert found == parameters_by_formula(*ARCHITECTURES[name]) + pooling_by_formula(name)
        trunk = network.trunk if "conch" in name else network.network
        trunk.blocks = trunk.blocks[:1]  # the others keep the width
    with torch.inference_mode():
        assert network.eval()(images).shape == (1, row.dim)


SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}
TRANSFORMERS = [name for name in HUB if encoder_info(name).layout == "transformers"]


def small(monkeypatch, name, side=56, **more):
    """The row with a small network; gated layers keep their proportions."""
    row = encoder_info(name)
    dim = 64 if "mean of patches" in row.pooling else 32
    sizes = (
        SMALL if row.layout != "swin" else {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "window_size": 7}
    )
    native = {"img_size": side} if "img_size" in row.build or row.layout == "timm" else {}
    row = replace(row, pixels=side, dim=dim, build=row.build | sizes | native | more)
    monkeypatch.setitem(table._BY_NAME, name, row)
    return row


def literal_transformer(state, images, patch, eps):
    """The class token of a transformer written out from the names of `transformers`, one head at a time."""

    def norm(x, name):
        return F.layer_norm(x, (32,), state[f"{name}.weight"], state[f"{name}.bias"], eps)

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    weight = state["embeddings.patch_embeddings.projection.weight"].reshape(32, -1)
    cut = images.unfold(2, patch, patch).unfold(3, patch, patch)  # n, 3, rows, columns, patch, patch
    rows, columns = cut.shape[2:4]
    x = cut.permute(0, 2, 3, 1, 4, 5).reshape(len(images), rows * columns, -1) @ weight.T
    x = x + state["embeddings.patch_embeddings.projection.bias"]
    places = state["embeddings.position_embeddings"]
    first, rest = places[:, :1], places[:, 1:]
    side = math.isqrt(rest.shape[1])
    if side != rows:
        rest = rest.reshape(1, side, side, 32).permute(0, 3, 1, 2)
        rest = F.interpolate(rest, size=(rows, columns), mode="bicubic", align_corners=False).flatten(2).transpose(1, 2)
    tokens = [(state["embeddings.cls_token"] + first).expand(len(x), -1, -1), x + rest]
    if "embeddings.register_tokens" in state:
        tokens.insert(1, state["embeddings.register_tokens"].expand(len(x), -1, -1))
    x = torch.cat(tokens, 1)
    for n in range(2):
        at = f"encoder.layer.{n}."
        old = f"{at}layernorm_before.weight" in state
        h = norm(x, f"{at}layernorm_before" if old else f"{at}norm1")
        q, k, v = (linear(h, f"{at}attention.attention.{part}") for part in ("query", "key", "value"))
        heads = [slice(16 * i, 16 * i + 16) for i in range(2)]
        mixed = [torch.softmax(q[..., s] @ k[..., s].mT / 4, -1) @ v[..., s] for s in heads]
        h = linear(torch.cat(mixed, -1), f"{at}attention.output.dense")
        x = x + h * state.get(f"{at}layer_scale1.lambda1", 1)
        h = norm(x, f"{at}layernorm_after" if old else f"{at}norm2")
        if f"{at}mlp.weights_in.weight" in state:
            gate, value = linear(h, f"{at}mlp.weights_in").chunk(2, -1)
            h = linear(gate * torch.sigmoid(gate) * value, f"{at}mlp.weights_out")
        else:
            names = ("intermediate.dense", "output.dense") if old else ("mlp.fc1", "mlp.fc2")
            h = linear(F.gelu(linear(h, at + names[0])), at + names[1])
        x = x + h * state.get(f"{at}layer_scale2.lambda1", 1)
    return norm(x[:, 0], "layernorm")


def normalised(images, row):
    colours = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    return (colours - torch.tensor(row.mean).view(3, 1, 1)) / torch.tensor(row.std).view(3, 1, 1)


def close(encoder, images, expected):
    found = torch.from_numpy(encoder.encode(images)).float()
    torch.testing.assert_close(found, expected, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("grid", [0, 7])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_weights_of_transformers_give_what_their_names_say(name, grid, monkeypatch, tmp_path):
    """Also when the positions in the file are of another grid, as DINOv2 has them."""
    gated, patch = "mlp_layer" in encoder_info(name).build, 16 if "phikon" in name else 14
    row = small(monkeypatch, name, side=4 * patch, mlp_ratio=5.0 if gated else 2.5)
    registers, scaled = 4 if "hibou" in name else 0, name != "phikon"
    shapes = transformers_shapes(row, patch, 1 + (grid or 4) ** 2, registers, gated, scaled)
    state = random_state(shapes)
    torch.save(state, tmp_path / "w.bin")
    encoder = load_encoder(name, weights=tmp_path / "w.bin", device="cpu")
    images = tiles(3, 4 * patch)
    close(
        encoder, images, literal_transformer(state, normalised(images, row), patch, 1e-12 if name == "phikon" else 1e-6)
    )
    assert encoder.provenance()["pooling"] == "class token"
    assert encoder.provenance()["gate"] == row.gate


def test_gated_layers_are_recognised_by_their_names(monkeypatch, tmp_path):
    row = small(monkeypatch, "phikon-v2", side=64)
    state = random_state(transformers_shapes(row, 16, 17, 0, True, True))
    torch.save(state, tmp_path / "w.bin")
    images = tiles(2, 64)
    encoder = load_encoder("phikon-v2", weights=tmp_path / "w.bin", device="cpu")
    close(encoder, images, literal_transformer(state, normalised(images, row), 16, 1e-6))


def timm_state(row):
    network = hub._hub_network(row).network
    return random_state({name: value.shape for name, value in network.state_dict().items()}), network


@pytest.mark.parametrize("name", [name for name in HUB if encoder_info(name).layout == "timm"])
def test_weights_of_timm_are_pooled_as_the_row_says(name, monkeypatch, tmp_path):
    """The class token is the first token; registers are part of neither half."""
    row = small(monkeypatch, name, side=112)
    state, network = timm_state(row)
    network.load_state_dict(state)
    torch.save({"state_dict": state}, tmp_path / "w.pt")
    images = tiles(2, 112)
    with torch.inference_mode():
        tokens = network.eval().forward_features(normalised(images, row))
    patches = (112 // network.patch_embed.patch_size[0]) ** 2
    assert tokens.shape[1] == 1 + patches + row.build.get("reg_tokens", 4 if "reg4" in row.network else 0)
    halves = [tokens[:, 0], tokens[:, -patches:].mean(1)]
    expected = torch.cat(halves, 1) if name.startswith("virchow") else halves[0]
    close(load_encoder(name, weights=tmp_path / "w.pt", device="cpu"), images, expected)


@pytest.mark.parametrize("name", ["conch", "conch-v1.5"])
def test_conch_pools_with_the_attention_of_its_query(name, monkeypatch, tmp_path):
    """Against the attention of torch, with the names of either program, and positions of a grid of 14."""
    row = small(monkeypatch, name, side=64, num_heads=2)
    trunk = hub._hub_network(row).trunk
    state = random_state({f"trunk.{key}": value.shape for key, value in trunk.state_dict().items()})
    attention = nn.MultiheadAttention(32, 8, bias=name == "conch", kdim=32, vdim=32, batch_first=True)
    q, k, v, out = random_state(dict.fromkeys("qkvo", (32, 32)), 1).values()
    attention.in_proj_weight.data, attention.out_proj.weight.data = torch.cat([q, k, v]), out
    norms = random_state({f"{name}.{kind}": (32,) for name in ("ln_q", "ln_k", "ln") for kind in ("weight", "bias")}, 2)
    query = random_state({"query": (1, 32)}, 3)["query"]
    pool = {"query": query, **{key: value for key, value in norms.items() if key[:3] != "ln."}}
    if name == "conch":
        bias = random_state({"in": (96,), "out": (32,)}, 4)
        attention.in_proj_bias.data, attention.out_proj.bias.data = bias["in"], bias["out"]
        pool |= {f"attn.{letter}_proj_weight": value for letter, value in zip("qkv", (q, k, v), strict=True)}
        pool |= {"attn.in_proj_bias": bias["in"], "attn.out_proj.weight": out, "attn.out_proj.bias": bias["out"]}
    else:
        pool |= {"to_q.weight": q, "to_kv.weight": torch.cat([k, v]), "to_out.weight": out}
        places = random_state({"pos": (1, 197, 32)}, 5)["pos"]
        square = places[:, 1:].reshape(1, 14, 14, 32).permute(0, 3, 1, 2)
        scaled = F.interpolate(square, scale_factor=(4.1 / 14,) * 2, mode="bicubic").flatten(2).transpose(1, 2)
        state["trunk.pos_embed"] = torch.cat([places[:, :1], scaled], 1)
    trunk.load_state_dict({key.removeprefix("trunk."): value for key, value in state.items()})
    whole = {**state, **{f"attn_pool_contrast.{key}": value for key, value in pool.items()}}
    whole |= {"ln_contrast.weight": norms["ln.weight"], "ln_contrast.bias": norms["ln.bias"]}
    if name == "conch":
        whole = {f"visual.{key}": value for key, value in whole.items()}
        whole |= {
            "text.token.weight": torch.ones(2),
            "visual.proj_contrast": torch.ones(2),
            "logit_scale": torch.ones(1),
        }
        whole |= {"visual.attn_pool_caption.query": torch.ones(2)}
    else:
        whole["trunk.pos_embed"] = places
    torch.save(whole, tmp_path / "w.bin")
    images = tiles(2, 64)

    def norm(x, key):
        return F.layer_norm(x, (32,), norms[f"{key}.weight"], norms[f"{key}.bias"])

    with torch.inference_mode():
        tokens = norm(trunk.eval().forward_features(normalised(images, row)), "ln_k")
        pooled = attention(norm(query, "ln_q").expand(2, 1, 32), tokens, tokens)[0][:, 0]
        close(load_encoder(name, weights=tmp_path / "w.bin", device="cpu"), images, norm(pooled, "ln"))


def test_ctranspath_reads_the_stages_of_the_older_swin(monkeypatch, tmp_path):
    row = small(monkeypatch, "ctranspath", side=56, img_size=56)
    network = hub._hub_network(row)
    shapes = {name: value.shape for name, value in network.state_dict().items() if value.is_floating_point()}
    state = random_state(shapes)
    state = {name: value.abs() if name.endswith("running_var") else value for name, value in state.items()}
    network.load_state_dict(state, strict=False)
    assert any(name.startswith("layers.1.downsample") for name in state)
    old = {name.replace("layers.1.downsample", "layers.0.downsample"): value for name, value in state.items()}
    old |= {
        "layers.0.blocks.1.attn_mask": torch.ones(1),
        "layers.0.blocks.0.attn.relative_position_index": torch.ones(1),
    }
    torch.save({"model": old}, tmp_path / "ctranspath.pth")
    images = tiles(2, 56)
    with torch.inference_mode():
        expected = network.eval()(normalised(images, row))
    close(load_encoder("ctranspath", weights=tmp_path / "ctranspath.pth", device="cpu"), images, expected)


def test_weights_of_another_row_are_refused(monkeypatch, tmp_path):
    small(monkeypatch, "uni")
    state, _ = timm_state(small(monkeypatch, "kaiko-vits8"))
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(DataError, match="weights of another network: lacks"):
        load_encoder("uni", weights=tmp_path / "w.pt", device="cpu")


def test_sixteen_bits_are_close_and_said_so(monkeypatch, tmp_path):
    state, _ = timm_state(small(monkeypatch, "uni", side=64))
    torch.save(state, tmp_path / "w.pt")
    whole, half = (
        load_encoder("uni", weights=tmp_path / "w.pt", device="cpu", autocast=a) for a in (False, "bfloat16")
    )
    images = tiles(2, 64)
    a, b = whole.encode(images).astype(float), half.encode(images).astype(float)
    assert 0 < np.abs(a - b).max() < 0.2
    assert [e.provenance()["precision"] for e in (whole, half)] == ["float32", "bfloat16"]
