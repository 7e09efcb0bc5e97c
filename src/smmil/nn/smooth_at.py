"""SmoothAt: applies Sm at one chosen position inside any model."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as with_spectral_norm

from smmil.errors import ConfigError, check_choice, suggest
from smmil.graph import Graph
from smmil.nn.smooth import Sm

DEFAULTS: dict[str, Any] = {
    "where": "early",
    "alpha": "learned",
    "steps": 10,
    "spectral_norm": True,
    "normalization": "sym",
    "isolated": "keep",
}


class _HasGraph(Protocol):
    def need(self, name: str) -> Any: ...


class SmoothAt(nn.Module):
    """Applies Sm at the position `where` and returns its input unchanged at all others; without options, everywhere.

    options  None, or a mapping with any of
             where          the place (default early: on the embedded instances)
             alpha, steps, normalization, isolated   as in `Sm`
             spectral_norm  on every linear layer that reads the smoothed rows, as after Sm in the paper
    places   the places a model knows, each with those layers (a classifier of pooled vectors is not one of them)

    alpha = 0 or steps = 0 is the model without Sm, exactly: nothing is smoothed and nothing normalised. A model makes
    this its last part, so that the weights drawn before it are those of the plain model.
    """

    def __init__(self, options: Mapping[str, Any] | None, places: Mapping[str, Iterable[nn.Module]]):
        super().__init__()
        chosen = _chosen(options, places)
        self.where = chosen["where"]
        if self.where is None:
            return
        self.sm = Sm(
            chosen["alpha"], chosen["steps"], normalization=chosen["normalization"], isolated=chosen["isolated"]
        )
        if chosen["spectral_norm"]:
            for layer in places[self.where]:
                with_spectral_norm(layer)

    def forward(self, place: str, u: Tensor, on: _HasGraph | Graph) -> Tensor:
        """u, smoothed over the graph (of a batch, or given) if this is the place."""
        if place != self.where:
            return u
        smooth: Tensor = self.sm(u, on if isinstance(on, Graph) else on.need("graph"))
        return smooth

    def across(self, place: str, weights: Tensor, on: _HasGraph) -> Tensor:
        """The transposed operator: weights w of smoothed rows as those of the rows themselves, Sm(h)ᵀ w = hᵀ Smᵀ(w)."""
        if place != self.where:
            return weights
        across: Tensor = self.sm(weights, self.sm.normalize(on.need("graph")).transposed())
        return across


def _chosen(options: Mapping[str, Any] | None, places: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, checked; `where` is None if nothing is to be smoothed."""
    if options is None:
        return {"where": None}
    if not isinstance(options, Mapping):
        raise ConfigError(f"sm: expected options such as {{where: early, alpha: learned}}, got {options!r}")
    for option in options:
        if option not in DEFAULTS:
            raise ConfigError(f"sm: unknown option {option!r}; {suggest(str(option), DEFAULTS)}")
    chosen = DEFAULTS | dict(options)
    check_choice(chosen["where"], places, "sm.where")
    Sm(chosen["alpha"], chosen["steps"], normalization=chosen["normalization"], isolated=chosen["isolated"])
    without = chosen["steps"] == 0 or (not isinstance(chosen["alpha"], str) and chosen["alpha"] == 0)
    return {"where": None} if without else chosen
