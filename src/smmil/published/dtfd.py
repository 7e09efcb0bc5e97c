"""The four state dicts of github.com/hrzhang1123/DTFD-MIL, saved in one file."""

import re

from smmil.published.layout import Layout, Shape, Tensors, count, linear

RESIDUAL = r"dim_reduction\.resBlocks\.(\d+)\.block\.([02])\.weight"


def _residual_name(match: re.Match[str]) -> str:
    return f"embed.{int(match[1]) + 2}.{'inner' if match[2] == '0' else 'outer'}.weight"


def _shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["embed.0.weight"].shape
    options = {
        "dim": dim,
        "att_dim": tensors["attention.project.weight"].shape[0],
        "residual_blocks": count(tensors, r"embed\.\d+\.inner\.weight"),
    }
    return Shape(in_dim, tensors["classifier.weight"].shape[0], options)


def _attention(theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
    return (
        linear(rf"{theirs}\.attention_V\.0", f"{ours}.project"),
        linear(rf"{theirs}\.attention_U\.0", f"{ours}.gate"),
        linear(rf"{theirs}\.attention_weights", f"{ours}.score"),
    )


LAYOUT = Layout(
    title="DTFD-MIL",
    model="dtfd_mil",
    rules=(
        (r"dim_reduction\.fc1\.weight", "embed.0.weight"),
        (RESIDUAL, _residual_name),
        *_attention("attention", "attention"),
        linear(r"classifier\.fc", "classifier"),
        *_attention(r"att_classifier\.attention", "tier2.attention"),
        linear(r"att_classifier\.classifier\.fc", "tier2.classifier"),
    ),
    shape=_shape,
)
