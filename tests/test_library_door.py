"""`import smmil`: public names on demand, and two packages that are functions as well."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import smmil
from smmil.synthetic import synthetic_slides

CONTRACT = {
    "smmil.graph": ("Graph", "grid_graph", "radius_graph", "knn_graph", "chain_graph"),
    "smmil.bag": ("Bag", "BagBatch"),
    "smmil.nn": ("sm", "sm_exact", "Sm", "AttentionPool", "SmAttentionPool"),
    "smmil.models": ("create_model", "list_models", "Output"),
    "smmil.prediction": ("Prediction",),
    "smmil.evaluate": ("bag_metrics", "instance_metrics", "froc", "bootstrap_ci", "compare", "mean_ranks"),
    "smmil.frame": ("Frame",),
    "smmil.train": ("fit",),
    "smmil.predict": ("embed", "explain", "faithfulness"),
}
NAMES = [(module, name) for module, names in CONTRACT.items() for name in names]


def python(code):
    """Run code in a fresh interpreter and give what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_name_of_the_contract_is_offered_and_is_the_object_of_its_module():
    for module, name in NAMES:
        assert getattr(smmil, name) is getattr(sys.modules[module], name), name
    assert set(smmil.__all__) == {name for _, name in NAMES} | {"predict", "evaluate", "__version__"}
    assert set(smmil.__all__) <= set(dir(smmil))


def test_importing_smmil_loads_nothing_heavy_and_a_name_without_torch_stays_without_it():
    heavy = "{'torch', 'pandas', 'sklearn', 'numpy', 'h5py'} & set(sys.modules)"
    assert python(f"import sys, smmil; dir(smmil); smmil.Frame; print({heavy})") == "set()"
    assert python("import sys, smmil; smmil.bag_metrics; smmil.evaluate; print('torch' in sys.modules)") == "False"


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="module 'smmil' has no attribute 'fitt'"):
        smmil.fitt  # noqa: B018


def test_the_stub_types_exactly_the_names_that_are_offered():
    stub = ast.parse(Path(smmil.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    typed = {
        alias.asname: (node.module, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    renamed = {"predict": ("smmil.predict", "predict"), "evaluate": ("smmil.evaluate", "summary")}
    assert typed == {name: (module, name) for module, name in NAMES} | renamed
    (listed,) = [node.value for node in stub.body if isinstance(node, ast.Assign)]
    assert sorted(ast.literal_eval(listed)) == sorted(smmil.__all__)
    for name, (module, original) in renamed.items():
        assert inspect.signature(getattr(smmil, name)) == inspect.signature(getattr(sys.modules[module], original))


MAKE = "from smmil.synthetic import synthetic_slides; bags = synthetic_slides(4, size=(12, 20), dim=5); "
USE = "m = smmil.create_model('abmil', 5); print(smmil.evaluate(smmil.predict(m, bags))['bag']['n'])"


@pytest.mark.parametrize(
    "imports",
    [
        "import smmil.evaluate, smmil.predict.cases; from smmil.evaluate import bag_metrics",
        "from smmil import evaluate, predict; import smmil; assert evaluate.bag_metrics and predict.load_run",
    ],
)
def test_predict_and_evaluate_are_called_whatever_was_imported_before(imports):
    assert python(f"{imports}; {MAKE}{USE}") == "4"


def test_the_packages_keep_their_own_names():
    import smmil.evaluate
    import smmil.predict

    predictions = smmil.predict(smmil.create_model("max_pool", 5), synthetic_slides(3, size=(12, 20), dim=5))
    called, named = (f(predictions, threshold=0.5) for f in (smmil.evaluate, smmil.evaluate.summary))
    assert repr(called) == repr(named)  # nan is unequal to itself
    assert smmil.evaluate.bag_metrics is smmil.bag_metrics
    with pytest.raises(TypeError, match="unexpected keyword"):
        smmil.evaluate(predictions, treshold=0.5)
