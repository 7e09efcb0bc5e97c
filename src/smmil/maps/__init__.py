"""Predictions to pictures: score maps next to the truth, strips of scans, histograms."""

from smmil.maps.charts import critical_difference, scan_strip, score_histograms
from smmil.maps.raster import rasterize
from smmil.maps.score_maps import score_map, side_by_side

__all__ = ["critical_difference", "rasterize", "scan_strip", "score_histograms", "score_map", "side_by_side"]
