"""What a prediction says about drift: whether its case is unlike those of training, and why, in words."""

import math
from typing import NamedTuple

from smmil.prediction import Prediction

_REASONS = {
    "look": "its colours and textures as a whole (staining, scanner, contrast or window, another tissue)",
    "lean": "all of it differs in one way that the training cases do not (focus, compression, processing)",
    "variety": "its parts differ more or less from each other than usual (blur, noise, artefacts, another tissue)",
    "strange": "many parts are unlike any of the training cases",
    "count": "the number of its parts",
    "size": "the size of its parts (magnification, pixel size)",
    "distance": "the distance between its parts or slices",
    "extent": "how large the imaged region is",
    "gap": "missing slices: there are gaps between them",
    "sharpness low": "it is less sharp than the training cases (focus, compression, magnification)",
    "sharpness high": "it is sharper or noisier than the training cases",
    "blocks low": "it shows fewer traces of compression than the training cases",
    "blocks high": "it was compressed harder than the training cases, or enlarged",
    "colour_blocks low": "its colours show fewer traces of compression than those of the training cases",
    "colour_blocks high": "its colours were compressed harder than those of the training cases, or enlarged",
    "haematoxylin low": "it is stained paler in blue (haematoxylin) than the training cases",
    "haematoxylin high": "it is stained darker in blue (haematoxylin) than the training cases",
    "eosin low": "it is stained paler in pink (eosin) than the training cases",
    "eosin high": "it is stained darker in pink (eosin) than the training cases",
    "planarity low": "its colours are a purer mixture of two stains than those of the training cases (staining, blur)",
    "planarity high": "its colours are no mixture of two stains as in the training cases (staining, scanner, noise)",
    "ink low": "it has less ink or foreign colour than the training cases",
    "ink high": "ink or a foreign colour",
    "noise low": "it is less noisy than the training cases (dose, smoothing, slice thickness)",
    "noise high": "it is noisier than the training cases (dose, kernel, slice thickness)",
    "density low": "its soft tissue is less dense than that of the training cases (calibration, window)",
    "density high": "its soft tissue is denser than that of the training cases (contrast agent, calibration, window)",
    "contrast low": "its soft tissues differ less in density than those of the training cases",
    "contrast high": "its soft tissues differ more in density than those of the training cases (contrast agent, noise)",
    "change": "how much neighbouring parts differ (missing, repeated or shuffled slices)",
}
_ADVICE = "Do not rely on its probability and map; look for the cause first."


class _AppliedDrift(NamedTuple):
    """What a prediction says about its likeness to the training cases; see `smmil.evaluate.drift._CaseDrift`."""

    p: float
    alarm: bool
    share: float
    level: float
    patients: int
    why: tuple[str, ...]
    digest: str

    @property
    def text(self) -> str:
        """For a reader who knows medicine, not statistics; empty without an alarm."""
        if not self.alarm:
            return ""
        rank = math.floor(self.p * (self.patients + 1) - 1 + 1e-6)
        alike = "none" if rank == 0 else f"only {rank}"
        why = f" What stands out: {'; '.join(_REASONS[name] for name in self.why)}." if self.why else ""
        return (
            f"This case looks unlike the cases that the model learned from: of {self.patients} comparison patients "
            f"{alike} looked as unusual.{why} {_ADVICE}"
        )

    @property
    def withdrawal(self) -> str:
        """What becomes of a promise under the alarm."""
        return (
            "No promise for this case: it looks unlike the cases that the model learned from, so more may be missed "
            "than was promised."
        )


def applied_drift(prediction: Prediction) -> _AppliedDrift | None:
    """The content of meta["drift"]; None when there is none, or it is not as `smmil predict` writes it."""
    stated = prediction.meta.get("drift")
    if not isinstance(stated, dict) or not set(_AppliedDrift._fields) <= stated.keys():
        return None
    why = stated["why"]
    shares = all(type(stated[k]) is float and 0 <= stated[k] <= 1 for k in ("p", "share", "level"))
    known = isinstance(why, list) and all(isinstance(name, str) and name in _REASONS for name in why)
    whole = type(stated["patients"]) is int and stated["patients"] > 0
    if not (shares and known and whole and type(stated["alarm"]) is bool and type(stated["digest"]) is str):
        return None
    return _AppliedDrift(**{name: stated[name] for name in _AppliedDrift._fields} | {"why": tuple(why)})
