"""The browser viewer: a small local server over predictions, slides and scans."""

from smmil.viewer.data import ViewerData
from smmil.viewer.lifecycle import serve

__all__ = ["ViewerData", "serve"]
