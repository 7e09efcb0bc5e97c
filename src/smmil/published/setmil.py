"""The checkpoint of github.com/TencentAILabHealthcare/SETMIL."""

import re

from torch import Tensor

from smmil.published.layout import Layout, Shape, Tensors, count

PART = r"(channel_reduce\.reduce\.attention|aspp\.p(\d)\.attention|blocks\.(\d+))"
LAYER = r"(norm[12]|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.(weight|bias)"
OURS = {"attn.qkv": "qkv", "attn.proj": "out", "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.3"}


def _name(match: re.Match[str]) -> str:
    _, level, block, layer, kind = match.groups()
    part = f"levels.{int(level) - 1}" if level else f"blocks.{block}" if block else "reduce"
    return f"{part}.{OURS.get(layer, layer)}.{kind}"


def _shape(tensors: Tensors) -> Shape:
    options = {
        "reduced": tensors["reduce.out.weight"].shape[0],
        "level_dim": tensors["levels.0.out.weight"].shape[0],
        "depth": count(tensors, r"blocks\.\d+\.table"),
        "heads": tensors["blocks.0.table"].shape[0],
    }
    return Shape(tensors["reduce.norm1.weight"].shape[0] // 25, tensors["head.weight"].shape[0], options)


def _flat_token(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"token": tensors["token"].flatten(0, 1)} if "token" in tensors else tensors


LAYOUT = Layout(
    title="SETMIL",
    model="set_mil",
    rules=(
        (r"cls_token", "token"),
        (r"pos_embed", None),  # a table of sines, not trained, computed anew here
        (rf"{PART}\.{LAYER}", _name),
        (r"blocks\.(\d+)\.attn\.rpe_q\.lookup_table_bias", r"blocks.\1.table"),
        (r"(norm|head)\.(weight|bias)", r"\1.\2"),
    ),
    shape=_shape,
    arrange=_flat_token,
)
