"""Predictions to pictures: score maps beside the truth, strips of scans, histograms."""

from smmil.maps.critical_difference import critical_difference
from smmil.maps.histogram import score_histograms
from smmil.maps.overlay import score_map, side_by_side
from smmil.maps.raster import rasterize
from smmil.maps.strip import scan_strip

__all__ = ["critical_difference", "rasterize", "scan_strip", "score_histograms", "score_map", "side_by_side"]
