"""Files that belong to another verb than the one they were given to."""

from pathlib import Path


def right_verb(path: Path) -> str | None:
    """What a path that is no feature file is instead, and the verb for it; None when that cannot be told."""
    if not path.exists():
        return None
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() == ".npz":
        return _predictions(path)
    if path.suffix.lower() in (".safetensors", ".ckpt", ".pth"):
        return f"{path}: holds weights of a model, not features; use smmil predict with the folder of the run"
    return _image(path)


def _folder(path: Path) -> str | None:
    if (path / "manifest.csv").is_file():
        return f"{path}: is a folder; its bags are listed in the manifest: smmil inspect {path / 'manifest.csv'}"
    if (path / "config.yaml").is_file():
        return f"{path}: is a training run, not features; use smmil predict {path}"
    for ending in (".h5", ".npz", ".pt"):
        if any(path.glob(f"*{ending}")):
            return _predictions(path) if ending == ".npz" else _name_files(path, ending)
    return _image(path)


def _predictions(path: Path) -> str:
    return f"{path}: holds predictions, not features; use smmil evaluate, report or export"


def _name_files(path: Path, ending: str) -> str:
    return f"{path}: is a folder; name the files in it: smmil inspect {path}/*{ending}"


def _image(path: Path) -> str | None:
    """Slides and scans, told as smmil prepare tells them."""
    from smmil.errors import SmmilError
    from smmil.prepare.find import ENDINGS, find_sources

    if path.is_file() and not path.name.lower().endswith(ENDINGS):
        return None
    try:
        found = find_sources([path])[0]
    except SmmilError:
        return None
    what = "CT scans" if found.kind == "ct" else "slides"
    return f"{path}: pixels of {what}, not features; use smmil prepare {path} --out study --dry-run"
