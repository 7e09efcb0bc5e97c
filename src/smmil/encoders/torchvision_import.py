"""torchvision from PyPI beside a torch without CUDA: importable once two of its operators have been declared."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from smmil.errors import MissingExtra

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
