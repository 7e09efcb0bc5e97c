"""CLAM_SB and CLAM_MB of github.com/mahmoodlab/CLAM (gated attention, the default of the program)."""

import torch
from torch import Tensor

from smmil.published.layout import Layout, Shape, Tensors, count, linear

ATTENTION = r"attention_net\.[23]\.attention_"  # 3 with the dropout layer, 2 in earlier versions without


def _shape(tensors: Tensors) -> Shape:
    maps, width = tensors["attention.score.weight"].shape
    options = {
        "branches": "multi" if maps > 1 else "single",
        "size": "big" if width == 384 else "small",
        "dim": tensors["embed.weight"].shape[0],
    }
    return Shape(tensors["embed.weight"].shape[1], tensors["head.weight"].shape[0], options)


def _one_head(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The classifiers of several branches, one row each, as the rows of one layer."""
    for part in ("weight", "bias"):
        rows = [tensors.pop(f"head.{c}.{part}") for c in range(count(tensors, rf"head\.\d+\.{part}"))]
        if rows:
            tensors[f"head.{part}"] = torch.cat(rows)
    return tensors


LAYOUT = Layout(
    title="CLAM with gated attention",
    model="clam",
    rules=(
        linear(r"attention_net\.0", "embed"),
        linear(rf"{ATTENTION}a\.0", "attention.project"),
        linear(rf"{ATTENTION}b\.0", "attention.gate"),
        linear(rf"{ATTENTION}c", "attention.score"),
        linear(r"classifiers", "head"),
        linear(r"classifiers\.(\d+)", r"head.\1"),
        linear(r"instance_classifiers\.(\d+)", r"instance_heads.\1"),
        (r"instance_loss_fn\..*", None),  # buffers of the SVM loss
    ),
    shape=_shape,
    arrange=_one_head,
)
