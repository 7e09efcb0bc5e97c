"""Where scores come from, in words that may leave the house: a list of what is told, everything else stays."""

from typing import Any

from smmil import __version__
from smmil.prediction import Prediction

RESEARCH = "research use only"
_LONGEST = 200
# Facts of `meta` that describe the model and its input. Others (patient groups, paths, anything a user added) may tell
# who the case is and are never written.
_TOLD = ("model", "checkpoint", "weights", "score_kind")
_TOLD_OF_FEATURES = ("encoder", "recipe")


def provenance(prediction: Prediction) -> dict[str, str]:
    """Software, model, digest of its weights, kind of score, encoder, recipe, and that it is for research only."""
    features = prediction.meta.get("features")
    told = [(key, prediction.meta.get(key)) for key in _TOLD]
    told += [(key, features.get(key)) for key in _TOLD_OF_FEATURES] if isinstance(features, dict) else []
    known = {key: plain(value) for key, value in told if isinstance(value, str) and plain(value)}
    return {"software": f"smmil {__version__}", **known, "use": RESEARCH}


def plain(text: Any, longest: int = _LONGEST) -> str:
    """One printable line of limited length."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def in_words(facts: dict[str, str]) -> str:
    """The facts as one line: key: value; key: value."""
    return "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.items())
