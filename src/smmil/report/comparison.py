"""Further sections of a report: text, lists, pictures, and a comparison of models in sentences."""

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.errors import DataError

_POOLS = {
    "all": "instances of all cases together",
    "positive_bags": "instances of positive cases together",
    "per_bag": "each case by itself, then averaged",
}
_DECIDING = ("auroc", "f1")
_SIZES = ("n", "n_positive", "n_bags", "n_bags_used", "n_instances")


@dataclass(frozen=True)
class Picture:
    """A PNG file to embed; `alt` says in words what it shows."""

    path: str | Path
    caption: str
    alt: str

    @property
    def source(self) -> str:
        """The file as a data URL."""
        return f"data:image/png;base64,{base64.b64encode(self._content()).decode()}"

    @property
    def width(self) -> int:
        return self._size()[0]

    @property
    def height(self) -> int:
        return self._size()[1]

    def _size(self) -> tuple[int, int]:
        width, height = struct.unpack(">II", self._content()[16:24])
        return width, height

    def _content(self) -> bytes:
        path = Path(self.path)
        try:
            data = path.read_bytes()
        except OSError as problem:
            raise DataError(f"{path}: picture cannot be read ({problem.strerror}); draw it again") from None
        if len(data) < 24 or not data.startswith(b"\x89PNG\r\n\x1a\n"):
            raise DataError(f"{path}: not a PNG picture; draw it again")
        return data


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, a list and pictures below it, in this order; text between backquotes is code."""

    title: str
    paragraphs: Sequence[str] = ()
    items: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    ordered: bool = False


def leaders(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How often each model leads, then one sentence per deciding metric: the leader and its margin, or a tie."""
    sentences, wins, unfair = [], dict.fromkeys(results, 0), 0
    for words, values, fair in _contests(results):
        if not fair:
            unfair += 1
            sentences.append(f"{words}: not comparable, the models were not measured on the same.")
            continue
        first, second, gap = _podium(values)
        if gap:
            wins[first] += 1
            outcome = f"{first} leads with {values[first]:.3f}, {gap:.3f} before {second} ({values[second]:.3f})."
        else:
            outcome = f"{first} and {second} are equal to three digits ({values[first]:.3f})."
        sentences.append(f"{words}: {outcome}")
    if not sentences:
        return []
    counts = ", ".join(f"{model} leads in {count}" for model, count in wins.items())
    ties = len(sentences) - sum(wins.values()) - unfair
    more = f", {unfair} are not comparable" if unfair else ""
    return [f"Of {len(sentences)} comparisons {counts}; {ties} are ties{more}.", *sentences]


def _contests(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, float], bool]]:
    """Deciding metrics for which at least two models have a value, and whether these may be compared."""
    parts: list[tuple[str, list[Any]]] = [("whole cases", [r.get("bag") for r in results.values()])]
    same = _comparable(dict(zip(results, parts[0][1], strict=True)))
    parts += [(_POOLS[p], [_pool(r, p) for r in results.values()]) for p in _POOLS]
    contests = []
    for words, found in parts:
        fair = same and _comparable(dict(zip(results, found, strict=True)))
        for key in _DECIDING:
            values = {n: v for n, f in zip(results, found, strict=True) if (v := _value(f, key)) is not None}
            contests.append((f"{key.upper()}, {words}", values, fair))
    return [contest for contest in contests if len(contest[1]) > 1]


def _podium(values: Mapping[str, float]) -> tuple[str, str, float]:
    """The best and the second best model, and the distance of their printed values."""
    first, second = sorted(values, key=lambda name: -round(values[name], 3))[:2]
    return first, second, round(round(values[first], 3) - round(values[second], 3), 3)


def _comparable(found: Mapping[str, Any]) -> bool:
    """Whether all models were measured on as many cases and instances, and no note says that they differ."""
    measured = [metrics for metrics in found.values() if metrics]
    sizes = {tuple(metrics.get(key) for key in _SIZES) for metrics in measured}
    return len(sizes) < 2 and not any("not comparable" in note for m in measured for note in m.get("notes", []))


def _pool(found: Mapping[str, Any], name: str) -> Any:
    metrics = found.get("instance") or {}
    if any(pool in metrics for pool in _POOLS):
        return metrics.get(name)
    return metrics if metrics and metrics.get("pool", "all") == name else None


def _value(metrics: Mapping[str, Any] | None, key: str) -> float | None:
    value = (metrics or {}).get(key)
    return None if value is None or math.isnan(value) else float(value)
