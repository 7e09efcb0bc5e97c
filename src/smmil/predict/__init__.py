"""A model and bags to Predictions; a finished run and a manifest to files of them."""

from smmil.predict.cases import PARTS, Predicted, case_file, predict_run
from smmil.predict.inference import on_device, outputs, predict, probabilities
from smmil.predict.source import feature_source, refuse_other_features
from smmil.predict.trained import CHECKPOINTS, TrainedModel, load_run, load_trained

__all__ = [
    "CHECKPOINTS",
    "PARTS",
    "Predicted",
    "TrainedModel",
    "case_file",
    "feature_source",
    "load_run",
    "load_trained",
    "on_device",
    "outputs",
    "predict",
    "predict_run",
    "probabilities",
    "refuse_other_features",
]
