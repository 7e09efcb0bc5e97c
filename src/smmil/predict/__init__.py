"""Predictions of bags by a model, and files of them for the cases of a run; the package is callable as `predict`."""

from smmil import make_callable
from smmil.predict.cases import (
    Origin,
    Predicted,
    case_file,
    feature_source,
    predict_run,
    predict_table,
    run_config,
    write_failures,
)
from smmil.predict.inference import TrainedModel, load_run, load_trained, predict, rebuilt

__all__ = [
    "Origin",
    "Predicted",
    "TrainedModel",
    "case_file",
    "feature_source",
    "load_run",
    "load_trained",
    "predict",
    "predict_run",
    "predict_table",
    "rebuilt",
    "run_config",
    "write_failures",
]

make_callable(__name__, predict)
