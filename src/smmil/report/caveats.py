"""What a reader must know before trusting any number of a report."""

from collections.abc import Sequence

from smmil.report.card import different, parts_of
from smmil.report.private import safe_text, without_names
from smmil.report.sources import Source

_MOST_NAMED = 10


def caveats(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """(headline, sentence) for cases seen in training, weights that were mixed, and predictions that were left out."""
    mixed = [found for source in sources if (found := _mixed(source))]
    missing = [found for source in sources if (found := _left_out(source))]
    return [*_seen_before(sources), *mixed, *missing]


def _seen_before(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """A warning where a model is judged on cases it was trained or selected on."""
    told = [(s.name, [part for part in parts_of(s.predictions) if part in ("train", "val")]) for s in sources]
    names = [f"{name} ({' and '.join(parts)})" for name, parts in told if parts]
    text = f"{', '.join(names)} includes cases the model was trained or selected on. Use --part test."
    return [("Not a fair test", text)] if names else []


def _mixed(source: Source) -> tuple[str, str] | None:
    """A warning where one folder holds the answers of several trained models."""
    count = len(different(source.predictions, "weights"))
    text = f"the predictions of {source.name} come from {count} different weights; its numbers describe none of them."
    return ("Not one model", text) if count > 1 else None


def _left_out(source: Source) -> tuple[str, str] | None:
    """A warning where predictions could not be read; their files are named after their cases."""
    reasons = [
        f"{safe_text(path.stem)} ({safe_text(without_names(reason, path.stem, path))})"
        for path, reason in source.left_out.items()
    ]
    if not reasons:
        return None
    more = f" and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
    return "Not all cases", f"{source.name} lacks {', '.join(reasons[:_MOST_NAMED])}{more}."
