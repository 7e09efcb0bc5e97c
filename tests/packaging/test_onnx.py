"""ONNX files for bags of any size, checked against the model, or none at all."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from support.bags import chain_bag, grid_bag, without_edges, woven_bag
from support.quick import slow_unless

import smmil
from smmil.bag import BagBatch
from smmil.errors import ConfigError, MissingExtra
from smmil.files import read_json
from smmil.models import create_model
from smmil.nn.covariates import WithCovariates
from smmil.packaging import load_package, onnx_export, write_package
from smmil.packaging.onnx_export import _export_onnx
from smmil.synthetic import planted_slides

# Looked for, not imported: that takes seconds, and only the process that runs these tests needs them.
pytestmark = pytest.mark.skipif(
    not all(find_spec(library) for library in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra onnx is not installed",
)

EXPORTED = [
    ("max_pool", {}),
    ("abmil", {"gated": True}),
    ("sm_ap", {"where": "mid"}),
    ("sm_ap", {"where": "late"}),
    ("sm_ap", {"steps": "exact", "alpha": 0.9}),
    ("sm_ap", {"normalization": "rw"}),
    ("clam", {}),
    ("clam", {"branches": "multi", "sm": {"where": "early"}}),
    ("dsmil", {}),
    ("transformer_abmil", {}),
    ("sm_tap", {}),
    ("patch_gcn", {}),
    ("deep_graph_surv", {}),
    ("deep_graph_surv", {"variant": "gin"}),
    ("gtp", {"score": "attention"}),
    ("iib_mil", {}),
    ("prob_smooth", {"gated": True}),
    ("bayes_mil", {"crf": 0.38}),
    ("additive_mil", {"attention": "mlp"}),
    ("ac_mil", {"score": "bag"}),
    ("attri_mil", {}),
    ("smmile", {}),
    ("sm_instance", {"pool": "noisy_or"}),
    ("sm_gcn", {}),
]


VARIANTS = [
    ("mean_pool", {}),
    ("mean_pool", {"sm": {"where": "late"}}),
    ("max_pool", {"sm": {"where": "early", "isolated": "shrink"}}),
    ("abmil", {"gated": True, "spectral_norm": True}),
    *(
        ("sm_ap", {"where": where, "normalization": kind})
        for where in ("early", "mid", "late")
        for kind in ("sym", "rw")
    ),
    ("sm_ap", {"normalization": "sym_loop", "gated": True, "att_bias": False}),
    ("sm_ap", {"isolated": "shrink", "alpha": 0.9}),
    ("sm_ap", {"steps": "exact", "alpha": 0.9}),
    ("sm_ap", {"alpha": 0.0}),
    ("sm_ap", {"steps": 0}),
    ("sm_ap", {"steps": 3}),
    ("transformer_abmil", {}),
    ("sm_tap", {"where": "mid"}),
    ("sm_tap", {"smooth": "encoder", "sm_encoder": "output"}),
    ("clam", {"branches": "multi", "sm": {"where": "early"}}),
    ("dsmil", {"sm": {"where": "early"}}),
    ("deep_graph_surv", {}),
    ("deep_graph_surv", {"variant": "gin"}),
    ("patch_gcn", {}),
    ("gtp", {"score": "attention"}),
    ("prob_smooth", {}),
    ("bayes_mil", {}),
    ("bayes_mil", {"crf": 0.38}),
    ("additive_mil", {"attention": "gated", "centred": True}),
    ("additive_mil", {"sm": {"where": "map"}}),
    ("ac_mil", {}),
    ("ac_mil", {"score": "bag", "sm": {"where": "late"}}),
    ("attri_mil", {"sm": {"where": "early"}}),
    ("smmile", {"warmup": 0, "sm": {"where": "late"}}),
    ("sm_instance", {}),
    ("sm_instance", {"pool": "noisy_or", "normalization": "sym"}),
    ("sm_gcn", {}),
    ("sm_gcn", {"layers": 2, "where": "none", "norm": True}),
]


def with_drawn_weights(name, n_classes=1, **options):
    """A model whose every weight was drawn, also those that start at 0 or 1, in double precision."""
    model = create_model(name, 16, n_classes, **options).double().eval()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return model


def as_tensors(model, bag):
    """What the model gives as a function of tensors, its edges in random order."""
    order = torch.randperm(bag.graph.indices.numel(), generator=torch.Generator().manual_seed(0))
    edges, weight = bag.graph.edges()[:, order], bag.graph.weight[order]
    with torch.no_grad():
        return onnx_export._Traceable(onnx_export._fixed_model(model))(bag.x, edges, weight)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda value: str(value))
def test_a_model_is_the_same_function_of_tensors(name, options):
    model = with_drawn_weights(name, 3, **options)
    bags = [woven_bag(23, dtype=torch.float64), without_edges(grid_bag(4, dtype=torch.float64))]
    for bag in [*bags, grid_bag(1, dtype=torch.float64)]:
        with torch.no_grad():
            wanted = model(BagBatch.pack([bag]))
        for got, true in zip(as_tensors(model, bag), (wanted.logits, wanted.scores), strict=True):
            assert torch.allclose(got, true, rtol=1e-11, atol=1e-11)


def test_exporting_leaves_the_model_as_it_was():
    model = create_model("sm_ap", 16, spectral_norm=True).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    as_tensors(model, woven_bag(23))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert before.keys() == model.state_dict().keys()
    assert model.training
    assert model.pool.sm.learned


def run_file(path: Path, bag):
    """What onnxruntime says about a bag."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {"features": bag.x, "edges": bag.graph.edges(), "edge_weight": bag.graph.weight.float()}
    names = [entry.name for entry in session.get_inputs()]
    assert [entry.name for entry in session.get_outputs()] == ["logits", "scores"]
    return session.run(None, {name: given[name].numpy() for name in names})


