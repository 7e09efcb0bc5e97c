"""Which values of a parameter run in `make test`, and which in `make test-all` alone."""

import pytest


def slow_unless(quick, values):
    """Every value is tested by `make test-all`, those for which `quick` holds by `make test` as well."""
    return [value if quick(value) else pytest.param(value, marks=pytest.mark.slow) for value in values]
