"""Weight files: our own, safetensors with JSON metadata and a checksum over both, and those of other programs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from smmil.errors import DataError, brief
from smmil.files import check_once, check_torch_archive, digest, need_file, replacing

_KEY = "smmil"
# What files of other programs may hold: nested mappings, named weights, characters of a name, and, as several names may
# stand for one tensor, weights of this many times the size of the file.
_DEEPEST, _MOST_NAMES, _LONGEST_NAME, _SHARED = 20, 200_000, 300, 16
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PLAIN = {*_FLOATS, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}
_EXTRACT = (
    "python -c \"import torch; c = torch.load('FILE', map_location='cpu', weights_only=False); "
    "torch.save(c.get('state_dict', c), 'weights.pt')\""
)


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
        with safe_open(need_file(Path(path)), framework="pt") as file:
            sealed = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if digest(sealed["note"], sealed["tensors"]) != sealed["seal"] or tensors_digest(tensors) != sealed["tensors"]:
            raise ValueError("its content does not match its seal")
        note = json.loads(sealed["note"])
        if not isinstance(note, dict):
            raise TypeError(f"its note is {brief(note)}")
        return tensors, note
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, MemoryError) as problem:
        cause = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"{path}: damaged or not written by smmil ({cause})") from None


def read_foreign_weights(path: Path, wrappers: Sequence[str]) -> Mapping[Any, Any]:
    """Content of a weight file of another program; nothing in it is executed.

    wrappers  keys under which training programs put the weights; what is around them is left out
    """
    if not path.is_file():
        what = "is a folder; give the file in it" if path.is_dir() else "no such file; give the file with the weights"
        raise DataError(f"{path}: {what}")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            check_once(path, check_torch_archive)
            content = torch.load(path, map_location="cpu", weights_only=True)
    # torch and safetensors name no common error for a file that is damaged, foreign, or holds more than weights
    except Exception as problem:  # noqa: BLE001
        cause = " ".join(str(problem).split())[:120] or type(problem).__name__
        advice = "copy it again"
        if cause.startswith("Weights only load failed"):  # pages of advice follow, none of it for our user
            cause = "it is no checkpoint, is damaged, or holds more than weights"
            advice = (
                "save only the state_dict(); the following does so but RUNS CODE that lies in the file, so use it "
                f"only on a file of your own whose program is installed: {_EXTRACT}"
            )
        raise DataError(f"{path}: cannot be read as weights alone ({cause}); {advice}") from None
    if isinstance(content, Mapping):
        _check_plain(content, path)
    while isinstance(content, Mapping):
        inner = [content[key] for key in wrappers if isinstance(content.get(key), Mapping)]
        if not inner:
            return content
        content = inner[0]
    return {}


def _check_plain(content: Mapping[Any, Any], path: Path) -> None:
    """Refuse mappings that go round or never end, and tensors that are not plain or larger than what is stored."""
    waiting, names, room = [(content, 1)], 0, _SHARED * path.stat().st_size
    while waiting:
        mapping, depth = waiting.pop()
        names += len(mapping)
        if depth > _DEEPEST or names > _MOST_NAMES:
            what = f"mappings {_DEEPEST} deep and more" if depth > _DEEPEST else f"more than {_MOST_NAMES:,} names"
            raise DataError(f"{path}: holds {what}, no weights; save the state_dict() of the model")
        for key, value in mapping.items():
            if isinstance(value, Mapping):
                waiting.append((value, depth + 1))
            elif not isinstance(value, Tensor):
                continue
            if not (isinstance(key, str) and len(key) <= _LONGEST_NAME) and not (type(key) is int and 0 <= key < 2**31):
                shown = brief(key) if isinstance(key, str) else f"a {type(key).__name__}"
                raise DataError(f"{path}: {shown} is no name of a weight; save the state_dict() of the model")
            if isinstance(value, Tensor):
                room -= _stored_bytes(value, f"{path}: {key}")
                if room < 0:
                    raise DataError(
                        f"{path}: its weights claim more numbers than the file holds; copy or save it again"
                    )


def _stored_bytes(tensor: Tensor, where: str) -> int:
    """Bytes of a tensor that holds all its numbers, as every weight does."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type != "cpu" or tensor.dtype not in _PLAIN:
        kind = f"{tensor.layout}, {tensor.device}, {tensor.dtype}".replace("torch.", "")
        raise DataError(f"{where} is no plain tensor of numbers ({kind}); save the state_dict() of the model")
    size = tensor.numel() * tensor.element_size()
    if size > tensor.untyped_storage().nbytes():
        raise DataError(f"{where} claims more numbers than the file holds; copy or save it again")
    return size


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Digest of names, types, shapes and values."""
    parts: list[str | memoryview] = []
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), tensor.reshape(-1).view(torch.uint8).numpy().data]
    return digest(*parts)


def _own(tensor: Tensor) -> Tensor:
    """A contiguous copy on the processor: safetensors refuses tensors that share memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


@contextmanager
def few_parameters(most: int, entries: float = float("inf")) -> Iterator[None]:
    """Inside the block a model with more parameters than this, or more numbers in them, is not built to its end."""
    count, size = 0, 0

    def refuse(_: Any, __: str, parameter: Tensor | None) -> None:
        nonlocal count, size
        count, size = count + 1, size + (0 if parameter is None else parameter.numel())
        if count > most or size > entries:
            what = f"{most:,} parameters" if count > most else f"{entries:,.0f} numbers in its parameters"
            raise ValueError(f"it would have more than {what}")

    hook = register_module_parameter_registration_hook(refuse)
    try:
        yield
    finally:
        hook.remove()
