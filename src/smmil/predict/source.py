"""Where features come from: a model is only used on what it was trained on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, DataError
from smmil.formats import read_provenance

SOURCE_KEYS = ("encoder", "recipe")


def feature_source(table: Manifest, ids: Iterable[str]) -> dict[str, Any]:
    """Encoder and recipe that the bags share (None where their files do not say); a mixture is refused."""
    shared: dict[str, Any] = dict.fromkeys(SOURCE_KEYS)
    first = dict(shared)
    for id_ in ids:
        stated = read_provenance(table.path_of(id_))
        for key in SOURCE_KEYS:
            value = stated.get(key)
            if value is not None and shared[key] not in (None, value):
                raise DataError(
                    f"{table.name}: bags of different {key}: {first[key]} has {shared[key]!r}, {id_} has {value!r}; "
                    "extract all with one"
                )
            if value is not None and shared[key] is None:
                shared[key], first[key] = value, id_
    return shared


def image_facts(path: Path) -> dict[str, Any]:
    """What exports and reports need of the image behind a bag: the measures of the slide or scan, the licence."""
    stated = read_provenance(path)
    facts: dict[str, Any] = {"licence": stated["licence"]} if stated.get("licence") else {}
    if stated.get("positions_mm"):
        return facts | {"scan": _scan_facts(stated)}
    if stated.get("bounds") is None or stated.get("level0_width") is None:
        return facts
    size = [stated["level0_width"], stated["level0_height"]]
    return facts | {"slide": {"size": size, "bounds": stated["bounds"], "mpp": stated.get("mpp_level0")}}


def _scan_facts(stated: dict[str, Any]) -> dict[str, Any]:
    """Size, voxels and place of a scan; bags of earlier versions do not say how many rows and columns it has."""
    places = stated["positions_mm"]
    _, rows, columns = stated.get("shape") or (None, None, None)
    counts = {"slices": len(places), "rows": rows, "columns": columns}
    return {**counts, "spacing_mm": stated.get("spacing_mm"), "ends_mm": [places[0], places[-1]]}


def refuse_other_features(facts: dict[str, Any], table: Manifest, ids: Iterable[str]) -> None:
    """An error if a bag states another encoder or recipe than the model was trained on."""
    trained = facts["features"]
    for id_ in ids:
        try:
            stated = read_provenance(table.path_of(id_))
        except DataError:
            continue  # unreadable here is unreadable again when its turn comes, and reported there
        for key in SOURCE_KEYS:
            if None not in (trained.get(key), stated.get(key)) and trained[key] != stated[key]:
                raise ConfigError(
                    f"{id_}: features of {key} {stated[key]!r}, but the model was trained on {key} {trained[key]!r}; "
                    "extract the features in the same way"
                )


def refuse_other_width(facts: dict[str, Any], id_: str, width: int) -> None:
    if width != facts["model"]["in_dim"]:
        raise ConfigError(
            f"{id_}: {width} features per instance, but the model was trained on {facts['model']['in_dim']}; "
            "use the encoder it was trained with"
        )
