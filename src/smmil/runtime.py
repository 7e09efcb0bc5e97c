"""Device, precision, threads, seeds and determinism: the only module that asks about hardware."""

import hashlib
import multiprocessing
import os
import platform
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smmil.errors import ConfigError

_CGROUPS = Path("/sys/fs/cgroup")
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "pandas", "h5py", "safetensors", "pydantic", "typer")


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" takes a CUDA card if there is one, else the processor."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: unknown name {name!r}; use auto, cpu, cuda or cuda:0") from None
    if device.type not in ("cpu", "cuda"):
        why = "smmil computes with graphs and probabilities in double precision, which " if device.type == "mps" else ""
        raise ConfigError(f"device: {why}{device.type} {'has not' if why else 'is not supported'}; use cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {name!r} was asked for but no CUDA card is visible; use auto or cpu")
    return device


def cards(device: str = "auto") -> int:
    """Number of CUDA cards that a device name leaves to choose from; 0: the processor."""
    if device not in ("auto", "cuda"):
        return int(device.startswith("cuda"))
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def visible_cards(device: str = "auto") -> tuple[str, ...]:
    """Names for CUDA_VISIBLE_DEVICES of the cards that a device name leaves to choose from; none of a single card."""
    several = cards(device)
    if several < 2:
        return ()
    known = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in known.split(",")] if known else [str(n) for n in range(several)]
    return tuple(names[:several])


def own_card(device: str) -> str:
    """The name of a device; in a worker process among several cards that of its own, in turn."""
    number = multiprocessing.current_process()._identity
    several = cards(device)
    return f"cuda:{(number[0] - 1) % several}" if several > 1 and number else device


def feature_dtype(model: torch.nn.Module, stored: torch.dtype) -> torch.dtype:
    """Precision in which features stored as `stored` are given to a model: that of its weights.

    A model with `reads_half` gets float16 as stored and widens a chunk of rows at a time, so that a bag is never in
    memory twice as large as on disk.
    """
    if stored == torch.float16 and getattr(model, "reads_half", False):
        return stored
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _place_seed(seed: int, epoch: int, step: int, part: int = 0) -> int:
    """63-bit seed of a training step, a function of its arguments only."""
    text = f"smmil {seed} {epoch} {step}{f' {part}' if part else ''}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def seed_step(seed: int, epoch: int, step: int, part: int = 0) -> None:
    """Seed every random source for this step, so that resuming needs no saved random state.

    part  of a step whose bags are divided over processes or passes
    """
    place = _place_seed(seed, epoch, step, part)
    torch.manual_seed(place)
    random.seed(place)
    np.random.seed(place % 2**32)


@contextmanager
def reproducible(threads: int | None = None) -> Iterator[None]:
    """Deterministic algorithms and a fixed number of threads inside the block; the old settings afterwards.

    On a CUDA card an operation without a deterministic form warns instead of failing: results may then differ in bits.
    """
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = memory.fill_uninitialized_memory
    benchmark, count = torch.backends.cudnn.benchmark, torch.get_num_threads()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    memory.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(threads or min(count, available_cores()))  # torch does not know the quota of a container
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(count)


def versions() -> dict[str, str]:
    """Versions of smmil, Python and torch, on which exact results depend."""
    from smmil import __version__

    return {"smmil": __version__, "python": platform.python_version(), "torch": torch.__version__}


@cache
def source_digest() -> str:
    """Digest of the package's own source: two runs with the same digest were made by the same code."""
    package, found = Path(__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def describe(folder: str | Path = ".") -> dict[str, Any]:
    """Versions, device, cores and memory of this machine, for `smmil doctor`."""
    device = choose_device()
    return {
        "versions": versions() | {name: _installed(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "device": f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "cpu",
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "load": _load_note(),
        "memory_gb": _memory_gb(),
        "free_disk_gb": round(shutil.disk_usage(folder).free / 1e9, 1),
    }


def available_cores() -> int:
    """Number of cores this process may use; schedulers restrict it by affinity, containers by a quota of time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _core_quota(_CGROUPS)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _core_quota(root: Path) -> float | None:
    """Cores' worth of time that the control group (version 2, then 1) grants; None: no limit, or none is known."""
    with suppress(OSError, ValueError):
        granted, period = (root / "cpu.max").read_text().split()
        return None if granted == "max" else int(granted) / int(period)
    with suppress(OSError, ValueError):
        parts = [int((root / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")]
        return parts[0] / parts[1] if min(parts) > 0 else None
    return None


def _load_note() -> str:
    """How busy the machine is, and what to do when others leave fewer cores than torch has threads."""
    if not hasattr(os, "getloadavg"):
        return "unknown"
    load, cores, threads = os.getloadavg()[0], available_cores(), torch.get_num_threads()
    if load + threads <= max(cores, os.cpu_count() or 1) + 1 or threads == 1:
        return f"{load:.1f}"
    slow = f"{threads} threads that wait for each other may take several times as long as one"
    return f"{load:.1f}: others are at work, and {slow}; set training.threads=1, or OMP_NUM_THREADS=1"


def _memory_gb() -> float | None:
    with suppress(AttributeError, ValueError, OSError):
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    return None


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
