"""Where the features of a run come from: the encoder, its weights and licence, and the recipe that made the bags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.encoders import encoder_info, list_encoders
from smmil.errors import ConfigError, DataError
from smmil.formats import read_provenance
from smmil.packaging.private import refuse_folders, told
from smmil.prepare import Recipe, load_recipe

_ENCODER_FACTS = ("dim", "pixels", "mean", "std", "mpp", "source", "autocast")


@dataclass(frozen=True)
class FeatureSource:
    """`facts` for config.json, the recipe where it is known, and a remark where it should be known and is not."""

    facts: dict[str, Any]
    recipe: Recipe | None = None
    note: str | None = None


def feature_source_of(features: dict[str, Any], bag: Path | None) -> FeatureSource:
    """What a run (encoder id and digest of the recipe) and one of its bags say about the features."""
    try:
        stated, unread = ({} if bag is None else read_provenance(bag)), ""
    except DataError as problem:
        stated, unread = {}, str(problem)
    encoder = refuse_folders(features.get("encoder"), "encoder of the features")
    own = stated if encoder is not None and stated.get("encoder") == encoder else {}
    name, _, revision = str(encoder or "").partition("@")
    facts = {
        "encoder": encoder,
        "recipe": features.get("recipe"),
        "encoder_name": name or None,
        "encoder_weights": revision.partition("/")[0] or None,
        "encoder_licence": own.get("licence") or (encoder_info(name).licence if name in list_encoders() else None),
        "encoder_facts": {key: _mapping(own.get("encoder_facts")).get(key) for key in _ENCODER_FACTS} if own else {},
    }
    recipe, note = _recipe(features, stated, unread)
    return FeatureSource(told(facts), recipe, note)


def _recipe(features: dict[str, Any], stated: dict[str, Any], unread: str) -> tuple[Recipe | None, str | None]:
    """The recipe whose fingerprint the run remembers; None when the features were not made by `smmil prepare`."""
    if features.get("recipe") is None:
        return None, None
    try:
        recipe = load_recipe(None, _mapping(stated.get("settings")))
    except ConfigError as problem:
        return None, f"no recipe.json: the settings in the bags are not of this version ({problem})"
    if stated.get("settings") and recipe.digest(str(features.get("encoder"))) == features["recipe"]:
        refuse_folders(recipe.settings(), "recipe of the features")
        return recipe, None
    reason = unread or "its bags do not hold the settings with that fingerprint"
    return None, told(f"no recipe.json: the run was trained on recipe {features['recipe']}, but {reason}")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
