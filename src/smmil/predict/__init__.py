"""A model and bags to Predictions; a finished run and a manifest to files of them."""

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
    on_device,
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
    "on_device",
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
