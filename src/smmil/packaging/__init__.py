"""Trained models to give away: write a package, load it, and predict with it from raw images."""

from smmil.packaging.loading import Package, load_package
from smmil.packaging.raw import Images, predict_package
from smmil.packaging.writing import WrittenPackage, write_package

__all__ = ["Images", "Package", "WrittenPackage", "load_package", "predict_package", "write_package"]
