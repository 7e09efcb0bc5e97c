"""Loading a trained model, and its Predictions of bags."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from smmil.bag import Bag, BagBatch
from smmil.config import Count, TrainConfig, checked, load_config
from smmil.data.targets import TargetColumns
from smmil.errors import ConfigError, DataError, SmmilError, check_choice, require_trust_code
from smmil.files import digest
from smmil.formats.rows import OpenBag
from smmil.models import Output, create_model, list_models, model_class, own_target
from smmil.nn.blocks import RowBlocks
from smmil.nn.covariates import WithCovariates
from smmil.prediction import Prediction, corrections_text
from smmil.runtime import feature_dtype
from smmil.target import Target, target_of
from smmil.weights import few_parameters, read_weights, tensors_digest

_DROPOUT = (nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout)
_CHECKPOINTS = ("best", "lowest_loss")


@dataclass(frozen=True)
class TrainedModel:
    """A model read back from a run, with the facts it was saved with."""

    model: nn.Module
    facts: dict[str, Any]
    weights: str

    @property
    def target_columns(self) -> TargetColumns | None:
        """Columns of a manifest that hold what the model predicts; None for classes."""
        target = own_target(self.model)
        return None if target is None else TargetColumns(target.kind, target.columns)


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
    try:
        if ":" not in made.name:  # sizes that do not fit the tensors are noticed before memory is asked for
            with few_parameters(8 * len(tensors) + 1000), torch.device("meta"):
                _created(made).load_state_dict(tensors, assign=True)
        model = _created(made)
        model.load_state_dict(tensors)
    except (SmmilError, RuntimeError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as problem:
        reason = " ".join(str(problem).split())[:300]
        raise DataError(f"{path}: weights do not fit the model ({reason})") from None
    if made.link is not None:
        model.link = made.link  # type: ignore[assignment]
    if facts.get("target") is not None:
        model.target = _own_target(facts["target"], made.n_classes, path)  # type: ignore[assignment]
    return TrainedModel(model.eval(), facts, tensors_digest(tensors))


def _own_target(facts: Mapping[str, Any], n_logits: int, path: Path) -> Target:
    """The target in the facts of weights, which must fit the width of the model and be ready to predict."""
    target = target_of(facts, path)
    if target.n_logits != n_logits or (target.needs_baseline and not facts.get("log_baseline")):
        raise DataError(f"{path}: its target of kind {target.kind} does not fit the weights; train again")
    return target


def _created(made: "_ModelFacts") -> nn.Module:
    """The untrained model that these facts describe."""
    model = create_model(made.name, made.in_dim, made.n_classes, **made.options)
    return model if made.covariates is None else WithCovariates(model, made.covariates, made.n_classes)


class _ModelFacts(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str
    in_dim: Count
    n_classes: Count
    options: dict[str, Any]
    link: str | None = None  # of a model converted from another program
    covariates: Count | None = None  # how many numbers join the bag's vector


class _WeightFacts(BaseModel):
    model_config = ConfigDict(strict=True)
    model: _ModelFacts
    features: dict[str, Any]
    epoch: int | None
    config: str | None
    split: str | None
    target: dict[str, Any] | None = None


def predict(
    model: nn.Module,
    bags: Bag | BagBatch | OpenBag | Iterable[Bag | BagBatch | OpenBag],
    *,
    meta: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    spatial: bool = True,
    dropout: bool = False,
    block: int | None = None,
) -> list[Prediction]:
    """Predict every bag: eval mode, no gradients, labels hidden from the model; bags go one by one, batches as packed.

    device   where the model is; by default found from its weights
    spatial  carry coordinates, frame, edges and uncertainty along (maps and energies need them)
    dropout  leave the layers of dropout at work: every call draws anew from torch's generator
    block    rows of features that are embedded at a time, for bags too large to embed at once: the same values to
             rounding, in less memory and up to twice the time. Bags of `smmil.formats.open_bag` are read from
             their files so and never held; without block they are read whole. Batches are predicted as packed
    """
    facts = _model_facts(model, meta)
    several = [bags] if isinstance(bags, Bag | BagBatch | OpenBag) else bags
    found = outputs(model, several, device, uncertainty=spatial and not dropout, dropout=dropout, block=block)
    target = own_target(model)
    return [one for batch, output in found for one in _unpacked(batch, output, spatial, facts, target)]


def _model_facts(model: nn.Module, meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a prediction says about its scores and probabilities, and what else is given."""
    facts = {"score_kind": getattr(model, "score_kind", "attention logit"), **(meta or {})}
    if getattr(model, "link", None) == "sigmoid":  # of a model converted from another program
        facts["link"] = "sigmoid"
    if (target := own_target(model)) is not None:
        facts["target"] = target.stated()
    return facts


