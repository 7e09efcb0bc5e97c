"""Which instances see each other in a model: groups that are ranked together, and families, in the order of tables."""

GROUPS = {"no_global": "without global interactions", "global": "with global interactions"}
FAMILIES = {"independent": "none", "local": "local", "global": "global", "global_local": "global and local"}
