"""TransMIL of github.com/szc19990412/TransMIL (attention of the nystrom-attention library)."""

from torch import Tensor

from smmil.published.layout import Layout, Shape, Tensors, linear


def _shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["embed.weight"].shape
    options = {"dim": dim, "heads": tensors["attention1.local.weight"].shape[0], "landmarks": dim // 2}
    return Shape(in_dim, tensors["head.weight"].shape[0], options)


def _flat_token(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"token": tensors["token"].flatten(0, 1)} if "token" in tensors else tensors


LAYOUT = Layout(
    title="TransMIL",
    model="trans_mil",
    rules=(
        linear(r"_fc1\.0", "embed"),
        (r"cls_token", "token"),
        linear(r"layer([12])\.norm", r"norm\1"),
        (r"layer([12])\.attn\.to_qkv\.weight", r"attention\1.qkv.weight"),
        linear(r"layer([12])\.attn\.to_out\.0", r"attention\1.out"),
        (r"layer([12])\.attn\.res_conv\.weight", r"attention\1.local.weight"),
        linear(r"pos_layer\.proj", "position.wide"),
        linear(r"pos_layer\.proj1", "position.middle"),
        linear(r"pos_layer\.proj2", "position.narrow"),
        linear(r"norm", "norm"),
        linear(r"_fc2", "head"),
    ),
    shape=_shape,
    arrange=_flat_token,
)
