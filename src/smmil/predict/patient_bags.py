"""Predictions of a patient's bag as one prediction per case, each at its own coordinates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from smmil.bag import Bag
from smmil.prediction import Prediction

_ROWS = ("y_inst", "uncertainty", "strangeness")


def split_prediction(
    whole: Prediction, cases: Sequence[Bag], metas: Mapping[str, Mapping[str, Any]]
) -> list[Prediction]:
    """The prediction of the bag that joins these cases as one for each of them.

    All have the probabilities, the label and the target of the patient. Scores, instance labels and further layers are
    those of the case's own rows, coordinates and frame those that its file states, edges counted from its first row.

    metas  {id: what the prediction of this case records}; what else the prediction of the whole records goes along
    """
    shared = {key: value for key, value in whole.meta.items() if key not in metas[cases[0].id]}
    return [
        _part(whole, case, rows, {**metas[case.id], **shared})
        for case, rows in zip(cases, case_slices(cases), strict=True)
    ]


def case_slices(cases: Sequence[Bag]) -> list[slice]:
    """Rows of each case in the bag that joins them."""
    ends = np.cumsum([0, *(bag.n for bag in cases)]).tolist()
    return [slice(*both) for both in pairwise(ends)]


def _part(whole: Prediction, case: Bag, rows: slice, meta: dict[str, Any]) -> Prediction:
    own: dict[str, Any] = {name: None if (values := getattr(whole, name)) is None else values[rows] for name in _ROWS}
    if whole.edges is not None:
        own["edges"] = _edges_inside(whole.edges, rows)
    return replace(
        whole,
        id=case.id,
        scores=whole.scores[rows],
        coords=None if case.coords is None else case.coords.cpu().numpy(),
        frame=case.frame,
        meta=meta,
        **own,
    )


def _edges_inside(edges: np.ndarray, rows: slice) -> np.ndarray:
    """Edges between these rows, counted from the first of them; none leads out of them."""
    inside: np.ndarray = edges[:, (edges[0] >= rows.start) & (edges[0] < rows.stop)] - rows.start
    return inside
