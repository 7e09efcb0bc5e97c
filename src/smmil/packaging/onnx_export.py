"""A trained model as one ONNX file for bags of any size, checked against the model itself before it is kept."""

import copy
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError, MissingExtra
from smmil.files import replacing
from smmil.frame import Frame
from smmil.graph import Graph, grid_graph
from smmil.models import Output
from smmil.nn.covariates import WithCovariates
from smmil.nn.smooth import Sm, plain_operators
from smmil.predict.inference import outputs
from smmil.sparse import sum_by_row

SIZES = (1, 2, 3, 50, 1000)
TRACED_SIZE = 7
RELATIVE, ABSOLUTE = 1e-4, 1e-5
GRAPH_INPUTS = ("edges", "edge_weight")
_STEP = 256
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _Traceable(nn.Module):
    """The model as a function of tensors: features (n, p) and, if it needs them, edges (2, e) with weights (e,), and
    covariates (1, q)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self,
        features: Tensor,
        edges: Tensor | None = None,
        edge_weight: Tensor | None = None,
        covariates: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        graph = None
        if edges is not None and edge_weight is not None:
            graph = _graph_of(edges, edge_weight, features.shape[0])
        offsets = torch.tensor([0, 1]) * features.shape[0]
        out = self.model(BagBatch(("bag",), features, offsets, (None,), graph=graph, covariates=covariates))
        return out.logits, out.scores


def _graph_of(edges: Tensor, weight: Tensor, n: int) -> Graph:
    """The graph of pairs (2, e) in any order; what `Graph.from_edges` checks is left to the caller of the file."""
    rows, order = edges[0].sort()
    counts = sum_by_row(rows, torch.ones_like(rows), n)
    return Graph(torch.nn.functional.pad(counts.cumsum(0), (1, 0)), edges[1][order], weight[order].double())


def _fixed_model(model: nn.Module) -> nn.Module:
    """A copy for use, whose Sm layers know the value of their α: how often the closed form iterates depends on it."""
    fixed = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    for layer in fixed.modules():
        if isinstance(layer, Sm):
            layer.fix_alpha()
    return fixed


def _export_onnx(
    model: nn.Module, name: str, in_dim: int, path: str | Path, facts: Mapping[str, str] | None = None
) -> list[str]:
    """Write the model to `path` and give the names of its inputs; an error, and no file, when it cannot be the same.

    Inputs: features (n, p) float32; where neighbours count also edges (2, e) int64, every pair in both directions, and
    edge_weight (e,) float32; of a model with covariates also these, standardised, (1, q) float32. Outputs: logits
    (1, c) and scores (n, k). n and e are free. `facts` go into the file.
    """
    cannot = f"model {name}: cannot be written as ONNX for bags of any size"
    for library in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(library)
        except ModuleNotFoundError:
            raise MissingExtra(library, "onnx", "--onnx") from None
    try:
        traceable = _Traceable(_fixed_model(model))
        width = model.covariates.shape[1] if isinstance(model, WithCovariates) else 0
        inputs = ["features", *(GRAPH_INPUTS if _needs_graph(traceable, in_dim, width) else ())]
        inputs += ["covariates"] if width else []
        content = _without_traces(_trace(traceable, inputs, in_dim, width), facts or {})
        _compare(model, content, inputs, in_dim, width)
    except (DataError, ConfigError) as problem:
        raise ConfigError(f"{cannot} ({problem}); use --no-onnx") from None
    # torch, onnxscript and onnxruntime share no error for what they cannot express
    except Exception as problem:  # noqa: BLE001
        what = "its program is bound to the size of the bag, or uses what ONNX lacks"
        raise ConfigError(f"{cannot} ({what}: {_first_line(problem)}); use --no-onnx") from None
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return inputs


def _first_line(problem: BaseException) -> str:
    """What the innermost error says, in one short line."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    lines = [" ".join(line.split()) for line in _COLOUR.sub("", str(problem)).splitlines()]
    return next(filter(None, lines), type(problem).__name__)[:120]


def _needs_graph(traceable: nn.Module, in_dim: int, width: int = 0) -> bool:
    """Whether the model asks for neighbours; an error when it asks for anything else but features and covariates."""
    with torch.no_grad():
        try:
            traceable(torch.zeros(TRACED_SIZE, in_dim), covariates=torch.zeros(1, width) if width else None)
        except DataError as problem:
            if "'graph'" not in str(problem):
                raise
            return True
    return False


