"""Checkpoint layouts of the authors' programs: how their parameter names become ours, one table per program."""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from smmil.errors import DataError

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """The model a checkpoint fits: input width, number of classes and options of ours."""

    in_dim: int
    n_classes: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Names of one published state dict.

    title    whose layout it is                     model    our model with the same mathematics
    rules    (pattern, our name): the first pattern that matches a whole name counts, \\1 … refer to its groups, a
             function computes the name from the match; None drops a weight that the published program never uses
    shape    from the renamed tensors, the model they fit
    arrange  puts renamed tensors that are stored in another shape into ours
    """

    title: str
    model: str
    rules: tuple[tuple[str, str | Callable[[re.Match[str]], str] | None], ...]
    shape: Callable[[Tensors], Shape]
    arrange: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict

    def renamed(self, tensors: Tensors, where: str) -> tuple[dict[str, Tensor], list[str]]:
        """Tensors under our names, and the names that were dropped; an unknown name is an error."""
        found: dict[str, Tensor] = {}
        dropped, unknown = [], []
        for name, tensor in tensors.items():
            matched = self._our_name(name)
            if matched is None:
                unknown.append(name)
            elif matched == "":
                dropped.append(name)
            else:
                found[matched] = tensor
        if unknown or not found:
            raise DataError(f"{where}: not a checkpoint of {self.title}: {_listed(unknown or ['no weights at all'])}")
        return self.arrange(found), dropped

    def both_names(self, ours: str) -> str:
        """A weight by our name and, where the rules have it, by theirs."""
        for pattern, template in self.rules:
            match = re.fullmatch(_reversed(template), ours) if isinstance(template, str) else None
            if match:
                return f"{ours} (theirs: {_filled(pattern, match.groupdict())})"
        return ours

    def _our_name(self, name: str) -> str | None:
        for pattern, ours in self.rules:
            match = re.fullmatch(pattern, name)
            if match:
                return "" if ours is None else ours(match) if callable(ours) else match.expand(ours)
        return None


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"unexpected {', '.join(names[:4])}{more}"


def _reversed(template: str) -> str:
    """The pattern of our names that a template such as head.\\1.\\2 makes."""
    parts = re.split(r"\\(\d)", template)
    return "".join(f"(?P<g{part}>\\w+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))


def _filled(pattern: str, groups: Mapping[str, str]) -> str:
    """A pattern of their names with its groups filled in; optional parts are left out."""
    numbers = itertools.count(1)
    named = re.sub(r"\(\?:[^()]*\)\??", "", pattern)
    named = re.sub(r"\([^()]*\)", lambda found: groups.get(f"g{next(numbers)}", found[0]), named)
    return named.replace("\\.", ".")


def _linear(theirs: str, ours: str) -> tuple[str, str]:
    """The rule for a layer with weight and perhaps bias."""
    return rf"{theirs}\.(weight|bias)", rf"{ours}.\{_groups(theirs) + 1}"


def _groups(pattern: str) -> int:
    return re.compile(pattern).groups


def _count(tensors: Tensors, pattern: str) -> int:
    """How many names match."""
    return sum(re.fullmatch(pattern, name) is not None for name in tensors)


ATTENTION = r"attention_net\.[23]\.attention_"  # 3 with the dropout layer, 2 in earlier versions without


def _clam_shape(tensors: Tensors) -> Shape:
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
        rows = [tensors.pop(f"head.{c}.{part}") for c in range(_count(tensors, rf"head\.\d+\.{part}"))]
        if rows:
            tensors[f"head.{part}"] = torch.cat(rows)
    return tensors


CLAM = Layout(
    title="CLAM with gated attention",
    model="clam",
    rules=(
        _linear(r"attention_net\.0", "embed"),
        _linear(rf"{ATTENTION}a\.0", "attention.project"),
        _linear(rf"{ATTENTION}b\.0", "attention.gate"),
        _linear(rf"{ATTENTION}c", "attention.score"),
        _linear(r"classifiers", "head"),
        _linear(r"classifiers\.(\d+)", r"head.\1"),
        _linear(r"instance_classifiers\.(\d+)", r"instance_heads.\1"),
        (r"instance_loss_fn\..*", None),  # buffers of the SVM loss
    ),
    shape=_clam_shape,
    arrange=_one_head,
)


def _dsmil_shape(tensors: Tensors) -> Shape:
    query = "query.0.weight" if "query.0.weight" in tensors else "query.weight"
    options = {
        "average": False,  # the program reads the bag stream alone unless asked to average
        "nonlinear": query == "query.0.weight",
        "passing_v": "value.1.weight" in tensors,
        "query_dim": tensors[query].shape[0],
    }
    n_classes, in_dim = tensors["instance.weight"].shape
    return Shape(in_dim, n_classes, options)


def _flat_kernel(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The convolution over all features, (classes, classes, features), as a layer that reads all classes in a row."""
    return tensors | {"head.weight": tensors["head.weight"].flatten(1)} if "head.weight" in tensors else tensors


