"""The browser viewer: a small local server over predictions, slides and scans."""

from smmil.viewer.serving import serve
from smmil.viewer.study import Study

__all__ = ["Study", "serve"]
