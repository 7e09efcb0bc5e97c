"""Weight files: safetensors with JSON metadata and a checksum over both."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from smmil.errors import DataError
from smmil.files import digest, replacing

_KEY = "smmil"


def save_weights(path: str | Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> str:
    """Write tensors and metadata atomically; returns the digest of the tensors. Equal content gives equal bytes."""
    own = {name: _own(tensor) for name, tensor in tensors.items()}
    mark = tensors_digest(own)
    text = json.dumps(note, ensure_ascii=False)
    # One metadata entry only: safetensors does not promise the order of several.
    sealed = json.dumps({"note": text, "tensors": mark, "seal": digest(text, mark)}, sort_keys=True)
    with replacing(path) as temporary:
        temporary.write_bytes(save(own, metadata={_KEY: sealed}))  # a full disk is then an OSError, as everywhere
    return mark


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and metadata of a file written by `save_weights`; damage of any kind is a DataError."""
    try:
        tensors, sealed = _read(Path(path))
        if digest(sealed["note"], sealed["tensors"]) != sealed["seal"] or tensors_digest(tensors) != sealed["tensors"]:
            raise ValueError("its content does not match its seal")
        return tensors, json.loads(sealed["note"])
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, MemoryError) as problem:
        cause = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"{path}: damaged or not written by smmil ({cause})") from None


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Digest of names, types, shapes and values."""
    parts: list[str | memoryview] = []
    for name in sorted(tensors):
        tensor = _own(tensors[name])
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), tensor.reshape(-1).view(torch.uint8).numpy().data]
    return digest(*parts)


def _own(tensor: Tensor) -> Tensor:
    """A contiguous copy on the processor: safetensors refuses tensors that share memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        sealed = json.loads((file.metadata() or {})[_KEY])
        return {name: file.get_tensor(name).clone() for name in file.keys()}, sealed  # noqa: SIM118