def kinds_of_nodes(path: Path) -> set[str]:
    import onnx

    return {node.op_type for node in onnx.load(path).graph.node}


def assert_same(model, path, bag):
    with torch.no_grad():
        wanted = model.eval()(BagBatch.pack([bag]))
    logits, scores = run_file(path, bag)
    np.testing.assert_allclose(logits, wanted.logits.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores, wanted.scores.numpy(), rtol=1e-4, atol=1e-5)


def bags_of_many_sizes():
    scans = [chain_bag(1), chain_bag(33)]
    return [*(grid_bag(n, seed=n) for n in (1, 2, 3, 50, 1000)), woven_bag(40), without_edges(grid_bag(5)), *scans]


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    """A small SmAP and its file."""
    torch.manual_seed(0)
    model = create_model("sm_ap", 16, dim=12, att_dim=6, steps=3)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    assert _export_onnx(model, "sm_ap", 16, path, {"use": "research"}) == ["features", "edges", "edge_weight"]
    return model, path


def test_a_smooth_model_gives_the_same_for_bags_of_any_size(smooth):
    for bag in bags_of_many_sizes():
        assert_same(*smooth, bag)


@pytest.mark.parametrize("name", ["abmil", pytest.param("sm_ap", marks=pytest.mark.slow)])
def test_covariates_are_an_input_of_the_file_and_count_in_it(name, tmp_path):
    from onnxruntime import InferenceSession

    torch.manual_seed(0)
    model = WithCovariates(create_model(name, 16, dim=12, att_dim=6), 3, 1).eval()
    torch.nn.init.normal_(model.covariates)
    inputs = _export_onnx(model, name, 16, tmp_path / "model.onnx")
    assert inputs == ["features", *(["edges", "edge_weight"] if name == "sm_ap" else []), "covariates"]
    session = InferenceSession(str(tmp_path / "model.onnx"))
    for bag in (grid_bag(1), grid_bag(60, seed=3)):
        for known in (torch.zeros(3), torch.tensor([1.0, -2.0, 0.5])):
            graph = {"edges": bag.graph.edges().numpy(), "edge_weight": bag.graph.weight.float().numpy()}
            every = {"features": bag.x.numpy(), **graph, "covariates": known[None].numpy()}
            logits, _ = session.run(None, {key: every[key] for key in inputs})
            with torch.no_grad():
                expected = model(BagBatch.pack([replace(bag, covariates=known)])).logits
            assert np.allclose(logits, expected.numpy(), atol=1e-4)


