"""Networks of timm by name, and local copies of models from the Hugging Face hub; nothing is downloaded."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from smmil.encoders.table import EncoderInfo
from smmil.encoders.weight_files import find_weights, no_weights, weight_folders
from smmil.errors import ConfigError, DataError, MissingExtra

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
