"""Parameter layouts of the authors' programs and how their names map to ours."""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from smmil.errors import DataError

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """The model a checkpoint fits: input width, number of classes and options of ours."""

    in_dim: int
    n_classes: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Names of one published state dict.

    title    whose layout it is                     model    our model with the same mathematics
    rules    (pattern, our name): the first pattern that matches a whole name counts, \\1 … refer to its groups, a
             function computes the name from the match; None drops a weight that the published program never uses
    shape    from the renamed tensors, the model they fit
    arrange  puts renamed tensors that are stored in another shape into ours
    """

    title: str
    model: str
    rules: tuple[tuple[str, str | Callable[[re.Match[str]], str] | None], ...]
    shape: Callable[[Tensors], Shape]
    arrange: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict

    def renamed(self, tensors: Tensors, where: str) -> tuple[dict[str, Tensor], list[str]]:
        """Tensors under our names, and the names that were dropped; an unknown name is an error."""
        found: dict[str, Tensor] = {}
        dropped, unknown = [], []
        for name, tensor in tensors.items():
            matched = self._our_name(name)
            if matched is None:
                unknown.append(name)
            elif matched == "":
                dropped.append(name)
            else:
                found[matched] = tensor
        if unknown or not found:
            raise DataError(f"{where}: not a checkpoint of {self.title}: {_listed(unknown or ['no weights at all'])}")
        return self.arrange(found), dropped

    def both_names(self, ours: str) -> str:
        """A weight by our name and, where the rules have it, by theirs."""
        for pattern, template in self.rules:
            match = re.fullmatch(_reversed(template), ours) if isinstance(template, str) else None
            if match:
                return f"{ours} (theirs: {_filled(pattern, match.groupdict())})"
        return ours

    def _our_name(self, name: str) -> str | None:
        for pattern, ours in self.rules:
            match = re.fullmatch(pattern, name)
            if match:
                return "" if ours is None else ours(match) if callable(ours) else match.expand(ours)
        return None


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"unexpected {', '.join(names[:4])}{more}"


def _reversed(template: str) -> str:
    """The pattern of our names that a template such as head.\\1.\\2 makes."""
    parts = re.split(r"\\(\d)", template)
    return "".join(f"(?P<g{part}>\\w+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))


def _filled(pattern: str, groups: Mapping[str, str]) -> str:
    """A pattern of their names with its groups filled in; optional parts are left out."""
    numbers = itertools.count(1)
    named = re.sub(r"\(\?:[^()]*\)\??", "", pattern)
    named = re.sub(r"\([^()]*\)", lambda found: groups.get(f"g{next(numbers)}", found[0]), named)
    return named.replace("\\.", ".")


def linear(theirs: str, ours: str) -> tuple[str, str]:
    """The rule for a layer with weight and perhaps bias."""
    return rf"{theirs}\.(weight|bias)", rf"{ours}.\{_groups(theirs) + 1}"


def _groups(pattern: str) -> int:
    return re.compile(pattern).groups


def count(tensors: Tensors, pattern: str) -> int:
    """How many names match."""
    return sum(re.fullmatch(pattern, name) is not None for name in tensors)
