"""Predictions for the tests of this room: labels known and unknown, ties, patients with several cases."""

import numpy as np

from smmil.prediction import Prediction


def chain(n):
    return np.stack([np.arange(n - 1), np.arange(1, n)])


def random_cases(n=24, seed=0, noise=1.0, levels=None, ids="case"):
    """n scans of 5 to 14 slices on a chain, two per patient; some slices of unknown label, some scans without any.

    levels  round scores and probabilities to so many levels, so that ties abound
    """
    rng = np.random.default_rng(seed)
    return [_scan(rng, i, noise, levels, ids) for i in range(n)]


def _scan(rng, i, noise, levels, ids):
    size, y = 5 + i % 10, i % 3 > 0
    truth = ((np.arange(size) % 5 < 2) & y).astype(int)
    truth[(np.arange(size) + i) % 7 == 0] = -1
    scores, said = truth + noise * rng.normal(size=size), 1 / (1 + np.exp(-(2 * y - 1 + noise * rng.normal())))
    if levels:
        scores, said = np.round(scores * levels) / levels, np.round(said * levels) / levels
    return Prediction(
        f"{ids}{i:03}", [said], scores, edges=chain(size), y=None if i % 11 == 10 else int(y),
        y_inst=None if i % 13 == 12 else truth, meta={"group": f"patient {i // 2}", "score_kind": "attention logit"},
    )  # fmt: skip


def bags(probs, labels, patients=None):
    """One-instance cases with these probabilities and labels, in order."""
    return [
        Prediction(f"c{i:04}", np.atleast_1d(p), [0.0], y=y, meta={"patient": patients[i]} if patients else {})
        for i, (p, y) in enumerate(zip(probs, labels, strict=True))
    ]


def drawing(name, scores, truth, y=1):
    """A picture of digits as a case: cells of one row per line, dots are no tissue, neighbours share an edge or corner.

    truth  # lesion, - normal, ? unknown
    """
    heat, labels = (np.array([list(line.split()[0]) for line in text.split("\n")]) for text in (scores, truth))
    cells = np.argwhere(heat != ".")
    near = np.abs(cells[:, None] - cells[None]).max(-1) == 1
    known = {"#": 1, "-": 0, "?": -1}
    y_inst = [known[labels[tuple(cell)]] for cell in cells]
    heights = [float(heat[tuple(cell)]) for cell in cells]
    return Prediction(name, [0.5], heights, coords=cells[:, ::-1], edges=np.argwhere(near).T, y=y, y_inst=y_inst)
