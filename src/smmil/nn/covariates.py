"""WithCovariates: any model whose bag logits also read numbers known of the patient."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from smmil.errors import DataError

# What others set on a model for a while; it belongs to the model inside.
_OF_THE_MODEL = ("score", "gives_uncertainty", "link", "target")


class WithCovariates(nn.Module):
    """A model whose logits gain W c, with c (b, q) the covariates of the bags and W (classes, q) learned from 0 on.

    A linear head on the bag's vector z and the covariates together is [V W] [z c]ᵀ + b = (V z + b) + W c, so adding
    W c to the logits joins them at the bag's vector, whatever model gives the logits. Where the logits are more than
    a head (DSMIL in use: the mean of two streams), W c is added to the result. Loss terms of the model's own
    (CLAM's instances, DTFD's first tier, ProbSmooth's samples) do not see the covariates; nor do scores.

    With W = 0 it is the model itself. Hooks and options of the model are reached as before.
    """

    def __init__(self, model: nn.Module, width: int, n_classes: int):
        super().__init__()
        self.model = model
        self.covariates = nn.Parameter(torch.zeros(n_classes, width))

    def forward(self, batch: Any) -> Any:
        added = self._added(batch)
        output = self.model(batch)
        return replace(output, logits=output.logits + added)

    def _added(self, batch: Any) -> Tensor:
        """W c of every bag."""
        given: Tensor = batch.need("covariates")
        if given.shape[1] != self.covariates.shape[1]:
            raise DataError(
                f"{batch.ids[0]}: {given.shape[1]} covariates, but the model reads {self.covariates.shape[1]}; give "
                "those it was trained with"
            )
        return linear(given.to(self.covariates.dtype), self.covariates)

    def _in_blocks(self, blocks: Any, batch: Any) -> Any:
        """As `forward`, for models that read features in blocks."""
        output = self.model.in_blocks(blocks, batch)  # type: ignore[operator]
        return replace(output, logits=output.logits + self._added(batch))

    @property
    def training_state(self) -> tuple[str, ...]:
        """Entries of the state that only training needs, as they are called here."""
        return tuple(f"model.{prefix}" for prefix in getattr(self.model, "training_state", ()))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("parameter_groups", "in_blocks") and hasattr(self.model, name):
                return super().__getattribute__(f"_{name}")
            return getattr(super().__getattr__("model"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_THE_MODEL:
            setattr(self.model, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OF_THE_MODEL:
            delattr(self.model, name)
        else:
            super().__delattr__(name)

    def _parameter_groups(self) -> Iterable[dict[str, Any]]:
        """Those of the model, and the weights of the covariates as a further one."""
        return [*self.model.parameter_groups(), {"params": [self.covariates]}]  # type: ignore[operator]
