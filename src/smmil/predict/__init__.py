"""Predictions of bags by a model, and files of them for the cases of a run; the package is callable as `predict`."""

from smmil import make_callable
from smmil.predict.cases import (
    PARTS,
    Origin,
    Predicted,
    case_file,
    feature_source,
    origin_of,
    predict_run,
    predict_table,
    refuse_other_features,
    run_config,
    write_failures,
)
from smmil.predict.inference import (
    CHECKPOINTS,
    TrainedModel,
    load_run,
    load_trained,
    outputs,
    predict,
    probabilities,
    rebuilt,
)

__all__ = [
    "CHECKPOINTS",
    "Origin",
    "PARTS",
    "Predicted",
    "TrainedModel",
    "case_file",
    "feature_source",
    "load_run",
    "load_trained",
    "outputs",
    "predict",
    "predict_run",
    "predict_table",
    "origin_of",
    "probabilities",
    "rebuilt",
    "run_config",
    "refuse_other_features",
    "write_failures",
]

make_callable(__name__, predict)
