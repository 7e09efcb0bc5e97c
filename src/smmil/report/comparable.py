"""Whether the numbers of several models may be held against each other."""

from collections.abc import Mapping, Sequence

from smmil.prediction import Prediction

Models = Mapping[str, Sequence[Prediction]]


def other_cases(models: Models) -> str | None:
    """Why numbers about whole cases cannot be compared: other cases, labels or classes; None: they can."""
    tables = [{p.id: p for p in predictions} for predictions in models.values()]
    shared = set.intersection(*(set(table) for table in tables))
    largest = max(len(table) for table in tables)
    if any(len(table) != len(shared) for table in tables):
        return f"the models were not given the same cases ({len(shared):,} of at most {largest:,} in common)"
    changed = sum(len({table[id_].y for table in tables}) > 1 for id_ in shared)
    if changed:
        return f"{changed:,} of {len(shared):,} cases have another label in another model's predictions"
    if len({predictions[0].n_classes for predictions in models.values()}) > 1:
        return "the models do not tell the same number of classes apart"
    return None


def other_instances(models: Models) -> str | None:
    """Why numbers about instances cannot be compared: other cases, or other instances in them; None: they can."""
    reason = other_cases(models)
    if reason is not None:
        return reason
    cases = zip(*(sorted(predictions, key=lambda p: p.id) for predictions in models.values()), strict=True)
    changed = sum(len({_content(p) for p in same}) > 1 for same in cases)
    if changed:
        return f"{changed:,} cases have other instances or instance labels in another model's predictions"
    return None


def _content(prediction: Prediction) -> tuple[int, int, int]:
    """Number of instances, of those with a known label, and of positive ones; their order does not matter."""
    labels = prediction.y_inst
    if labels is None:
        return prediction.n, 0, 0
    return prediction.n, int((labels >= 0).sum()), int((labels > 0).sum())