def test_neighbours_count_in_the_file(smooth):
    bag = grid_bag(50, seed=1)
    alone = replace(bag, graph=without_edges(bag).graph)
    assert np.abs(run_file(smooth[1], bag)[1] - run_file(smooth[1], alone)[1]).max() > 1e-3


def test_no_sum_is_left_to_threads_that_overwrite_each_other(smooth):
    """onnxruntime adds with several threads in ScatterND, and loses sums where rows meet; ScatterElements has one."""
    assert "ScatterElements" in kinds_of_nodes(smooth[1])
    assert "ScatterND" not in kinds_of_nodes(smooth[1])
    bag = grid_bag(3000, seed=1)
    first = run_file(smooth[1], bag)[1]
    assert all(np.array_equal(first, run_file(smooth[1], bag)[1]) for _ in range(10))


def test_the_file_names_no_folder_of_this_machine(smooth):
    import onnx

    content = smooth[1].read_bytes()
    for word in (b"site-packages", b"/smmil/", str(Path.home()).encode(), sys.prefix.encode(), b".py"):
        assert word not in content, word
    assert {entry.key: entry.value for entry in onnx.load(smooth[1]).metadata_props} == {"use": "research"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), EXPORTED, ids=lambda value: str(value))
def test_each_of_these_models_gives_the_same_for_bags_of_any_size(name, options, tmp_path):
    torch.manual_seed(0)
    model = create_model(name, 16, **options)
    _export_onnx(model, name, 16, tmp_path / "model.onnx")
    assert "ScatterND" not in kinds_of_nodes(tmp_path / "model.onnx")
    for bag in bags_of_many_sizes():
        assert_same(model, tmp_path / "model.onnx", bag)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("patch_gcn", {"knn": 8}, "coords"),
        ("dtfd_mil", {}, ""),
        ("sm_ap", {"steps": "exact", "normalization": "rw"}, "needs more steps the more degrees differ"),
    ],
)
def test_a_model_that_cannot_be_exported_is_named_and_leaves_no_file(name, options, reason, tmp_path):
    with pytest.raises(ConfigError, match=f"^model {name}: cannot be written as ONNX .*{reason}.*use --no-onnx$"):
        _export_onnx(create_model(name, 16, **options), name, 16, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["camil", "gtp", "set_mil", "trans_mil"])
