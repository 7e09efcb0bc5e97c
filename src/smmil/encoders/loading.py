"""From an encoder's name to a working encoder: local weight files only, nothing is downloaded or executed."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from smmil.encoders.encoder import Encoder
from smmil.encoders.networks import BUILDERS
from smmil.encoders.table import EncoderInfo, encoder_info
from smmil.errors import ConfigError, DataError
from smmil.runtime import choose_device

_REVISION = 12
# Networks halve their input five times.
_SMALLEST = 32


def load_encoder(
    name: str,
    *,
    weights: str | Path | None = None,
    device: str = "auto",
    autocast: bool = False,
    pixels: int | None = None,
) -> Encoder:
    """The encoder called `name`, ready to encode; never downloads anything.

    weights   a file of weights (or the folder of a hub model) instead of the usual places
    autocast  compute in 16 bits
    pixels    another input side than the usual one: smaller is faster; not every network allows it
    """
    row = encoder_info(name)
    chosen = choose_device(device)
    usual = row if pixels is None else replace(row, pixels=pixels)
    network, full, digest = BUILDERS[row.family](usual, None if weights is None else Path(weights).expanduser())
    network = network.eval().requires_grad_(False).to(chosen)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert full.pixels is not None  # the builders fill these in
    assert full.mean is not None
    assert full.std is not None
    return Encoder(
        id=f"{name}@{digest[:_REVISION]}" + ("" if pixels in (None, row.pixels) else f"/{pixels}px"),
        dim=_dim(network, full, chosen),
        pixels=full.pixels,
        mean=full.mean,
        std=full.std,
        mpp=full.mpp,
        licence=full.licence,
        source=full.source,
        network=network,
        device=chosen,
        autocast=autocast,
    )


def _dim(network: nn.Module, row: EncoderInfo, device: torch.device) -> int:
    """Length of the features, found by trying the network on one empty image."""
    pixels = row.pixels or 0
    if pixels < _SMALLEST:
        raise ConfigError(f"encoder {row.name}: pixels={pixels} is too small; use at least {_SMALLEST}")
    try:
        with torch.inference_mode():
            features = network(torch.zeros(1, 3, pixels, pixels, device=device))
    except (RuntimeError, AssertionError, ValueError) as problem:
        raise ConfigError(f"encoder {row.name}: cannot take pixels={pixels} ({problem}); leave pixels out") from None
    if features.ndim != 2 or row.dim not in (None, features.shape[1]):
        raise DataError(f"encoder {row.name}: gives {tuple(features.shape)}, not one vector per tile; choose another")
    return int(features.shape[1])
