"""A checkpoint of somebody else's program, read without running anything in it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smmil.errors import DataError

WRAPPERS = ("state_dict", "model_state_dict", "model", "net")


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Its tensors by dotted name, without what training frameworks put around them; weights only, never code."""
    path = Path(path)
    content = _load(path)
    while isinstance(content, Mapping):
        inner = [content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    tensors = _flat(content) if isinstance(content, Mapping) else {}
    if not tensors:
        raise DataError(f"{path}: holds no named tensors; save the state_dict() of the model")
    tensors = {re.sub(r"(^|\.)module\.", r"\1", name): tensor for name, tensor in tensors.items()}
    if all(name.startswith("model.") for name in tensors):
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    _refuse_not_finite(tensors, path)
    return tensors


def _refuse_not_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DataError(f"{path}: {name} holds NaN or Inf; the training it comes from has failed")


def _load(path: Path) -> Any:
    if not path.is_file():
        what = "is a folder; give the checkpoint in it" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    # torch and safetensors name no common error for a file that is damaged, foreign, or holds more than weights
    except Exception as problem:  # noqa: BLE001
        cause = " ".join(str(problem).split())[:120] or type(problem).__name__
        if cause.startswith("Weights only load failed"):  # pages of advice follow, none of it for our user
            cause = "it is no checkpoint, is damaged, or holds more than weights"
        raise DataError(f"{path}: cannot be read as weights alone ({cause}); save only model.state_dict()") from None


def _flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Tensor]:
    """Tensors of nested mappings; numbers and words beside them (epoch, settings) are not weights."""
    flat: dict[str, Tensor] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, Tensor):
            flat[f"{prefix}{key}"] = value
    return flat
