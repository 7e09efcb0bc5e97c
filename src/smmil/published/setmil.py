"""The checkpoint of github.com/TencentAILabHealthcare/SETMIL."""

from torch import Tensor

from smmil.published.layout import Layout, Shape, Tensors, count, linear

PARTS = {r"channel_reduce\.reduce\.attention": "reduce", r"blocks\.(\d+)": r"blocks.\1"}
PARTS |= {rf"aspp\.p{level + 1}\.attention": f"levels.{level}" for level in range(3)}
LAYERS = {"norm1": "norm1", "norm2": "norm2", r"attn\.qkv": "qkv", r"attn\.proj": "out"}
LAYERS |= {r"mlp\.fc1": "mlp.0", r"mlp\.fc2": "mlp.3"}


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
        *(
            linear(rf"{part}\.{layer}", f"{ours}.{name}")
            for part, ours in PARTS.items()
            for layer, name in LAYERS.items()
        ),
        (r"blocks\.(\d+)\.attn\.rpe_q\.lookup_table_bias", r"blocks.\1.table"),
        (r"(norm|head)\.(weight|bias)", r"\1.\2"),
    ),
    shape=_shape,
    arrange=_flat_token,
)
