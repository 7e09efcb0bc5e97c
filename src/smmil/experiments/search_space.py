"""What a search may change: settings of a run, each with its values or its range."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from smmil.errors import MissingExtra

# Which cases validate, and by what a model is judged, must be the same for all trials.
_FIXED = {
    "data.": "decides which cases train, validate and test",
    "target.": "decides what is predicted",
    "training.seed": "is chance, not a setting; give the study seeds: [0, 1, 2]",
    "training.select": "decides by what trials are judged",
}
_SECTIONS = ("training.", "model.")


class SearchRange(BaseModel):
    """Numbers from low to high, whole ones if both are; `log`: evenly by order of magnitude; `step`: in steps."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, float)


Choice = str | bool | int | float | None
Space = dict[str, SearchRange | list[Choice]]


def space_problems(space: Mapping[str, SearchRange | list[Choice]]) -> Iterator[str]:
    """One line for each key or range that cannot be searched."""
    for key, values in space.items():
        reason = next((why for start, why in _FIXED.items() if key.startswith(start)), None)
        if reason is not None:
            yield f"search: {key} {reason}"
        elif not key.startswith(_SECTIONS):
            yield f"search: {key!r} is no setting; expected section.key, such as training.lr or model.options.dim"
        elif isinstance(values, list):
            if not values:
                yield f"search: {key} has no values; give a list such as [128, 256]"
        elif not values.low < values.high:
            yield f"search: {key}: low {values.low} is not below high {values.high}"
        elif values.log and (values.low <= 0 or values.step is not None):
            yield f"search: {key}: log needs low above 0, and no step"
        elif values.step is not None and values.step <= 0:
            yield f"search: {key}: step must be above 0, got {values.step}"


def distributions(space: Mapping[str, SearchRange | list[Choice]]) -> dict[str, Any]:
    """The space in the words of Optuna."""
    try:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    except ImportError:
        raise MissingExtra("optuna", "search", "smmil experiment search") from None
    found: dict[str, Any] = {}
    for key, values in space.items():
        if isinstance(values, list):
            found[key] = CategoricalDistribution(values)
        elif values.whole:
            found[key] = IntDistribution(int(values.low), int(values.high), log=values.log, step=int(values.step or 1))
        else:
            step = None if values.step is None else float(values.step)
            found[key] = FloatDistribution(float(values.low), float(values.high), log=values.log, step=step)
    return found


def corners(space: Mapping[str, SearchRange | list[Choice]]) -> Iterator[dict[str, Choice]]:
    """Settings to check before a search: the first value of every key, then each other value or end by itself."""
    ends = {key: values if isinstance(values, list) else [values.low, values.high] for key, values in space.items()}
    first = {key: values[0] for key, values in ends.items()}
    yield first
    yield from (first | {key: value} for key, values in ends.items() for value in values[1:])


def changed(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as sections, with the values of dotted keys in place of their own."""
    found = {name: dict(part) if isinstance(part, Mapping) else part for name, part in content.items()}
    for key, value in values.items():
        *sections, last = key.split(".")
        place = found
        for name in sections:
            inner = place.get(name)
            place[name] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[name]
        place[last] = value
    return found
