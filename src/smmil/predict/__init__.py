"""Predictions of bags by a model, and files of them for the cases of a run; the package is callable as `predict`."""

from smmil import make_callable
from smmil.predict.cases import (
    Origin,
    Predicted,
    feature_source,
    predict_run,
    predict_table,
    run_config,
)
from smmil.predict.embeddings import Embedded, embed, embed_run
from smmil.predict.ensemble import predict_ensemble
from smmil.predict.explained_cases import Explained, explain_run
from smmil.predict.explanation import METHODS, Explanation, explain
from smmil.predict.inference import TrainedModel, load_run, load_trained, predict, rebuilt
from smmil.predict.removal import Faithfulness, faithfulness

__all__ = ["Origin", "Predicted", "TrainedModel", "feature_source", "load_run", "load_trained", "predict"]
__all__ += ["predict_ensemble", "predict_run", "predict_table", "rebuilt", "run_config"]
__all__ += ["METHODS", "Explanation", "Explained", "Faithfulness", "explain", "explain_run", "faithfulness"]
__all__ += ["Embedded", "embed", "embed_run"]

make_callable(__name__, predict)
