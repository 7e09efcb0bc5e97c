"""Packages of trained models: write one, load it, and predict with it from raw images."""

from smmil.packaging.loading import Images, Package, load_package, predict_package
from smmil.packaging.writing import WrittenPackage, write_package

__all__ = ["Images", "Package", "WrittenPackage", "load_package", "predict_package", "write_package"]
