"""From scores to probabilities: curves that a calibration fits, stores and applies."""

from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from smmil.config import checked
from smmil.errors import SmmilError
from smmil.evaluate.instances import instance_score
from smmil.prediction import Prediction

_MOST_KNOTS = 1_000_000


class _Section(BaseModel):
    """Part of a file of calibration: every field is known, typed and finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ProbabilityMap(_Section):
    """From a score to a probability: Platt's 1 / (1 + exp(-slope score - intercept)), or straight lines between knots.

    x, y  platt: slope and intercept, one number each; isotonic: ascending scores of the knots and their probabilities
    """

    method: Literal["platt", "isotonic"]
    x: list[float] = Field(min_length=1, max_length=_MOST_KNOTS)
    y: list[float] = Field(min_length=1, max_length=_MOST_KNOTS)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.x) != len(self.y) or (self.method == "platt" and len(self.x) != 1):
            raise ValueError(f"{self.method}: {len(self.x)} and {len(self.y)} numbers do not belong together")
        if self.method == "isotonic" and ((np.diff(self.x) < 0).any() or (np.diff(self.y) < 0).any()):
            raise ValueError("isotonic: the knots are not in ascending order")
        if self.method == "isotonic" and not 0 <= self.y[0] <= self.y[-1] <= 1:
            raise ValueError("isotonic: probabilities are from 0 to 1")
        return self

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities of scores."""
        from scipy.special import expit

        if self.method == "platt":
            return np.asarray(expit(self.x[0] * np.asarray(scores, dtype=np.float64) + self.y[0]))
        return np.asarray(np.interp(scores, self.x, self.y))

    @classmethod
    def fit(cls, method: str, scores: np.ndarray, truth: np.ndarray) -> "ProbabilityMap":
        """Platt's logistic curve, with his softened targets, or the best ascending step function of scikit-learn."""
        if method == "isotonic":
            from sklearn.isotonic import IsotonicRegression

            fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(scores, truth.astype(np.float64))
            return cls(method="isotonic", x=fitted.X_thresholds_.tolist(), y=fitted.y_thresholds_.tolist())
        from sklearn.linear_model import LogisticRegression

        # A target between 0 and 1 is a row of each class with that weight; the scale only helps the solver.
        positives, negatives = int(truth.sum()), int((~truth).sum())
        soft = np.where(truth, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        middle, scale = float(scores.mean()), float(scores.std()) or 1.0
        rows = np.tile((scores - middle) / scale, 2)[:, None]
        labels = np.repeat([1, 0], len(scores))
        curve = LogisticRegression(C=np.inf, max_iter=1000, tol=1e-8)
        curve.fit(rows, labels, sample_weight=np.concatenate([soft, 1 - soft]))
        slope = float(curve.coef_[0, 0]) / scale
        return cls(method="platt", x=[slope], y=[float(curve.intercept_[0]) - slope * middle])


def calibrated_probability(
    prediction: Prediction, column: int | None = None, scores: np.ndarray | None = None
) -> np.ndarray | None:
    """Calibrated probability of each instance, or of given scores; None without a calibration of this column."""
    stated = prediction.meta.get("calibration")
    if not isinstance(stated, dict) or stated.get("column") != column or stated.get("instance") is None:
        return None
    try:
        curve = checked(ProbabilityMap, stated["instance"], prediction.id)
        return curve(instance_score(prediction, column) if scores is None else scores)
    except SmmilError:
        return None  # not as `applied` writes it
