"""Any study at toy size: the same grid, tables and figures in seconds, to see that everything works."""

from typing import Any

from smmil.experiments.study import Dataset, Study, Synthetic, Variant
from smmil.models import model_options

# Options that make models large, with a size that is just enough; used where a model has the option and it is larger.
_SMALL = {
    "dim": 16,
    "att_dim": 8,
    "trans_dim": 16,
    "heads": 2,
    "layers": 2,
    "depth": 1,
    "landmarks": 4,
    "clusters": 4,
    "context_dim": 8,
    "hidden": 16,
    "queries": 2,
    "query_dim": 8,
    "reduced": 16,
    "level_dim": 8,
    "size": 12,
}
_SYNTHETIC: dict[str, dict[str, Any]] = {
    "slides": {"size": [12, 24], "dim": 6, "lesion": [0.1, 0.3]},
    "scans": {"slices": [8, 14], "dim": 6, "lesion": [0.2, 0.4]},
}


def toy_study(study: Study, *, most_sets: int = 2) -> Study:
    """The study with tiny synthetic bags under the names of its data sets, small models, two folds and two epochs.

    At most `most_sets` data sets are kept, of different kinds where there are; numbers mean nothing.
    """
    return study.model_copy(
        update={
            "name": f"{study.name}-toy",
            "datasets": [_tiny_set(d, i) for i, d in enumerate(_some_sets(study.datasets, most_sets))],
            "variants": [_tiny_model(v) for v in study.variants],
            "learning_rates": study.learning_rates[:1],
            "folds": [0, 1],
            "seeds": study.seeds[:2],
            "caveat": "Toy size, numbers mean nothing",
            "training": {**study.training, "epochs": 2, "warmup_epochs": 1},
        }
    )


def _some_sets(datasets: list[Dataset], most: int) -> list[Dataset]:
    firsts = list({d.kind: d for d in reversed(datasets)}.values())[::-1]
    return [d for d in datasets if d in (firsts + [d for d in datasets if d not in firsts])[:most]]


def _tiny_set(dataset: Dataset, number: int) -> Dataset:
    given = dataset.synthetic.options if dataset.synthetic is not None else {}
    tiny = Synthetic(kind=dataset.kind, bags=20, seed=number, options={**given, **_SYNTHETIC[dataset.kind]})
    gone = {"manifest": None, "missing": None, "splits": None, "split_seed": 0}
    return dataset.model_copy(update={**gone, "synthetic": tiny, "folds": 2, "val_share": 0.5, "test_share": 0.3})


def _tiny_model(variant: Variant) -> Variant:
    known = model_options(variant.model)
    numbers = {k: small for k, small in _SMALL.items() if k in known and _is_larger(known[k], small)}
    return variant.model_copy(update={"options": {**numbers, **variant.options}})


def _is_larger(default: Any, small: int) -> bool:
    return type(default) is int and default > small
