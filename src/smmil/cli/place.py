"""Where a verb works: options that the chosen executor would pass over are refused before anything starts."""

from smmil.errors import ConfigError


def check_place(executor: str, workers: int | None, dask: str | None, slurm: list[str] | None = None) -> None:
    """One line about an option that cannot be meant with this executor; `auto` takes any."""
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers: must be at least 1, got {workers}")
    if workers is not None and executor == "serial":
        raise ConfigError("--workers: the executor serial works alone; leave it out, or choose --executor processes")
    if dask is not None and executor not in ("auto", "dask"):
        raise ConfigError(f"--dask: is for the executor dask, not {executor}; give --executor dask")
    if dask is not None and workers is not None:
        raise ConfigError("--workers: the cluster at --dask has its own; leave it out")
    if slurm and executor != "submitit":
        raise ConfigError(f"--slurm: is for the executor submitit, not {executor}; give --executor submitit")
