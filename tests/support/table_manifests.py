"""Manifests that exist as tables only."""

import pandas as pd

from smmil.data import Manifest


def table_manifest(**columns) -> Manifest:
    """A manifest that exists as a table only."""
    rows = len(next(iter(columns.values())))
    defaults = {"id": [f"b{i:03d}" for i in range(rows)], "path": [f"b{i}.h5" for i in range(rows)]}
    return Manifest(pd.DataFrame({**defaults, **columns}, dtype=object))