def _has_dropout(model: nn.Module) -> bool:
    """Whether a model has layers of dropout that drop anything."""
    return any(isinstance(m, _DROPOUT) and m.p > 0 for m in model.modules())


def outputs(
    model: nn.Module,
    bags: Iterable[Bag | BagBatch | OpenBag],
    device: torch.device | str | None = None,
    *,
    uncertainty: bool = False,
    dropout: bool = False,
    block: int | None = None,
) -> Iterator[tuple[BagBatch, Output]]:
    """Each batch together with the model's output for it; the model's mode is restored at the end.

    uncertainty  have models that know it (`gives_uncertainty`) compute it, which may take as long as all the rest
    dropout      leave the layers of dropout at work, as in training
    block        rows of a bag embedded at a time, see `predict`; its batch then holds no features
    """
    device = device or _device_of(model)
    if block is not None:
        check_blocks(model, block, dropout)
    with _in_use(model, uncertainty=uncertainty, dropout=dropout):
        for item in bags:
            if block is not None and isinstance(item, Bag | OpenBag):
                yield _in_blocks(model, item, block, device)
                continue
            if isinstance(item, OpenBag):
                item = replace(item.bag, x=item.rows.take(np.arange(item.rows.n)))
            batch = BagBatch.pack([item]) if isinstance(item, Bag) else item
            if not isinstance(batch, BagBatch):
                raise DataError(
                    f"a model predicts bags, got {type(item).__name__}; make one: smmil.Bag('name', x, coords)"
                )
            with torch.no_grad():
                output = model(batch.without_labels().brought_to(device, feature_dtype(model, batch.x.dtype)))
            yield batch, output


def check_blocks(model: nn.Module, block: int, dropout: bool = False) -> None:
    """Raise an error, which names the models that can, unless this one reads features in blocks of such a size."""
    if type(block) is not int or block < 1:
        raise ConfigError(f"block: {block!r}, expected a number of rows, such as 8192")
    if not hasattr(model, "in_blocks"):
        able = [name for name in list_models() if hasattr(model_class(name), "in_blocks")]
        raise ConfigError(
            f"block: {type(model).__name__} looks at all instances at once; models that read features in blocks: "
            f"{', '.join(able)}"
        )
    if dropout:
        raise ConfigError("block: reads features twice, and dropout would differ in between; leave one out")