DSMIL = Layout(
    title="DSMIL",
    model="dsmil",
    rules=(
        _linear(r"i_classifier\.fc(?:\.0)?", "instance"),
        _linear(r"b_classifier\.q", "query"),
        _linear(r"b_classifier\.q\.([02])", r"query.\1"),
        _linear(r"b_classifier\.v\.1", "value.1"),
        _linear(r"b_classifier\.fcc", "head"),
        (r"i_classifier\.feature_extractor\..*", None),  # the encoder of the patches, if it was saved along
    ),
    shape=_dsmil_shape,
    arrange=_flat_kernel,
)


RESIDUAL = r"dim_reduction\.resBlocks\.(\d+)\.block\.([02])\.weight"


def _residual_name(match: re.Match[str]) -> str:
    return f"embed.{int(match[1]) + 2}.{'inner' if match[2] == '0' else 'outer'}.weight"


def _dtfd_shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["embed.0.weight"].shape
    options = {
        "dim": dim,
        "att_dim": tensors["attention.project.weight"].shape[0],
        "residual_blocks": _count(tensors, r"embed\.\d+\.inner\.weight"),
    }
    return Shape(in_dim, tensors["classifier.weight"].shape[0], options)


def _attention(theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
    return (
        _linear(rf"{theirs}\.attention_V\.0", f"{ours}.project"),
        _linear(rf"{theirs}\.attention_U\.0", f"{ours}.gate"),
        _linear(rf"{theirs}\.attention_weights", f"{ours}.score"),
    )


DTFD = Layout(
    title="DTFD-MIL",
    model="dtfd_mil",
    rules=(
        (r"dim_reduction\.fc1\.weight", "embed.0.weight"),
        (RESIDUAL, _residual_name),
        *_attention("attention", "attention"),
        _linear(r"classifier\.fc", "classifier"),
        *_attention(r"att_classifier\.attention", "tier2.attention"),
        _linear(r"att_classifier\.classifier\.fc", "tier2.classifier"),
    ),
    shape=_dtfd_shape,
)


def _transmil_shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["embed.weight"].shape
    options = {"dim": dim, "heads": tensors["attention1.local.weight"].shape[0], "landmarks": dim // 2}
    return Shape(in_dim, tensors["head.weight"].shape[0], options)


def _flat_token(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"token": tensors["token"].flatten(0, 1)} if "token" in tensors else tensors


TRANSMIL = Layout(
    title="TransMIL",
    model="trans_mil",
    rules=(
        _linear(r"_fc1\.0", "embed"),
        (r"cls_token", "token"),
        _linear(r"layer([12])\.norm", r"norm\1"),
        (r"layer([12])\.attn\.to_qkv\.weight", r"attention\1.qkv.weight"),
        _linear(r"layer([12])\.attn\.to_out\.0", r"attention\1.out"),
        (r"layer([12])\.attn\.res_conv\.weight", r"attention\1.local.weight"),
        _linear(r"pos_layer\.proj", "position.wide"),
        _linear(r"pos_layer\.proj1", "position.middle"),
        _linear(r"pos_layer\.proj2", "position.narrow"),
        _linear(r"norm", "norm"),
        _linear(r"_fc2", "head"),
    ),
    shape=_transmil_shape,
    arrange=_flat_token,
)


def _norm_name(match: re.Match[str]) -> str:
    return f"norms.{int(match[1]) - 1}.{match[2]}"


def _patchgcn_shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["embed.0.weight"].shape
    options = {
        "dim": dim,
        "layers": _count(tensors, r"convs\.\d+\.t"),
        "conv_bias": "convs.0.mlp.0.bias" in tensors,
        "knn": 8,  # the published graphs: a patch hears those that count it among their 8 nearest
    }
    return Shape(in_dim, tensors["head.weight"].shape[0], options)


PATCHGCN = Layout(
    title="Patch-GCN",
    model="patch_gcn",
    rules=(
        _linear(r"fc\.0", "embed.0"),
        (r"layers\.(\d+)\.conv\.(?:aggr_module\.)?t", r"convs.\1.t"),
        (r"layers\.\d+\.conv\.eps", None),  # a constant of the layer
        _linear(r"layers\.(\d+)\.conv\.mlp\.([013])", r"convs.\1.mlp.\2"),
        (r"layers\.0\.norm\.(?:weight|bias)", None),  # the first layer is applied without its norm
        (r"layers\.(\d+)\.norm\.(weight|bias)", _norm_name),
        _linear(r"path_phi\.0", "joint.0"),
        _linear(r"path_attention_head\.attention_a\.0", "attention.project"),
        _linear(r"path_attention_head\.attention_b\.0", "attention.gate"),
        _linear(r"path_attention_head\.attention_c", "attention.score"),
        _linear(r"path_rho\.0", "bag.0"),
        _linear(r"classifier", "head"),
    ),
    shape=_patchgcn_shape,
)


PARTS = {r"channel_reduce\.reduce\.attention": "reduce", r"blocks\.(\d+)": r"blocks.\1"}
PARTS |= {rf"aspp\.p{level + 1}\.attention": f"levels.{level}" for level in range(3)}
LAYERS = {"norm1": "norm1", "norm2": "norm2", r"attn\.qkv": "qkv", r"attn\.proj": "out"}
LAYERS |= {r"mlp\.fc1": "mlp.0", r"mlp\.fc2": "mlp.3"}


def _setmil_shape(tensors: Tensors) -> Shape:
    options = {
        "reduced": tensors["reduce.out.weight"].shape[0],
        "level_dim": tensors["levels.0.out.weight"].shape[0],
        "depth": _count(tensors, r"blocks\.\d+\.table"),
        "heads": tensors["blocks.0.table"].shape[0],
    }
    return Shape(tensors["reduce.norm1.weight"].shape[0] // 25, tensors["head.weight"].shape[0], options)


SETMIL = Layout(
    title="SETMIL",
    model="set_mil",
    rules=(
        (r"cls_token", "token"),
        (r"pos_embed", None),  # a table of sines, not trained, computed here
        *(
            _linear(rf"{part}\.{layer}", f"{ours}.{name}")
            for part, ours in PARTS.items()
            for layer, name in LAYERS.items()
        ),
        (r"blocks\.(\d+)\.attn\.rpe_q\.lookup_table_bias", r"blocks.\1.table"),
        (r"(norm|head)\.(weight|bias)", r"\1.\2"),
    ),
    shape=_setmil_shape,
    arrange=_flat_token,
)


BLOCK = r"transformer\.blocks\.(\d+)"
BATCH_NORM = r"conv1\.bn_layer\.(weight|bias|running_mean|running_var|num_batches_tracked)"


def _gtp_shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["embed.weight"].shape
    options = {
        "dim": dim,
        "clusters": tensors["assign.weight"].shape[0],
        "layers": _count(tensors, rf"{BLOCK}\.qkv\.weight"),
    }
    return Shape(in_dim, tensors["transformer.head.weight"].shape[0], options)


def _turned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their graph convolution multiplies from the other side."""
    return tensors | {"embed.weight": tensors["embed.weight"].T} if "embed.weight" in tensors else tensors


GTP = Layout(
    title="GTP",
    model="gtp",
    rules=(
        (r"cls_token", "token"),
        _linear(r"conv1", "embed"),
        (BATCH_NORM, r"norm.\1"),
        _linear(r"pool1", "assign"),
        _linear(rf"{BLOCK}\.norm([12])", r"transformer.blocks.\1.norm\2"),
        (rf"{BLOCK}\.attn\.qkv\.weight", r"transformer.blocks.\1.qkv.weight"),
        _linear(rf"{BLOCK}\.attn\.proj", r"transformer.blocks.\1.merge"),
        _linear(rf"{BLOCK}\.mlp\.fc1", r"transformer.blocks.\1.expand"),
        _linear(rf"{BLOCK}\.mlp\.fc2", r"transformer.blocks.\1.contract"),
        _linear(r"transformer\.(norm|head)", r"transformer.\1"),
    ),
    shape=_gtp_shape,
    arrange=_turned,
)


LAYER = r"patch_encoder\.trans_(\d+)\.layers\.0"
READING = r"wsi_aggregator\.decoder\.layers\.(\d+)"


def _mlp_name(match: re.Match[str]) -> str:
    """Of every step theirs holds linear, tanh, norm and dropout, ours linear, tanh and norm."""
    step, place = divmod(int(match[2]), 4)
    return f"blocks.{match[1]}.mlp.{3 * step + place}.{match[3]}"


def _attention_iibmil(theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
    return (
        (rf"{theirs}\.in_proj_(weight|bias)", rf"{ours}.qkv.\2"),
        _linear(rf"{theirs}\.out_proj", f"{ours}.merge"),
    )


def _iibmil_shape(tensors: Tensors) -> Shape:
    dim, in_dim = tensors["blocks.0.raw.weight"].shape
    options = {
        "dim": dim,
        "depth": _count(tensors, r"blocks\.\d+\.raw\.weight"),
        "queries": tensors["decoder.queries"].shape[0],
        "hidden": tensors["blocks.0.layer.feed.expand.weight"].shape[0],
    }
    return Shape(in_dim, tensors["head.weight"].shape[0], options)


IIBMIL = Layout(
    title="IIB-MIL",
    model="iib_mil",
    rules=(
        (r"patch_encoder\.depth_(\d+)\.(\d+)\.(weight|bias)", _mlp_name),
        *_attention_iibmil(rf"{LAYER}\.self_attn", r"blocks.\1.layer.attention"),
        _linear(rf"{LAYER}\.linear1", r"blocks.\1.layer.feed.expand"),
        _linear(rf"{LAYER}\.linear2", r"blocks.\1.layer.feed.contract"),
        _linear(rf"{LAYER}\.norm1", r"blocks.\1.layer.norm"),
        _linear(rf"{LAYER}\.norm2", r"blocks.\1.layer.feed.norm"),
        _linear(r"patch_encoder\.res_(\d+)", r"blocks.\1.raw"),
        _linear(r"patch_encoder\.mlp_head\.([01])", r"instance_head.\1"),
        *_attention_iibmil(rf"{READING}\.self_attn", r"decoder.layers.\1.among"),
        *_attention_iibmil(rf"{READING}\.cross_attn", r"decoder.layers.\1.across"),
        _linear(rf"{READING}\.norm1", r"decoder.layers.\1.norm_across"),
        _linear(rf"{READING}\.norm2", r"decoder.layers.\1.norm_among"),
        _linear(rf"{READING}\.norm3", r"decoder.layers.\1.feed.norm"),
        _linear(rf"{READING}\.linear1", r"decoder.layers.\1.feed.expand"),
        _linear(rf"{READING}\.linear2", r"decoder.layers.\1.feed.contract"),
        (r"query_embed\.weight", "decoder.queries"),
        _linear(r"wsi_classifier", "head"),
        (r"prototypes", "memory.prototypes"),
        (r"patch_encoder\.(patch_to_embedding|transformer_encoder|encode_\d+)\..*", None),  # built, never called
    ),
    shape=_iibmil_shape,
)

PROGRAMS = {
    "clam": CLAM,
    "dsmil": DSMIL,
    "dtfd": DTFD,
    "transmil": TRANSMIL,
    "patchgcn": PATCHGCN,
    "setmil": SETMIL,
    "gtp": GTP,
    "iibmil": IIBMIL,
}
