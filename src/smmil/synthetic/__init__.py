"""Synthetic data with known truth: feature bags, stained slides and CT scans as real files.

Feature bags are imported on first use: processes that only draw slides load no torch.
"""

from typing import TYPE_CHECKING, Any

from smmil.synthetic.slide_files import write_pyramid

if TYPE_CHECKING:
    from smmil.synthetic.features import synthetic_scans, synthetic_slides, write_synthetic
    from smmil.synthetic.planted import planted_slides, write_planted

__all__ = [
    "planted_slides",
    "synthetic_scans",
    "synthetic_slides",
    "write_planted",
    "write_pyramid",
    "write_synthetic",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smmil.synthetic import features, planted

    return getattr(planted if "planted" in name else features, name)