def test_models_bound_to_one_size_give_an_error_and_never_a_wrong_file(name, tmp_path):
    with pytest.raises(ConfigError, match=f"^model {name}: cannot be written as ONNX .*use --no-onnx$"):
        _export_onnx(create_model(name, 16), name, 16, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_from_the_model_is_not_kept(smooth, tmp_path, monkeypatch):
    """The program of a model with other weights stands for an exporter that gets something wrong."""
    import onnx

    torch.manual_seed(1)
    other = create_model("sm_ap", 16, dim=12, att_dim=6, steps=3)
    monkeypatch.setattr(onnx_export, "_trace", lambda *_: onnx.load(smooth[1]))
    with pytest.raises(ConfigError, match=r"model sm_ap: .*(logits|scores) of a bag of 1 differ by up to"):
        _export_onnx(other, "sm_ap", 16, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_small_difference_at_one_size_is_enough(smooth, monkeypatch):
    model, path = smooth
    names = ["features", "edges", "edge_weight"]
    onnx_export._compare(model, path.read_bytes(), names, 16)
    plain = onnx_export._expected

    def changed(model, bag):
        out = plain(model, bag)
        return replace(out, scores=out.scores + (1e-3 if bag.n == 1000 else 0))

    monkeypatch.setattr(onnx_export, "_expected", changed)
    with pytest.raises(Exception, match=r"scores of a bag of 1000 differ by up to 0\.001"):
        onnx_export._compare(model, path.read_bytes(), names, 16)


def test_a_package_with_onnx_loads_and_tells_its_inputs(road, tmp_path, monkeypatch, smooth):
    import onnx

    monkeypatch.setattr(onnx_export, "_trace", lambda *_: onnx.load(smooth[1]))
    monkeypatch.setattr(onnx_export, "_compare", lambda *_: None)
    done = write_package(road.run, tmp_path / "p", onnx=True)
    assert "model.onnx" in done.files
    assert read_json(tmp_path / "p" / "config.json")["onnx_inputs"] == ["features", "edges", "edge_weight"]
    assert "`model.onnx` takes features, edges, edge_weight" in (tmp_path / "p" / "README.md").read_text()
    load_package(tmp_path / "p", trust_code=True)


def test_a_model_that_cannot_be_exported_leaves_no_package(road, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_trace", lambda *_: 1 / 0)
    with pytest.raises(ConfigError, match="--no-onnx"):
        write_package(road.run, tmp_path / "p", onnx=True)
    assert list(tmp_path.iterdir()) == []


def test_missing_libraries_are_named_with_the_way_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtra, match=r"onnxscript.*smmil\[onnx\]"):
        _export_onnx(create_model("abmil", 4), "abmil", 4, tmp_path / "x.onnx")


@pytest.mark.parametrize(
    "kind", slow_unless("survival".__eq__, ["multilabel", "ordinal", "regression", "survival", "cox"])
)
def test_logits_of_the_file_mean_for_other_targets_what_the_docs_say(kind, tmp_path):
    """Formulas of docs/targets.md, from the file and config.json alone."""
    bags = planted_slides(24, "survival" if kind == "cox" else kind, size=(8, 14), dim=6)
    settings = {"epochs": 1, "threads": 1, "batch_size": 8, "target": {"kind": kind, "intervals": 2}}
    small = {"dim": 8, "att_dim": 4, "steps": 3}
    fitted = smmil.fit("sm_ap", bags[:16], bags[16:], out=tmp_path / "run", options=small, **settings)
    write_package(tmp_path / "run", tmp_path / "package", onnx=True)
    facts = json.loads((tmp_path / "package/config.json").read_text())["target"]
    for bag, wanted in zip(bags[:4], smmil.predict(fitted.model, bags[:4]), strict=True):
        logits = run_file(tmp_path / "package/model.onnx", bag)[0][0].astype(float)
        probs, value = _meaning(kind, facts, logits)
        np.testing.assert_allclose(wanted.probs, probs, rtol=1e-3, atol=1e-5)
        assert value is None or value == pytest.approx(wanted.value, rel=1e-3, abs=1e-5)


def _meaning(kind, facts, logits):
    sigmoid = 1 / (1 + np.exp(-logits))
    if kind == "multilabel":
        return sigmoid, None
    if kind == "survival":
        return 1 - np.cumprod(1 - sigmoid), None
    if kind == "regression":
        return np.zeros(0), facts["mean"] + facts["deviation"] * logits[0]
    if kind == "cox":
        return 1 - np.exp(-np.exp(np.array(facts["log_baseline"]) + logits)), logits[0]
    eta = logits[0] - np.concatenate([[0], np.cumsum(np.log1p(np.exp(logits[1:])))])
    above = np.concatenate([[1], 1 / (1 + np.exp(-eta)), [0]])
    probs = above[:-1] - above[1:]
    return probs, probs @ np.arange(len(probs))
