"""Networks whose weights lie on the Hugging Face hub: built by timm from their row, weights renamed where needed.

Files of the `transformers` library, of CONCH and of CTransPath name their weights in their own ways; they are mapped to
the names of timm, so that nothing but timm is needed to run them.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from smmil.encoders.fetching import _no_weights, find_weights
from smmil.encoders.networks import _BUILDERS, Built, _fit, _prepare_torchvision, _read_tensors, _timm
from smmil.encoders.table import EncoderInfo

Tensors = dict[str, Tensor]


class _Tokens(nn.Module):
    """A transformer that gives its class token, and behind it the mean of its patches if `both`; never registers."""

    def __init__(self, network: nn.Module, both: bool):
        super().__init__()
        self.network, self.both = network, both

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.network.forward_features(images)  # type: ignore[operator]
        if not self.both:
            return tokens[:, 0]
        return torch.cat([tokens[:, 0], tokens[:, self.network.num_prefix_tokens :].mean(1)], -1)


class _AttentionPooled(nn.Module):
    """A transformer whose tokens, class token included, are averaged by the attention of one learned query."""

    def __init__(self, trunk: nn.Module, width: int, dim: int, bias: bool, heads: int = 8):
        super().__init__()
        self.trunk, self.heads = trunk, heads
        self.query = nn.Parameter(torch.zeros(1, dim))
        self.query_norm, self.token_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(width), nn.LayerNorm(dim)
        self.q, self.k, self.v = (nn.Linear(size, dim, bias) for size in (dim, width, width))
        self.out = nn.Linear(dim, dim, bias)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.token_norm(self.trunk.forward_features(images))  # type: ignore[operator]
        query = self.q(self.query_norm(self.query)).expand(len(tokens), 1, -1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, self.k(tokens), self.v(tokens)))
        pooled = functional.scaled_dot_product_attention(q, k, v)
        return self.norm(self.out(pooled.transpose(1, 2).flatten(1)))


class _ConvStem(nn.Module):
    """The first layers of CTransPath: two convolutions halve the image, a third one mixes channels."""

    def __init__(self, img_size: int | tuple[int, int], embed_dim: int, norm_layer: Any, **_: Any):
        super().__init__()
        sides = img_size if isinstance(img_size, tuple) else (img_size, img_size)
        self.grid_size = sides[0] // 4, sides[1] // 4
        self.proj, last = nn.Sequential(), 3
        for channels in (embed_dim // 8, embed_dim // 4):
            self.proj.append(nn.Conv2d(last, channels, 3, 2, 1, bias=False))
            self.proj.append(nn.BatchNorm2d(channels)).append(nn.ReLU())
            last = channels
        self.proj.append(nn.Conv2d(last, embed_dim, 1))
        self.norm = norm_layer(embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


def _hub_network(row: EncoderInfo, **changes: Any) -> nn.Module:
    """The network of a row, its weights not yet set; `changes` replace its arguments."""
    timm, build = _timm(row), row.build | changes
    if row.layout == "swin":
        return timm.create_model(row.network, pretrained=False, num_classes=0, embed_layer=_ConvStem, **build)
    if "mlp_layer" in build:
        build["mlp_layer"] = getattr(timm.layers, build["mlp_layer"])
    if "eps" in build:
        build["norm_layer"] = partial(nn.LayerNorm, eps=build.pop("eps"))
    if row.layout == "transformers":  # positions are fitted to the side when the weights are read
        build["img_size"] = row.pixels
    bias = build.pop("pool_bias", True)
    build |= {"pretrained": False, "num_classes": 0, "dynamic_img_size": True, "weight_init": "skip"}
    network = timm.create_model(row.network, **build)
    if row.layout == "conch":
        assert row.dim is not None
        return _AttentionPooled(network, network.embed_dim, row.dim, bias)
    return _Tokens(network, both="mean" in row.pooling)


def _from_timm(tensors: Tensors, _network: nn.Module) -> Tensors:
    return {f"network.{name}": tensor for name, tensor in tensors.items()}


# Names of transformers (ViT and DINOv2, of the latter also the variant with registers) -> names of timm.
_TRANSFORMERS = (
    (r"^embeddings\.cls_token", "cls_token"),
    (r"^embeddings\.register_tokens", "reg_token"),
    (r"^embeddings\.position_embeddings", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^layernorm\.", "norm."),
    (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"\.(layernorm_before|norm1)\.", ".norm1."),
    (r"\.(layernorm_after|norm2)\.", ".norm2."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.(intermediate\.dense|mlp\.weights_in)\.", ".mlp.fc1."),
    (r"(?<!attention)\.(output\.dense|mlp\.weights_out)\.", ".mlp.fc2."),
    (r"\.layer_scale(\d)\.lambda1", r".ls\1.gamma"),
)
_QKV = re.compile(r"(.*)\.attention\.attention\.(query|key|value)\.(weight|bias)")


def _from_transformers(tensors: Tensors, network: nn.Module) -> Tensors:
    """Three projections become one, names those of timm, positions those of the side of the network."""
    named, parts = {}, {}
    for name, tensor in tensors.items():
        if name == "embeddings.mask_token":  # for training only
            continue
        place = _QKV.fullmatch(name)
        if place:
            parts[place[1], place[3], place[2]] = tensor
            continue
        for old, new in _TRANSFORMERS:
            name = re.sub(old, new, name)
        named[name] = tensor
    for block, kind in dict.fromkeys(key[:2] for key in parts):
        three = [parts[block, kind, part] for part in ("query", "key", "value") if (block, kind, part) in parts]
        number = block.rpartition(".")[2]
        named[f"blocks.{number}.attn.qkv.{kind}"] = torch.cat(three)
    vit: Any = network.network
    if "pos_embed" in named:
        grid = vit.patch_embed.grid_size[0]
        # transformers: bicubic without smoothing
        first, places = _positions(named["pos_embed"], grid, size=(grid, grid), mode="bicubic")
        named["pos_embed"] = torch.cat([first, places], 1)
        if vit.no_embed_class and "cls_token" in named:  # timm adds no position to the class token of such networks
            named |= {"cls_token": named["cls_token"] + first, "pos_embed": places}
    return _from_timm(named, network)


def _positions(embedding: Tensor, grid: int, **how: Any) -> tuple[Tensor, Tensor]:
    """The position of the class token, and those of the patches, interpolated if they are not `grid` by `grid`."""
    first, places = embedding[:, :1], embedding[:, 1:]
    side = round(places.shape[1] ** 0.5)
    if side == grid or side**2 != places.shape[1]:  # what is no square is refused when the weights are put in
        return first, places
    square = places.float().unflatten(1, (side, side)).permute(0, 3, 1, 2)
    return first, functional.interpolate(square, align_corners=False, **how).flatten(2).transpose(1, 2)


_POOL = "attn_pool_contrast."
_CONCH = (
    (rf"^{_POOL}query$", "query"),
    (rf"^{_POOL}ln_q\.", "query_norm."),
    (rf"^{_POOL}ln_k\.", "token_norm."),
    (rf"^{_POOL}(attn\.out_proj|to_out)\.", "out."),
    (rf"^{_POOL}attn\.([qkv])_proj_weight$", r"\1.weight"),
    (rf"^{_POOL}to_q\.", "q."),
    (r"^ln_contrast\.", "norm."),
)


def _from_conch(tensors: Tensors, network: nn.Module) -> Tensors:
    """The image part of CONCH (its text part is left out) or CONCH 1.5, whose attention has no biases."""
    named = {name.removeprefix("visual."): tensor for name, tensor in tensors.items()}
    for name, kind, letters in ((f"{_POOL}attn.in_proj_bias", "bias", "qkv"), (f"{_POOL}to_kv.weight", "weight", "kv")):
        if name in named:
            parts = named.pop(name).chunk(len(letters))
            named |= {f"{letter}.{kind}": part for letter, part in zip(letters, parts, strict=True)}
    for old, new in _CONCH:
        named = {re.sub(old, new, name): tensor for name, tensor in named.items()}
    trunk: Any = network.trunk
    if "trunk.pos_embed" in named:
        grid = trunk.patch_embed.grid_size[0]
        if f"{_POOL}to_q.weight" in tensors:  # its own program keeps 14 by 14, enlarged by a tenth of a patch too much
            named["trunk.pos_embed"] = torch.cat(
                _positions(named["trunk.pos_embed"], 14, size=(14, 14), mode="bilinear"), 1
            )
            how: dict[str, Any] = {"scale_factor": ((grid + 0.1) / 14,) * 2, "mode": "bicubic"}
        else:
            how = {"size": (grid, grid), "mode": "bilinear"}
        named["trunk.pos_embed"] = torch.cat(_positions(named["trunk.pos_embed"], grid, **how), 1)
    return named


def _from_swin(tensors: Tensors, _network: nn.Module) -> Tensors:
    """Halving was the end of a stage and is now the beginning of the next; masks and indices are computed."""
    computed = ("attn_mask", "relative_position_index")
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(computed)}
    return {re.sub(r"^layers\.(\d+)\.downsample", _next_stage, name): tensor for name, tensor in kept.items()}


def _next_stage(place: re.Match[str]) -> str:
    return f"layers.{int(place[1]) + 1}.downsample"


_LAYOUTS = {"timm": _from_timm, "transformers": _from_transformers, "conch": _from_conch, "swin": _from_swin}


def _feed_forward(row: EncoderInfo, tensors: Tensors) -> dict[str, Any]:
    """Arguments for gated layers where the weights have them and the row does not say so."""
    gated = [value for name, value in tensors.items() if name.endswith(".mlp.weights_in.weight")]
    if row.layout != "transformers" or not gated or "mlp_layer" in row.build:
        return {}
    return {"mlp_layer": "SwiGLUPacked", "act_layer": "silu", "mlp_ratio": gated[0].shape[0] / gated[0].shape[1]}


def _build_hub(row: EncoderInfo, weights: Path | None) -> Built:
    """A network of the hub with weights from this machine."""
    _prepare_torchvision(f"encoder {row.name}")
    path = find_weights(row, weights)
    if path is None:
        raise _no_weights(row)
    tensors = {name: value.float() for name, value in _read_tensors(path).items() if not name.startswith(row.head)}
    # without memory for random weights first; Swin computes some of its tables when it is built
    with torch.device("cpu" if row.layout == "swin" else "meta"):
        network = _hub_network(row, **_feed_forward(row, tensors))
    return network, row, _fit(network, _LAYOUTS[row.layout](tensors, network), row.head, path, assign=True)


BUILDERS = {**_BUILDERS, "hub": _build_hub}
