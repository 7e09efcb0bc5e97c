"""Classifier of github.com/vkola-lab/tmi2022."""

from torch import Tensor

from smmil.published.layout import Layout, Shape, Tensors, count, linear

BLOCK = r"transformer\.blocks\.(\d+)"
BATCH_NORM = r"conv1\.bn_layer\.(weight|bias|running_mean|running_var|num_batches_tracked)"


def _shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["embed.weight"].shape
    options = {
        "dim": dim,
        "clusters": tensors["assign.weight"].shape[0],
        "layers": count(tensors, rf"{BLOCK}\.qkv\.weight"),
    }
    return Shape(in_dim, tensors["transformer.head.weight"].shape[0], options)


def _turned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their graph convolution multiplies from the other side."""
    return tensors | {"embed.weight": tensors["embed.weight"].T} if "embed.weight" in tensors else tensors


LAYOUT = Layout(
    title="GTP",
    model="gtp",
    rules=(
        (r"cls_token", "token"),
        linear(r"conv1", "embed"),
        (BATCH_NORM, r"norm.\1"),
        linear(r"pool1", "assign"),
        linear(rf"{BLOCK}\.norm([12])", r"transformer.blocks.\1.norm\2"),
        (rf"{BLOCK}\.attn\.qkv\.weight", r"transformer.blocks.\1.qkv.weight"),
        linear(rf"{BLOCK}\.attn\.proj", r"transformer.blocks.\1.merge"),
        linear(rf"{BLOCK}\.mlp\.fc1", r"transformer.blocks.\1.expand"),
        linear(rf"{BLOCK}\.mlp\.fc2", r"transformer.blocks.\1.contract"),
        linear(r"transformer\.(norm|head)", r"transformer.\1"),
    ),
    shape=_shape,
    arrange=_turned,
)