def _trace(traceable: nn.Module, inputs: list[str], in_dim: int, width: int = 0) -> Any:
    """The ONNX program (a protobuf) of one example, its sizes left open."""
    n, e = torch.export.Dim("n"), torch.export.Dim("e")
    open_sizes = {"features": {0: n}, "edges": {1: e}, "edge_weight": {0: e}, "covariates": {}}
    example = _tensors(_bag(TRACED_SIZE, in_dim, width), inputs)
    places = list(open_sizes) if width else inputs  # covariates come last, also where there are no edges
    sizes = tuple(open_sizes[name] if name in inputs else None for name in places)
    given = tuple(example.get(name) for name in places)
    with _quiet(), torch.no_grad():
        recorded = torch.export.export(traceable, given, dynamic_shapes=sizes, strict=False)
        program = torch.onnx.export(
            recorded.run_decompositions(plain_operators()),
            dynamo=True,
            input_names=inputs,
            output_names=["logits", "scores"],
            verbose=False,
        )
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress output and warnings of the ONNX exporter; its exceptions pass."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _without_traces(program: Any, facts: Mapping[str, str]) -> bytes:
    """The file without the exporter's notes, which name folders of this machine; with `facts` instead."""
    graph = program.graph
    nodes = [*graph.node, *(node for function in program.functions for node in function.node)]
    parts = [program, graph, *program.functions, *nodes]
    for entry in (*parts, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        entry.ClearField("doc_string")
        entry.ClearField("metadata_props")
    for key, value in sorted(facts.items()):
        program.metadata_props.add(key=key, value=value)
    return program.SerializeToString(deterministic=True)


def _compare(
    model: nn.Module,
    content: bytes,
    inputs: list[str],
    in_dim: int,
    width: int = 0,
    sizes: tuple[int, ...] = SIZES,
) -> None:
    """An error unless onnxruntime and the model agree on bags of all these sizes."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    for n in sizes:
        bag = _bag(n, in_dim, width)
        logits, scores = session.run(None, {k: v.numpy() for k, v in _tensors(bag, inputs).items()})
        expected = _expected(model, bag)
        for what, got, other in (("logits", logits, expected.logits), ("scores", scores, expected.scores)):
            wanted = other.numpy()
            if got.shape != wanted.shape:
                raise DataError(f"{what} of a bag of {n} have shape {got.shape} instead of {wanted.shape}")
            if not np.allclose(got, wanted, rtol=RELATIVE, atol=ABSOLUTE):
                raise DataError(f"{what} of a bag of {n} differ by up to {np.abs(got - wanted).max():.3g}")


def _expected(model: nn.Module, bag: Bag) -> Output:
    ((_, output),) = outputs(model.cpu(), [bag], "cpu")
    return output


def _bag(n: int, in_dim: int, width: int = 0) -> Bag:
    """Tissue with holes, isolated tiles, weighted neighbours and this many covariates; the same for every call."""
    rng = np.random.default_rng(n)
    side = int(np.ceil((2 * n) ** 0.5))
    cells = np.sort(rng.choice(side * side, n, replace=False))
    coords = np.stack([cells % side, cells // side], 1) * _STEP
    graph = grid_graph(coords, _STEP)
    upper = graph.edges().numpy()[:, (graph.rows < graph.indices).numpy()]
    woven = type(graph).from_edges(upper, rng.uniform(0.5, 2, upper.shape[1]), n)
    x = torch.from_numpy(rng.standard_normal((n, in_dim), dtype=np.float32))
    known = torch.from_numpy(rng.standard_normal(width, dtype=np.float32)) if width else None
    return Bag(f"bag of {n}", x, torch.from_numpy(coords), Frame((_STEP, _STEP)), woven, covariates=known)


def _tensors(bag: Bag, inputs: list[str]) -> dict[str, Tensor]:
    assert bag.graph is not None
    every = {"features": bag.x, "edges": bag.graph.edges(), "edge_weight": bag.graph.weight.float()}
    every |= {} if bag.covariates is None else {"covariates": bag.covariates[None]}
    return {name: every[name] for name in inputs}
