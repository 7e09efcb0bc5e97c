"""Predictions of bags by a model, and files of them for the cases of a run; the package is callable as `predict`."""

from smmil import make_callable
from smmil.predict.cases import (
    Origin,
    Predicted,
    feature_source,
    predict_ensemble,
    predict_run,
    predict_table,
    run_config,
)
from smmil.predict.inference import TrainedModel, load_run, load_trained, predict, rebuilt

__all__ = ["Origin", "Predicted", "TrainedModel", "feature_source", "load_run", "load_trained", "predict"]
__all__ += ["predict_ensemble", "predict_run", "predict_table", "rebuilt", "run_config"]

make_callable(__name__, predict)
