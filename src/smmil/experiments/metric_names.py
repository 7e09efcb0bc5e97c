"""The metrics that the rows of results have, by name; a study may ask for no others."""

from smmil.errors import suggest
from smmil.evaluate import METRIC_NAMES
from smmil.evaluate.instances import POOLS

# Only metrics of instances depend on which instances are pooled; without a pool they are over all.
MEASURED = (
    *METRIC_NAMES,
    *(f"{name}@{pool}" for pool in POOLS if pool != "all" for name in METRIC_NAMES if name.startswith("inst_")),
)


def measured_metric(name: str) -> str:
    """The name itself, if rows of results have it; else an error that names the nearest ones."""
    if name in MEASURED:
        return name
    bare, _, pool = name.partition("@")
    if pool and bare in METRIC_NAMES and not bare.startswith("inst_"):
        raise ValueError(f"unknown metric {name!r}; {bare} does not depend on a pool of instances: write {bare}")
    raise ValueError(f"unknown metric {name!r}; {suggest(name, MEASURED)}")
