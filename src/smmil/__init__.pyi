from collections.abc import Callable
from typing import Any

from smmil.bag import Bag as Bag
from smmil.bag import BagBatch as BagBatch
from smmil.evaluate import bag_metrics as bag_metrics
from smmil.evaluate import bootstrap_ci as bootstrap_ci
from smmil.evaluate import compare as compare
from smmil.evaluate import froc as froc
from smmil.evaluate import instance_metrics as instance_metrics
from smmil.evaluate import mean_ranks as mean_ranks
from smmil.evaluate import summary as evaluate
from smmil.frame import Frame as Frame
from smmil.graph import Graph as Graph
from smmil.graph import chain_graph as chain_graph
from smmil.graph import grid_graph as grid_graph
from smmil.graph import knn_graph as knn_graph
from smmil.graph import radius_graph as radius_graph
from smmil.models import Output as Output
from smmil.models import create_model as create_model
from smmil.models import list_models as list_models
from smmil.nn import AttentionPool as AttentionPool
from smmil.nn import Sm as Sm
from smmil.nn import SmAttentionPool as SmAttentionPool
from smmil.nn import sm as sm
from smmil.nn import sm_exact as sm_exact
from smmil.predict import embed as embed
from smmil.predict import explain as explain
from smmil.predict import faithfulness as faithfulness
from smmil.predict import predict as predict
from smmil.prediction import Prediction as Prediction
from smmil.train import fit as fit

__version__: str
__all__ = [
    "AttentionPool",
    "Bag",
    "BagBatch",
    "Frame",
    "Graph",
    "Output",
    "Prediction",
    "Sm",
    "SmAttentionPool",
    "__version__",
    "bag_metrics",
    "bootstrap_ci",
    "chain_graph",
    "compare",
    "create_model",
    "embed",
    "evaluate",
    "explain",
    "faithfulness",
    "fit",
    "froc",
    "grid_graph",
    "instance_metrics",
    "knn_graph",
    "list_models",
    "mean_ranks",
    "predict",
    "radius_graph",
    "sm",
    "sm_exact",
]

def make_callable(package: str, function: Callable[..., Any]) -> None: ...
