"""Plain facts about a manifest, also about one that could not be used."""

from collections import Counter
from pathlib import Path
from typing import Any

from smmil.data import checks
from smmil.data.manifest import Manifest


def describe_manifest(path: str | Path) -> dict[str, Any]:
    """What a manifest says, as plain JSON values, with its problems as warnings."""
    manifest = Manifest.read(path)
    table = manifest.table
    groups = Counter(manifest.groups.values())
    missing = checks.missing_files(manifest)
    return {
        "file": str(path),
        "bags": len(manifest),
        "labels": _counted(table["label"]) if "label" in table else None,
        "groups": len(groups),
        "groups_with_several_bags": sum(n > 1 for n in groups.values()),
        "splits": _counted(table["split"]) if "split" in table else None,
        "instance_labels": sum(bool(manifest.instance_labels_of(i)) for i in manifest.ids),
        "other_columns": [c for c in table.columns if c not in checks.COLUMNS],
        "warnings": checks.table_problems(table, training=True) + missing,
    }


def _counted(words: Any) -> dict[str, int]:
    return {str(word) or "empty": n for word, n in sorted(Counter(words).items())}
