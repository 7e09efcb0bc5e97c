"""Predictions of targets other than classes, made by hand: a planted truth, noise, patients, and a small map."""

import numpy as np

from smmil.frame import Frame
from smmil.prediction import Prediction

TIMES = (6.0, 12.0, 24.0, 48.0)
LABELS = ("blood", "oedema", "fracture")
SIDE, STEP = 4, 512
KINDS = ("multilabel", "ordinal", "regression", "survival", "cox")


def target_case(kind, id_, probs, *, target=None, value=None, y=None, names=(), times=(), patient=None, **more):
    """One prediction; more: fields of Prediction."""
    facts = {"kind": kind, "columns": list(names), **({"edges": list(times)} if times else {})}
    meta = {"target": facts, "score_kind": "attention logit", **({} if patient is None else {"patient": patient})}
    scores = more.pop("scores", np.zeros(1))
    return Prediction(id_, probs, scores, target=target, value=value, y=y, meta=meta, **more)


def survival_case(id_, risk, time=None, event=None, *, kind="survival", times=TIMES, **more):
    """Exponential survival with this logarithmic risk; unlabelled without time."""
    probs = 1 - np.exp(-np.exp(risk) * np.array(times) / 24)
    target = None if time is None else np.array([time, event], dtype=float)
    names = ("time", "event")
    return target_case(kind, id_, probs, target=target, value=float(risk), names=names, times=times, **more)


def _map(rng, lesions):
    """Scores, labels, places and neighbours of a lattice whose first `lesions` instances are positive."""
    truth = (np.arange(SIDE * SIDE) < lesions).astype(int)
    places = np.stack(np.divmod(np.arange(SIDE * SIDE), SIDE)[::-1], 1) * STEP
    index = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    pairs = (index[:, :-1], index[:, 1:]), (index[:-1], index[1:])
    edges = np.hstack([np.stack([a.ravel(), b.ravel()]) for a, b in pairs])
    return {
        "scores": rng.normal(size=SIDE * SIDE) + 1.5 * truth,
        "y_inst": truth,
        "coords": places,
        "edges": edges,
        "frame": Frame((STEP, STEP)),
    }


def _softmax(z):
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


def target_cohort(kind, n=40, seed=0, noise=0.7, model=0):
    """n patients with one case each; models of equal quality differ by their noise alone."""
    truth, own = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2, model])
    found = []
    for i in range(n):
        latent = truth.normal()
        answer = latent + noise * own.normal()
        more = {"patient": f"p{i}", **_map(np.random.default_rng([seed, 3, i]), int(latent > 0) * 3)}
        id_ = f"case{i:03}"
        if kind in ("survival", "cox"):
            time, censored = truth.exponential(24 * np.exp(-latent)), truth.exponential(40)
            found.append(survival_case(id_, answer, min(time, censored), int(time <= censored), kind=kind, **more))
        elif kind == "regression":
            number = 10 + 3 * latent
            found.append(target_case(kind, id_, [], target=[number], value=10 + 3 * answer, names=("size",), **more))
        elif kind == "ordinal":
            level = int(np.clip(np.floor(latent + 2), 0, 3))
            probs = _softmax(-np.square(np.arange(4) - (answer + 1.5)))
            mean = float(probs @ np.arange(4))
            found.append(target_case(kind, id_, probs, y=level, value=mean, names=("label",), **more))
        else:
            hidden = latent + truth.normal(size=3)
            labels = (hidden > 0).astype(float)
            probs = 1 / (1 + np.exp(-hidden - noise * own.normal(size=3)))
            labels[truth.random(3) < 0.1] = np.nan
            y = None if np.isnan(labels).all() else int(np.nan_to_num(labels).max())
            found.append(target_case(kind, id_, probs, target=labels, y=y, names=LABELS, **more))
    return found
