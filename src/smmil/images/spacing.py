"""Micrometres per pixel: what a file says, what the user says, and what can be believed."""

from math import isfinite

from smmil.errors import ConfigError

# Objectives from 1x to 100x lie well inside; a resolution tag of 72 or 300 dpi (a printer's) lies well outside.
_BELIEVABLE = (0.02, 20.0)


def settle_mpp(stated: tuple[float | None, float | None], given: float | None) -> tuple[float | None, tuple[str, ...]]:
    """The pixel size to use and the notes about it, from (x, y) in the file and the user's own value, which wins."""
    if given is not None and not (isfinite(given) and given > 0):
        raise ConfigError(f"--mpp: must be a positive number of micrometres per pixel, got {given}")
    found, notes = _believed(*stated)
    if given is None:
        return found, notes
    if found is not None and abs(given - found) > 0.01 * found:
        notes = (*notes, f"mpp: the file says {found:g}, the user {given:g}; the user's is used")
    return float(given), notes


def _believed(x: float | None, y: float | None) -> tuple[float | None, tuple[str, ...]]:
    values = [v for v in (x, y) if v is not None]
    if not values:
        return None, ()
    if not all(_BELIEVABLE[0] <= v <= _BELIEVABLE[1] for v in values):
        return None, (f"mpp: the file says {values[0]:g} µm, which no microscope gives; treated as unknown",)
    mean = sum(values) / len(values)
    if max(values) - min(values) > 0.01 * mean:
        return mean, (f"mpp: pixels are not square, {values[0]:g} × {values[-1]:g} µm; the mean {mean:g} is used",)
    return mean, ()
