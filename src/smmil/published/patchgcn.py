"""PatchGCN_Surv of github.com/mahmoodlab/Patch-GCN, with the GENConv of PyTorch Geometric before or since 2.2."""

import re

from smmil.published.layout import Layout, Shape, Tensors, count, linear


def _norm_name(match: re.Match[str]) -> str:
    return f"norms.{int(match[1]) - 1}.{match[2]}"


def _shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["embed.0.weight"].shape
    options = {
        "dim": dim,
        "layers": count(tensors, r"convs\.\d+\.t"),
        "conv_bias": "convs.0.mlp.0.bias" in tensors,
        "knn": 8,  # the published graphs: a patch hears those that count it among their 8 nearest
    }
    return Shape(in_dim, tensors["head.weight"].shape[0], options)


LAYOUT = Layout(
    title="Patch-GCN",
    model="patch_gcn",
    rules=(
        linear(r"fc\.0", "embed.0"),
        (r"layers\.(\d+)\.conv\.(?:aggr_module\.)?t", r"convs.\1.t"),
        (r"layers\.\d+\.conv\.eps", None),  # a constant of the layer
        linear(r"layers\.(\d+)\.conv\.mlp\.([013])", r"convs.\1.mlp.\2"),
        (r"layers\.0\.norm\.(?:weight|bias)", None),  # the first layer is applied without its norm
        (r"layers\.(\d+)\.norm\.(weight|bias)", _norm_name),
        linear(r"path_phi\.0", "joint.0"),
        linear(r"path_attention_head\.attention_a\.0", "attention.project"),
        linear(r"path_attention_head\.attention_b\.0", "attention.gate"),
        linear(r"path_attention_head\.attention_c", "attention.score"),
        linear(r"path_rho\.0", "bag.0"),
        linear(r"classifier", "head"),
    ),
    shape=_shape,
)
