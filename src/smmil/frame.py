"""Frame: the geometry of a bag's coordinates."""

from dataclasses import dataclass
from typing import Any

from smmil.errors import DataError


@dataclass(frozen=True)
class Frame:
    """Footprint of one instance and size of one coordinate step; x before y before z.

    patch    width of an instance along each axis, in coordinate units (level-0 pixels of a slide, 1 for CT slices)
    spacing  physical size of one coordinate unit along each axis; None: level 0 of the source image, size unknown
    unit     unit of `spacing`: "um", "mm", or "px" when the spacing is unknown
    stride   distance between neighbouring instances; None: they touch, so it equals `patch` (smaller when they overlap)
    """

    patch: tuple[float, ...]
    spacing: tuple[float, ...] | None = None
    unit: str = "px"
    stride: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.unit, str):
            raise DataError(f"Frame: unit must be um, mm or px, got {self.unit!r}")
        for name in ("patch", "spacing", "stride"):
            value = getattr(self, name)
            if value is None and name != "patch":
                continue
            value = tuple(float(v) for v in (value if isinstance(value, (tuple, list)) else (value,)))
            if not value or not all(0 < v < float("inf") for v in value):
                raise DataError(f"Frame: {name} must be positive numbers, got {value}")
            object.__setattr__(self, name, value)

    @property
    def step(self) -> tuple[float, ...]:
        """Distance between neighbouring instances along each axis: what a lattice graph needs."""
        return self.stride or self.patch

    def to_dict(self) -> dict[str, Any]:
        listed = {k: list(v) if (v := getattr(self, k)) is not None else None for k in ("patch", "spacing", "stride")}
        return {**listed, "unit": self.unit}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Frame":
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**values)
