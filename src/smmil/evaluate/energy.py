"""How rough the scores are between neighbours: normalised Dirichlet energies."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.average import defined, exact_mean
from smmil.evaluate.instances import instance_score
from smmil.prediction import Prediction

NAMES = ("rayleigh", "mean", "minmax")


def energies(predictions: Sequence[Prediction], column: int | None = None) -> dict[str, Any]:
    """Each energy averaged over the bags where it is defined, with their number: n_rayleigh, n_mean, n_minmax.

    Bags without edges are left out, counted in n_without_edges and mentioned in `notes`.
    """
    rows = [bag_energies(p, column) for p in predictions if p.edges is not None]
    result: dict[str, Any] = {}
    for name in NAMES:
        numbers = defined(row[name] for row in rows)
        result[name] = exact_mean(numbers)
        result[f"n_{name}"] = len(numbers)
    missing = len(predictions) - len(rows)
    notes = [f"{missing} of {len(predictions)} bags have no edges stored and no energy"] if missing else []
    return {**result, "n_bags": len(rows), "n_without_edges": missing, "notes": notes}


def bag_energies(prediction: Prediction, column: int | None = None) -> dict[str, float]:
    """Roughness of the scores f of one bag on its graph, 0 is smoothest; nan where undefined.

    rayleigh  f'L~f / f'f in [0, 2], with the symmetrically normalised Laplacian L~ (undefined for f = 0)
    mean      f'L~f / N
    minmax    E_L(f scaled to [0, 1]) / sum(A) with the plain Laplacian (undefined for constant f or without edges)

    Every edge has weight 1; pairs count once however often they are listed, self-loops do not count. Isolated
    instances have L~_ii = 0.
    """
    if prediction.edges is None:
        raise DataError(f"{prediction.id}: energies need edges, which this prediction does not store; predict it again")
    f = instance_score(prediction, column)
    a, b = undirected_pairs(prediction.edges, len(f))
    degree = np.bincount(np.concatenate([a, b]), minlength=len(f))
    smooth = f / np.sqrt(np.maximum(degree, 1))
    rough = float(np.square(smooth[a] - smooth[b]).sum())
    size, span = float(f @ f), float(f.max() - f.min())
    apart = float(np.square(f[a] - f[b]).sum())
    return {
        "rayleigh": rough / size if size else float("nan"),
        "mean": rough / len(f),
        "minmax": apart / span**2 / (2 * len(a)) if span and len(a) else float("nan"),
    }


def undirected_pairs(edges: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Each undirected edge once, smaller instance first."""
    low, high = edges.min(0), edges.max(0)
    keys = np.unique((low * n + high)[low != high])
    return keys // n, keys % n
