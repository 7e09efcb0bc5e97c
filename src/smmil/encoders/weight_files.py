"""Finding and reading the weights of a network: local files only, nothing in them is ever run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smmil.encoders.table import EncoderInfo
from smmil.errors import DataError
from smmil.weights import tensors_digest

# What training programs put around the weights, and in front of their names.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "teacher")
_PREFIXES = ("module.", "backbone.")
_COUNTER = "num_batches_tracked"
_NAMED = 5


def weight_folders() -> list[Path]:
    """Where weights are looked for: $SMMIL_WEIGHTS when it is set, then torch's own folder of checkpoints."""
    own = os.environ.get("SMMIL_WEIGHTS")
    return ([Path(own).expanduser()] if own else []) + [Path(torch.hub.get_dir()) / "checkpoints"]


def find_weights(row: EncoderInfo) -> Path | None:
    """The first file of this encoder in those folders."""
    places = (folder / name for folder in weight_folders() for name in row.files)
    return next((path for path in places if path.is_file()), None)


def no_weights(row: EncoderInfo, more: str = "") -> DataError:
    """An error that says which file belongs where; smmil downloads nothing by itself."""
    folders = " or ".join(map(str, weight_folders()))
    return DataError(
        f"encoder {row.name}: no weights; put {row.files[0]} into {folders} (set SMMIL_WEIGHTS to use another folder)"
        f"{more}, or give the file with weights="
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name, without what training programs put around them."""
    content = _load(path)
    while isinstance(content, Mapping):
        inner = [content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    named = content.items() if isinstance(content, Mapping) else ()
    tensors = {str(name): value for name, value in named if isinstance(value, Tensor)}
    if not tensors:
        raise DataError(f"{path}: holds no named tensors; save the state_dict() of the network")
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def fit(network: nn.Module, tensors: Mapping[str, Tensor], head: Sequence[str], path: Path) -> str:
    """Put the weights into the network, all of them or none; gives the digest of what the network then holds.

    Names that begin with one of `head` belong to a classifier that was cut off.
    """
    own = network.state_dict()
    used = {name: tensor for name, tensor in tensors.items() if name in own or not name.startswith(tuple(head))}
    missing = [name for name in own if name not in used and not name.endswith(_COUNTER)]
    unknown = [name for name in used if name not in own]
    shapes = [name for name in used if name in own and used[name].shape != own[name].shape]
    for names, what in ((missing, "lacks"), (unknown, "has unknown"), (shapes, "has other shapes for")):
        if names:
            raise DataError(
                f"{path}: weights of another network: {what} {_listed(names)}; give the file of this encoder"
            )
    network.load_state_dict(used, strict=False)
    return tensors_digest({name: value for name, value in network.state_dict().items() if not name.endswith(_COUNTER)})


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _load(path: Path) -> Any:
    if not path.is_file():
        raise DataError(f"{path}: no such file; give the file with the weights")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    # torch and safetensors name no common error for a file that is damaged, foreign, or holds more than weights
    except Exception as problem:  # noqa: BLE001
        cause = " ".join(str(problem).split())[:120] or type(problem).__name__
        raise DataError(f"{path}: cannot be read as weights alone ({cause}); save only the state_dict()") from None
