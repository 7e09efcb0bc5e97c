"""Loading a trained model, and its Predictions of bags."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from smmil.bag import Bag, BagBatch
from smmil.config import Count, TrainConfig, checked, load_config
from smmil.errors import DataError, SmmilError, check_choice, require_trust_code
from smmil.models import Output, create_model
from smmil.prediction import Prediction
from smmil.runtime import feature_dtype
from smmil.weights import few_parameters, read_weights, tensors_digest

_CHECKPOINTS = ("best", "lowest_loss")


@dataclass(frozen=True)
class TrainedModel:
    """A model read back from a run, with the facts it was saved with."""

    model: nn.Module
    facts: dict[str, Any]
    weights: str


def load_run(
    run_dir: str | Path, checkpoint: str = "best", *, trust_code: bool | str = False
) -> tuple[nn.Module, TrainConfig]:
    """Load the trained model of a run, in eval mode, and the settings it was trained with; see `load_trained`."""
    trained = load_trained(run_dir, checkpoint, trust_code=trust_code)
    return trained.model, load_config(Path(run_dir) / "config.yaml", trust_code=trust_code)


def load_trained(run_dir: str | Path, checkpoint: str = "best", *, trust_code: bool | str = False) -> TrainedModel:
    """Load the model of a run together with the facts of its training.

    trust_code  the run may name a model outside smmil, which means running that code; a text: this model alone
    """
    check_choice(checkpoint, _CHECKPOINTS, "checkpoint")
    path = Path(run_dir) / "checkpoints" / f"{checkpoint}.safetensors"
    if not path.exists():
        raise DataError(
            f"{run_dir}: no checkpoints/{checkpoint}.safetensors here; give the --out folder of smmil train"
        )
    tensors, facts = read_weights(path)
    return rebuilt(tensors, facts, path, trust_code)


def rebuilt(tensors: Mapping[str, Tensor], facts: dict[str, Any], path: Path, trust_code: bool | str) -> TrainedModel:
    """Create the model that `facts` describe and load these weights into it."""
    made = checked(_WeightFacts, facts, f"{path}: not the weights of a run").model
    require_trust_code(made.name, path, trust_code)
    shape = made.name, made.in_dim, made.n_classes
    try:
        if ":" not in made.name:  # sizes that do not fit the tensors are noticed before memory is asked for
            with few_parameters(8 * len(tensors) + 1000), torch.device("meta"):
                create_model(*shape, **made.options).load_state_dict(tensors, assign=True)
        model = create_model(*shape, **made.options)
        model.load_state_dict(tensors)
    except (SmmilError, RuntimeError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as problem:
        reason = " ".join(str(problem).split())[:300]
        raise DataError(f"{path}: weights do not fit the model ({reason})") from None
    if made.link is not None:
        model.link = made.link  # type: ignore[assignment]
    return TrainedModel(model.eval(), facts, tensors_digest(tensors))


class _ModelFacts(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str
    in_dim: Count
    n_classes: Count
    options: dict[str, Any]
    link: str | None = None  # of a model converted from another program


class _WeightFacts(BaseModel):
    model_config = ConfigDict(strict=True)
    model: _ModelFacts
    features: dict[str, Any]
    epoch: int | None
    config: str | None
    split: str | None


def predict(
    model: nn.Module,
    bags: Iterable[Bag | BagBatch],
    *,
    meta: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    spatial: bool = True,
) -> list[Prediction]:
    """Predict every bag: eval mode, no gradients, labels hidden from the model; bags go one by one, batches as packed.

    device   where the model is; by default found from its weights
    spatial  carry coordinates, frame and edges along (maps and energies need them)
    """
    facts = {"score_kind": getattr(model, "score_kind", "attention logit"), **(meta or {})}
    if getattr(model, "link", None) == "sigmoid":  # of a model converted from another program
        facts["link"] = "sigmoid"
    return [one for batch, output in outputs(model, bags, device) for one in _unpacked(batch, output, spatial, facts)]


def outputs(
    model: nn.Module, bags: Iterable[Bag | BagBatch], device: torch.device | str | None = None
) -> Iterator[tuple[BagBatch, Output]]:
    """Each batch together with the model's output for it; the model's mode is restored at the end."""
    device = device or next((p.device for p in model.parameters()), torch.device("cpu"))
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        for item in bags:
            batch = BagBatch.pack([item]) if isinstance(item, Bag) else item
            with torch.no_grad():
                output = model(batch.without_labels().to(device, feature_dtype(model, batch.x.dtype)))
            yield batch, output
    finally:
        for module, training in modes.items():
            module.training = training


def _unpacked(batch: BagBatch, output: Output, spatial: bool, facts: dict[str, Any]) -> Iterator[Prediction]:
    for name, logits, rows in zip(batch.ids, output.logits, batch.split(output.scores), strict=True):
        if not bool(torch.isfinite(logits).all() and torch.isfinite(rows).all()):
            raise DataError(f"{name}: the model gives NaN or Inf for this bag; check its features with: smmil inspect")
    logits = output.logits.double()
    each = logits.shape[1] == 1 or facts.get("link") == "sigmoid"
    probs = (logits.sigmoid() if each else logits.softmax(1)).cpu().numpy()
    scores = batch.split(output.scores.float().cpu())
    y_inst = None if batch.y_inst is None else batch.split(batch.y_inst)
    geometry = _geometry(batch) if spatial else [{}] * len(batch)
    for b, name in enumerate(batch.ids):
        yield Prediction(
            name,
            probs[b],
            scores[b].numpy(),
            y=None if batch.y is None else int(batch.y[b]),
            y_inst=None if y_inst is None else y_inst[b].numpy(),
            meta=dict(facts),
            **geometry[b],
        )


def _geometry(batch: BagBatch) -> list[dict[str, Any]]:
    """Coordinates, frame and edges of each bag; edges are counted from the bag's own first row."""
    found: list[dict[str, Any]] = [{"frame": frame} for frame in batch.frames]
    if batch.coords is not None:
        for fields, rows in zip(found, batch.split(batch.coords), strict=True):
            fields["coords"] = rows.cpu().numpy()
    if batch.graph is not None:
        edges = batch.graph.edges().cpu().numpy()
        cuts = batch.graph.indptr[batch.offsets].tolist()
        for b, fields in enumerate(found):
            fields["edges"] = edges[:, cuts[b] : cuts[b + 1]] - int(batch.offsets[b])
    return found
