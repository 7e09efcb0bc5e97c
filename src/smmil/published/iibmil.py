"""The checkpoint of github.com/TencentAILabHealthcare/IIB-MIL."""

import re

from smmil.published.layout import Layout, Shape, Tensors, count, linear

LAYER = r"patch_encoder\.trans_(\d+)\.layers\.0"
READING = r"wsi_aggregator\.decoder\.layers\.(\d+)"


def _mlp_name(match: re.Match[str]) -> str:
    """Of every step theirs holds linear, tanh, norm and dropout, ours linear, tanh and norm."""
    step, place = divmod(int(match[2]), 4)
    return f"blocks.{match[1]}.mlp.{3 * step + place}.{match[3]}"


def _attention(theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
    return (
        (rf"{theirs}\.in_proj_(weight|bias)", rf"{ours}.qkv.\2"),
        linear(rf"{theirs}\.out_proj", f"{ours}.merge"),
    )


def _shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["blocks.0.raw.weight"].shape
    options = {
        "dim": dim,
        "depth": count(tensors, r"blocks\.\d+\.raw\.weight"),
        "queries": tensors["decoder.queries"].shape[0],
        "hidden": tensors["blocks.0.layer.feed.expand.weight"].shape[0],
    }
    return Shape(in_dim, tensors["head.weight"].shape[0], options)


LAYOUT = Layout(
    title="IIB-MIL",
    model="iib_mil",
    rules=(
        (r"patch_encoder\.depth_(\d+)\.(\d+)\.(weight|bias)", _mlp_name),
        *_attention(rf"{LAYER}\.self_attn", r"blocks.\1.layer.attention"),
        linear(rf"{LAYER}\.linear1", r"blocks.\1.layer.feed.expand"),
        linear(rf"{LAYER}\.linear2", r"blocks.\1.layer.feed.contract"),
        linear(rf"{LAYER}\.norm1", r"blocks.\1.layer.norm"),
        linear(rf"{LAYER}\.norm2", r"blocks.\1.layer.feed.norm"),
        linear(r"patch_encoder\.res_(\d+)", r"blocks.\1.raw"),
        linear(r"patch_encoder\.mlp_head\.([01])", r"instance_head.\1"),
        *_attention(rf"{READING}\.self_attn", r"decoder.layers.\1.among"),
        *_attention(rf"{READING}\.cross_attn", r"decoder.layers.\1.across"),
        linear(rf"{READING}\.norm1", r"decoder.layers.\1.norm_across"),
        linear(rf"{READING}\.norm2", r"decoder.layers.\1.norm_among"),
        linear(rf"{READING}\.norm3", r"decoder.layers.\1.feed.norm"),
        linear(rf"{READING}\.linear1", r"decoder.layers.\1.feed.expand"),
        linear(rf"{READING}\.linear2", r"decoder.layers.\1.feed.contract"),
        (r"query_embed\.weight", "decoder.queries"),
        linear(r"wsi_classifier", "head"),
        (r"prototypes", "memory.prototypes"),
        (r"patch_encoder\.(patch_to_embedding|transformer_encoder|encode_\d+)\..*", None),  # built, never called
    ),
    shape=_shape,
)
