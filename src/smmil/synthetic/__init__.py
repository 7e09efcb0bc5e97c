"""Synthetic data with known truth: feature bags, stained slides and CT scans as real files."""

from smmil.synthetic.features import synthetic_scans, synthetic_slides, write_synthetic
from smmil.synthetic.slide_files import write_pyramid

__all__ = ["synthetic_scans", "synthetic_slides", "write_pyramid", "write_synthetic"]
