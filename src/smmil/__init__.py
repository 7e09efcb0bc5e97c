"""Multiple instance learning with localization: bags, graphs, the operator Sm, models, training and metrics.

The names of `__all__` are imported on first use, so that `import smmil` stays fast and loads no torch. Their types are
in `__init__.pyi`.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.2.0"

_MODULE_OF = {
    "Frame": "frame",
    "Graph": "graph",
    "grid_graph": "graph",
    "radius_graph": "graph",
    "knn_graph": "graph",
    "chain_graph": "graph",
    "Bag": "bag",
    "BagBatch": "bag",
    "sm": "nn",
    "sm_exact": "nn",
    "Sm": "nn",
    "AttentionPool": "nn",
    "SmAttentionPool": "nn",
    "create_model": "models",
    "list_models": "models",
    "Output": "models",
    "fit": "train",
    "embed": "predict",
    "explain": "predict",
    "faithfulness": "predict",
    "Prediction": "prediction",
    "bag_metrics": "evaluate",
    "instance_metrics": "evaluate",
    "froc": "evaluate",
    "bootstrap_ci": "evaluate",
    "compare": "evaluate",
    "mean_ranks": "evaluate",
}
_CALLABLE_PACKAGES = ("predict", "evaluate")

__all__ = [*_MODULE_OF, *_CALLABLE_PACKAGES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _CALLABLE_PACKAGES:
        return import_module(f"smmil.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'smmil' has no attribute {name!r}")
    value = getattr(import_module(f"smmil.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallablePackage(ModuleType):
    """A package that is called as the function `__wrapped__`."""

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)


def make_callable(package: str, function: Callable[..., Any]) -> None:
    """Let calling an imported package call `function`.

    `smmil.predict` and `smmil.evaluate` are functions of the library and packages as well; Python binds the package to
    the name as soon as anything in it is imported, so the package itself must be callable.
    """
    module = sys.modules[package]
    module.__class__ = _CallablePackage
    module.__wrapped__ = function  # type: ignore[attr-defined]
