"""Checkpoint layouts of CLAM, TransMIL and the other programs: parameter names mapped to ours, a table for each."""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from smmil.errors import DataError

Tensors = Mapping[str, Tensor]
# Layers of gated attention and of a feed-forward block, theirs and ours.
_GATED = {r"a\.0": "project", r"b\.0": "gate", "c": "score"}
_DTFD_GATED = {r"V\.0": "project", r"U\.0": "gate", "weights": "score"}
_FEED = {"linear1": "expand", "linear2": "contract"}


class _Shape(NamedTuple):
    """The model a checkpoint fits: input width, number of classes and options of ours."""

    in_dim: int
    n_classes: int
    options: dict[str, Any]


@dataclass(frozen=True)
class _Layout:
    """Names of one published state dict.

    title    whose layout it is                     model    our model with the same mathematics
    rules    (pattern, our name): the first pattern that matches a whole name counts, \\1 … refer to its groups, a
             function computes the name from the match; None drops a weight that the published program never uses
    shape    from the renamed tensors, and those dropped by their own names, the model they fit
    arrange  puts renamed tensors that are stored in another shape into ours
    link     what makes probabilities of several logits in the program: softmax, or a sigmoid per class
    open     options that no checkpoint tells, as the program sets them unless asked otherwise
    """

    title: str
    model: str
    rules: tuple[tuple[str, str | Callable[[re.Match[str]], str] | None], ...]
    shape: Callable[[Tensors], _Shape]
    arrange: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict
    link: str = "softmax"
    open: Mapping[str, Any] = field(default_factory=dict)

    def renamed(self, tensors: Tensors, where: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors under our names, and those dropped under theirs; an unknown name is an error."""
        found: dict[str, Tensor] = {}
        dropped: dict[str, Tensor] = {}
        unknown: list[str] = []
        for name, tensor in tensors.items():
            ours = self._our_name(name)
            if ours is None:
                unknown.append(name)
            else:
                (found if ours else dropped)[ours or name] = tensor
        if unknown or not found:
            names = unknown or ["no weights at all"]
            listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise DataError(f"{where}: not a checkpoint of {self.title}: unexpected {listed}")
        return self.arrange(found), dropped

    def both_names(self, ours: str) -> str:
        """A weight by our name and, where the rules have it, by theirs."""
        for pattern, template in self.rules:
            parts = re.split(r"\\(\d)", template) if isinstance(template, str) else []  # such as head.\1.\2
            made = "".join(f"(?P<g{part}>\\w+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))
            if match := re.fullmatch(made, ours):
                return f"{ours} (theirs: {_filled(pattern, match.groupdict())})"
        return ours

    def _our_name(self, name: str) -> str | None:
        """Our name; empty for a weight that is dropped, None where no rule knows the name."""
        for pattern, ours in self.rules:
            if match := re.fullmatch(pattern, name):
                return "" if ours is None else ours(match) if callable(ours) else match.expand(ours)
        return None


def _filled(pattern: str, groups: Mapping[str, str]) -> str:
    """A pattern of their names with its groups filled in; optional parts are left out."""
    numbers = itertools.count(1)
    named = re.sub(r"\(\?:[^()]*\)\??", "", pattern)
    named = re.sub(r"\([^()]*\)", lambda found: groups.get(f"g{next(numbers)}", found[0]), named)
    return named.replace("\\.", ".")


def _linear(theirs: str, ours: str) -> tuple[str, str]:
    """The rule for a layer with weight and perhaps bias."""
    return rf"{theirs}\.(weight|bias)", rf"{ours}.\{re.compile(theirs).groups + 1}"


def _linears(theirs: str, ours: str, layers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The rules for several layers with weight and perhaps bias, their names after a common beginning."""
    return [_linear(f"{theirs}{their_layer}", f"{ours}{layer}") for their_layer, layer in layers.items()]


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """A function that changes one tensor, where it is there."""
    return lambda tensors: tensors | {name: change(tensors[name])} if name in tensors else tensors


def _count(tensors: Tensors, pattern: str) -> int:
    """How many names match."""
    return sum(re.fullmatch(pattern, name) is not None for name in tensors)


def _clam_shape(tensors: Tensors) -> _Shape:
    maps, width = tensors["attention.score.weight"].shape
    dim, in_dim = tensors["embed.weight"].shape
    size, branches = "big" if width == 384 else "small", "multi" if maps > 1 else "single"
    return _Shape(in_dim, tensors["head.weight"].shape[0], {"branches": branches, "size": size, "dim": dim})


def _one_head(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The classifiers of several branches, one row each, as the rows of one layer."""
    for part in ("weight", "bias"):
        rows = [tensors.pop(f"head.{c}.{part}") for c in range(_count(tensors, rf"head\.\d+\.{part}"))]
        if rows:
            tensors[f"head.{part}"] = torch.cat(rows)
    return tensors


CLAM = _Layout(
    title="CLAM with gated attention",
    model="clam",
    rules=(
        _linear(r"attention_net\.0", "embed"),
        # 3 with the dropout layer, 2 in earlier versions without
        *_linears(r"attention_net\.[23]\.attention_", "attention.", _GATED),
        _linear(r"classifiers", "head"),
        _linear(r"classifiers\.(\d+)", r"head.\1"),
        _linear(r"instance_classifiers\.(\d+)", r"instance_heads.\1"),
        (r"instance_loss_fn\..*", None),  # buffers of the SVM loss
    ),
    shape=_clam_shape,
    arrange=_one_head,
)


def _dsmil_shape(tensors: Tensors) -> _Shape:
    query = "query.0.weight" if "query.0.weight" in tensors else "query.weight"
    nonlinear, passing_v = query == "query.0.weight", "value.1.weight" in tensors
    # The program reads the bag stream alone unless asked to average.
    options: dict[str, Any] = {"average": False, "nonlinear": nonlinear, "passing_v": passing_v}
    options["query_dim"] = tensors[query].shape[0]
    n_classes, in_dim = tensors["instance.weight"].shape
    return _Shape(in_dim, n_classes, options)


DSMIL = _Layout(
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
    # The convolution over all features, (classes, classes, features), as a layer that reads all classes in a row.
    arrange=_changed("head.weight", lambda kernel: kernel.flatten(1)),
    link="sigmoid",
)


def _dtfd_shape(tensors: Tensors) -> _Shape:
    dim, in_dim = tensors["embed.0.weight"].shape
    options = {"dim": dim, "att_dim": tensors["attention.project.weight"].shape[0]}
    options["residual_blocks"] = _count(tensors, r"embed\.\d+\.inner\.weight")
    return _Shape(in_dim, tensors["classifier.weight"].shape[0], options)


DTFD = _Layout(
    title="DTFD-MIL",
    model="dtfd_mil",
    rules=(
        (r"dim_reduction\.fc1\.weight", "embed.0.weight"),
        (
            r"dim_reduction\.resBlocks\.(\d+)\.block\.([02])\.weight",
            lambda match: f"embed.{int(match[1]) + 2}.{'inner' if match[2] == '0' else 'outer'}.weight",
        ),
        *_linears(r"attention\.attention_", "attention.", _DTFD_GATED),
        _linear(r"classifier\.fc", "classifier"),
        *_linears(r"att_classifier\.attention\.attention_", "tier2.attention.", _DTFD_GATED),
        _linear(r"att_classifier\.classifier\.fc", "tier2.classifier"),
    ),
    shape=_dtfd_shape,
    open={"distill": "afs", "pseudo_bags": 4, "k": 1, "splits": 1},
)


def _transmil_shape(tensors: Tensors) -> _Shape:
    dim, in_dim = tensors["embed.weight"].shape
    options = {"dim": dim, "heads": tensors["attention1.local.weight"].shape[0], "landmarks": dim // 2}
    return _Shape(in_dim, tensors["head.weight"].shape[0], options)


TRANSMIL = _Layout(
    title="TransMIL",
    model="trans_mil",
    rules=(
        _linear(r"_fc1\.0", "embed"),
        (r"cls_token", "token"),
        _linear(r"layer([12])\.norm", r"norm\1"),
        (r"layer([12])\.attn\.to_qkv\.weight", r"attention\1.qkv.weight"),
        _linear(r"layer([12])\.attn\.to_out\.0", r"attention\1.out"),
        (r"layer([12])\.attn\.res_conv\.weight", r"attention\1.local.weight"),
        *_linears(r"pos_layer\.", "position.", {"proj": "wide", "proj1": "middle", "proj2": "narrow"}),
        _linear(r"norm", "norm"),
        _linear(r"_fc2", "head"),
    ),
    shape=_transmil_shape,
    arrange=_changed("token", lambda token: token.flatten(0, 1)),
)


def _patchgcn_shape(tensors: Tensors) -> _Shape:
    dim, in_dim = tensors["embed.0.weight"].shape
    layers, bias = _count(tensors, r"convs\.\d+\.t"), "convs.0.mlp.0.bias" in tensors
    options = {"dim": dim, "layers": layers, "conv_bias": bias}
    return _Shape(in_dim, tensors["head.weight"].shape[0], options)


PATCHGCN = _Layout(
    title="Patch-GCN",
    model="patch_gcn",
    rules=(
        _linear(r"fc\.0", "embed.0"),
        (r"layers\.(\d+)\.conv\.(?:aggr_module\.)?t", r"convs.\1.t"),
        _linear(r"layers\.(\d+)\.conv\.mlp\.4", r"convs.\1.mlp.3"),  # behind a dropout layer in theirs
        _linear(r"layers\.(\d+)\.conv\.mlp\.([01])", r"convs.\1.mlp.\2"),
        (r"layers\.0\.norm\.(?:weight|bias)", None),  # the first layer is applied without its norm
        (r"layers\.(\d+)\.norm\.(weight|bias)", lambda match: f"norms.{int(match[1]) - 1}.{match[2]}"),
        _linear(r"path_phi\.0", "joint.0"),
        *_linears(r"path_attention_head\.attention_", "attention.", _GATED),
        _linear(r"path_rho\.0", "bag.0"),
        _linear(r"classifier", "head"),
    ),
    shape=_patchgcn_shape,
    link="sigmoid",  # hazards, one per interval of time
    open={"knn": 8},  # the published graphs: a patch hears those that count it among their 8 nearest
)


_PARTS = {r"channel_reduce\.reduce\.attention\.": "reduce.", r"blocks\.(\d+)\.": r"blocks.\1."}
_PARTS |= {rf"aspp\.p{level + 1}\.attention\.": f"levels.{level}." for level in range(3)}
_LAYERS = {"norm1": "norm1", "norm2": "norm2", r"attn\.qkv": "qkv", r"attn\.proj": "out"}
_LAYERS |= {r"mlp\.fc1": "mlp.0", r"mlp\.fc2": "mlp.3"}


def _setmil_shape(tensors: Tensors) -> _Shape:
    options = {"reduced": tensors["reduce.out.weight"].shape[0], "level_dim": tensors["levels.0.out.weight"].shape[0]}
    options |= {"depth": _count(tensors, r"blocks\.\d+\.table"), "heads": tensors["blocks.0.table"].shape[0]}
    if options["heads"] == 1:
        raise DataError("all heads share one table of positions, and nothing says how many there are; not supported")
    places = tensors["pos_embed"].flatten(0, 1).double()
    options["size"] = 2 * math.isqrt(len(places) - 1)
    if (options["size"] // 2) ** 2 + 1 != len(places):
        raise DataError(f"pos_embed has {len(places)} rows, expected (S/2)² + 1 for a map of S x S")
    if not torch.allclose(places[:, 0], torch.arange(len(places), dtype=torch.float64).sin(), atol=1e-3):
        raise DataError("pos_embed is no table of sines, as the program computes it; not supported")
    return _Shape(tensors["reduce.norm1.weight"].shape[0] // 25, tensors["head.weight"].shape[0], options)


SETMIL = _Layout(
    title="SETMIL",
    model="set_mil",
    rules=(
        (r"cls_token", "token"),
        (r"pos_embed", None),  # a table of sines, not trained, computed here; it tells the size of the map
        *(rule for theirs, ours in _PARTS.items() for rule in _linears(theirs, ours, _LAYERS)),
        (r"blocks\.(\d+)\.attn\.rpe_q\.lookup_table_bias", r"blocks.\1.table"),
        (r"(norm|head)\.(weight|bias)", r"\1.\2"),
    ),
    shape=_setmil_shape,
    arrange=_changed("token", lambda token: token.flatten(0, 1)),
    open={"crop": True, "fold": "grid"},
)


_BLOCK = r"transformer\.blocks\.(\d+)"


def _gtp_shape(tensors: Tensors) -> _Shape:
    dim, in_dim = tensors["embed.weight"].shape
    clusters, layers = tensors["assign.weight"].shape[0], _count(tensors, rf"{_BLOCK}\.qkv\.weight")
    options = {"dim": dim, "clusters": clusters, "layers": layers}
    return _Shape(in_dim, tensors["transformer.head.weight"].shape[0], options)


GTP = _Layout(
    title="GTP",
    model="gtp",
    rules=(
        (r"cls_token", "token"),
        _linear(r"conv1", "embed"),
        (r"conv1\.bn_layer\.(weight|bias|running_mean|running_var|num_batches_tracked)", r"norm.\1"),
        _linear(r"pool1", "assign"),
        _linear(rf"{_BLOCK}\.norm([12])", r"transformer.blocks.\1.norm\2"),
        (rf"{_BLOCK}\.attn\.qkv\.weight", r"transformer.blocks.\1.qkv.weight"),
        _linear(rf"{_BLOCK}\.attn\.proj", r"transformer.blocks.\1.merge"),
        *_linears(rf"{_BLOCK}\.mlp\.", r"transformer.blocks.\1.", {"fc1": "expand", "fc2": "contract"}),
        _linear(r"transformer\.(norm|head)", r"transformer.\1"),
    ),
    shape=_gtp_shape,
    arrange=_changed("embed.weight", lambda weight: weight.T),  # their convolution multiplies from the other side
)


_LAYER = r"patch_encoder\.trans_(\d+)\.layers\.0"
_READING = r"wsi_aggregator\.decoder\.layers\.(\d+)"


def _mlp_name(match: re.Match[str]) -> str:
    """Of every step theirs holds linear, tanh, norm and dropout, ours linear, tanh and norm."""
    step, place = divmod(int(match[2]), 4)
    return f"blocks.{match[1]}.mlp.{3 * step + place}.{match[3]}"


def _attention_iibmil(theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
    return (
        (rf"{theirs}\.in_proj_(weight|bias)", rf"{ours}.qkv.\2"),
        _linear(rf"{theirs}\.out_proj", f"{ours}.merge"),
    )


def _iibmil_shape(tensors: Tensors) -> _Shape:
    dim, in_dim = tensors["blocks.0.raw.weight"].shape
    options = {"dim": dim, "depth": _count(tensors, r"blocks\.\d+\.raw\.weight")}
    options["queries"] = tensors["decoder.queries"].shape[0]
    options["hidden"] = tensors["blocks.0.layer.feed.expand.weight"].shape[0]
    return _Shape(in_dim, tensors["head.weight"].shape[0], options)


IIBMIL = _Layout(
    title="IIB-MIL",
    model="iib_mil",
    rules=(
        (r"patch_encoder\.depth_(\d+)\.(\d+)\.(weight|bias)", _mlp_name),
        *_attention_iibmil(rf"{_LAYER}\.self_attn", r"blocks.\1.layer.attention"),
        *_linears(rf"{_LAYER}\.", r"blocks.\1.layer.feed.", _FEED),
        *_linears(rf"{_LAYER}\.", r"blocks.\1.layer.", {"norm1": "norm", "norm2": "feed.norm"}),
        _linear(r"patch_encoder\.res_(\d+)", r"blocks.\1.raw"),
        _linear(r"patch_encoder\.mlp_head\.([01])", r"instance_head.\1"),
        *_attention_iibmil(rf"{_READING}\.self_attn", r"decoder.layers.\1.among"),
        *_attention_iibmil(rf"{_READING}\.cross_attn", r"decoder.layers.\1.across"),
        *_linears(rf"{_READING}\.", r"decoder.layers.\1.", {"norm1": "norm_across", "norm2": "norm_among"}),
        *_linears(rf"{_READING}\.", r"decoder.layers.\1.feed.", {"norm3": "norm", **_FEED}),
        (r"query_embed\.weight", "decoder.queries"),
        _linear(r"wsi_classifier", "head"),
        (r"prototypes", "memory.prototypes"),
        (r"patch_encoder\.(patch_to_embedding|transformer_encoder|encode_\d+)\..*", None),  # built, never called
    ),
    shape=_iibmil_shape,
)

PROGRAMS = {"clam": CLAM, "dsmil": DSMIL, "dtfd": DTFD, "transmil": TRANSMIL}
PROGRAMS |= {"patchgcn": PATCHGCN, "setmil": SETMIL, "gtp": GTP, "iibmil": IIBMIL}