def _in_blocks(
    model: nn.Module, item: Bag | OpenBag, block: int, device: torch.device | str
) -> tuple[BagBatch, Output]:
    """A batch of one bag, without features, and the output of a model that read them `block` rows at a time."""
    opened = OpenBag.held(item) if isinstance(item, Bag) else item
    reader = next((m for m in model.modules() if isinstance(m, nn.Linear)), None)
    if reader is not None and reader.in_features != opened.rows.width:
        given = f"{opened.rows.width} features per instance, but the model reads {reader.in_features}"
        raise DataError(f"{opened.bag.id}: {given}; use the encoder it was trained with")
    batch = BagBatch.pack([opened.bag])
    with torch.no_grad():
        rows = RowBlocks(opened.rows, opened.rows.n, block, model)
        output: Output = model.in_blocks(rows, batch.without_labels().to(device))  # type: ignore[operator]
    return batch, output


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@contextmanager
def _in_use(model: nn.Module, *, uncertainty: bool = False, dropout: bool = False) -> Iterator[None]:
    """Eval mode inside the block; every module's own mode afterwards. The options are those of `outputs`."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    for layer in (m for m in model.modules() if dropout and isinstance(m, _DROPOUT)):
        layer.training = True
    knows = getattr(model, "gives_uncertainty", False)
    if knows and not uncertainty:
        model.gives_uncertainty = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        if knows:
            model.gives_uncertainty = True  # type: ignore[assignment]


def _unpacked(
    batch: BagBatch, output: Output, spatial: bool, facts: dict[str, Any], target: Target | None = None
) -> Iterator[Prediction]:
    for name, logits, rows in zip(batch.ids, output.logits, batch.split(output.scores), strict=True):
        if not bool(torch.isfinite(logits).all() and torch.isfinite(rows).all()):
            raise DataError(f"{name}: the model gives NaN or Inf for this bag; check its features with: smmil inspect")
    value, maps = None, output.scores
    if target is None:
        probs = _probabilities(output.logits, facts.get("link")).cpu().numpy()
    else:
        likely, value = target.predicted(output.logits)
        probs, maps = likely.cpu().numpy(), target.maps(output.scores)
    scores = batch.split(maps.float().cpu())
    y_inst = None if batch.y_inst is None else batch.split(batch.y_inst)
    spread = None if output.uncertainty is None else batch.split(output.uncertainty.float().cpu())
    geometry = _geometry(batch) if spatial else [{}] * len(batch)
    for b, name in enumerate(batch.ids):
        yield Prediction(
            name,
            probs[b],
            scores[b].numpy(),
            y=None if batch.y is None else int(batch.y[b]),
            y_inst=None if y_inst is None else y_inst[b].numpy(),
            meta=dict(facts),
            uncertainty=None if spread is None else spread[b].numpy(),
            target=None if target is None or batch.target is None else batch.target[b].cpu().numpy(),
            value=None if value is None else float(value[b]),
            **geometry[b],
        )


def _probabilities(logits: Tensor, link: Any = None) -> Tensor:
    """Probabilities (b, c) in double precision: sigmoid of one logit or with the link of that name, else softmax."""
    logits = logits.double()
    return logits.sigmoid() if logits.shape[1] == 1 or link == "sigmoid" else logits.softmax(1)


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


def _scale(predictions: Iterable[Prediction]) -> tuple[float, float]:
    """Mean and deviation of all scores; (0, 1) of scores that mean the same in every run."""
    cases = list(predictions)
    kind = str(cases[0].meta.get("score_kind")) if cases else ""
    if not cases or "probability" in kind or kind in ("instance logit", "instance log-odds"):
        return 0.0, 1.0
    scores = np.concatenate([p.scores.astype(np.float64) for p in cases])
    return float(scores.mean()), float(scores.std()) or 1.0


def _combined(members: Sequence[Prediction], scales: Sequence[tuple[float, float]]) -> Prediction:
    """The mean of several predictions of one case, their scores brought to a common scale; see `predict_ensemble`."""
    first = members[0]
    if len({p.scores.shape for p in members}) > 1 or len({p.probs.shape for p in members}) > 1:
        raise DataError(
            f"{first.id}: the runs saw different instances or classes of this case; give them the same bags"
        )
    if any(p.meta.get("target") != first.meta.get("target") for p in members):
        raise DataError(f"{first.id}: the runs predict different targets, or times; give runs of the same split")
    scores = np.stack([(p.scores - low) / size for p, (low, size) in zip(members, scales, strict=True)])
    probs = np.stack([p.probs for p in members])
    spread = np.sqrt(np.square(scores.std(0, ddof=1)).mean(1)).astype(np.float32)
    kind, facts = (
        str(first.meta["score_kind"]),
        {key: [p.meta.get(key) for p in members] for key in ("model", "weights")},
    )
    meta = {key: value for key, value in first.meta.items() if all(p.meta.get(key) == value for p in members)}
    meta["model"] = f"ensemble of {len(members)}: {' + '.join(dict.fromkeys(map(str, facts['model'])))}"
    meta["weights"] = digest(*map(str, facts["weights"]))
    meta["ensemble"] = {**facts, "scales": [list(s) for s in scales], "probs_deviation": probs.std(0, ddof=1).tolist()}
    if taught := [p.meta["corrections"] for p in members if corrections_text(p.meta.get("corrections")) is not None]:
        meta["corrections"] = max(taught, key=lambda facts: facts["instances"])
    if any(s != (0.0, 1.0) for s in scales):
        meta["score_kind"] = kind if kind.startswith("standardised") else f"standardised {kind}"
    scores = scores.mean(0).astype(np.float32)
    strange = first.strangeness if "drift" in meta else None  # of one summary, the same for all members
    values = [p.value for p in members if p.value is not None]
    value = float(np.mean(values)) if values else None
    if values:
        meta["ensemble"]["value_deviation"] = float(np.std(values, ddof=1))
    together = replace(first, probs=probs.mean(0), value=value)
    return replace(together, scores=scores, uncertainty=spread, strangeness=strange, meta=meta)
