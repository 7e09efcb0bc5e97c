"""Slides and scans below the folders a user names, and the table of labels that goes with them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from smmil.errors import ConfigError, DataError
from smmil.images.dicom_file import is_dicom, kind_of, read_tags
from smmil.images.matching import ImageSource
from smmil.images.opening import SUFFIXES

_SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".czi", *SUFFIXES)
_SCANS = (".nii", ".nii.gz")
_DICOM = (".dcm", ".dicom", ".ima")
_FEATURES = (".h5", ".hdf5", ".npz", ".npy", ".pt", ".safetensors")
_TEXTS = (".csv", ".parquet", ".xlsx", ".txt", ".xml", ".json", ".geojson", ".yaml", ".yml")
ENDINGS = _SLIDES + _SCANS + _DICOM
_LOOKS = 5


def find_sources(roots: Iterable[str | Path], skip: Path | None = None) -> list[ImageSource]:
    """Slides and scans in the given folders and files, in the order of their names; `skip` is our own output."""
    found: dict[Path, ImageSource] = {}
    folders = [Path(root) for root in roots]
    for root in folders:
        if not root.exists():
            raise DataError(f"{root}: no such file or folder")
        refuse_no_image(root)
        for path in [root] if root.is_file() else _inside(root, skip):
            found.setdefault(path.resolve(), ImageSource(path, _name(path, root), source_kind(path)))
    if not found:
        raise DataError(f"{', '.join(map(str, folders))}: no slides or scans found; {_instead(folders)}")
    return sorted(found.values(), key=lambda source: source.name)


def refuse_no_image(path: Path) -> None:
    """An error for a file that cannot hold pixels of a case, whatever the reading library would say about it."""
    if path.is_file() and path.suffix.lower() in _FEATURES:
        raise DataError(f"{path}: holds features or predictions, not pixels; features go to smmil train by a manifest")
    if path.is_file() and path.suffix.lower() in _TEXTS:
        raise DataError(f"{path}: no slide or scan; give images or folders of them, tables with --labels or --points")


def _instead(folders: list[Path]) -> str:
    for folder in folders:
        for path in sorted(folder.glob("*.h5"))[:1]:
            return f"{path.name} holds features already, which a manifest brings to smmil train"
    return f"looked for {', '.join(_SLIDES + _SCANS)} and DICOM files"


def _inside(folder: Path, skip: Path | None) -> Iterator[Path]:
    """Pictures of a folder and its subfolders. A folder with DICOM files is one case."""
    if skip is not None and folder.resolve() == skip.resolve():
        return
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files = [path for path in entries if path.is_file()]
    if _some_dicom(files):
        yield folder
    yield from (path for path in files if _ending(path) in _SLIDES + _SCANS)
    companions = {path.with_suffix("") for path in files if path.suffix.lower() == ".mrxs"}
    for path in entries:
        if path.is_dir() and path not in companions:
            yield from _inside(path, skip)


def _some_dicom(files: list[Path]) -> list[Path]:
    return [path for path in files if path.suffix.lower() in _DICOM or (not path.suffix and is_dicom(path))]


def _ending(path: Path) -> str:
    return ".nii.gz" if path.name.lower().endswith(".nii.gz") else path.suffix.lower()


def _name(path: Path, root: Path) -> str:
    relative = path.name if path == root else path.relative_to(root).as_posix()
    return relative.removesuffix(path.name[-len(_ending(path)) :]) if path.is_file() and _ending(path) else relative


def source_kind(path: Path) -> str | None:
    """slide or ct; None when that cannot be told here, because the file is damaged."""
    if path.is_file() and _ending(path) not in _DICOM:
        return "ct" if _ending(path) in _SCANS else "slide"
    files = [path] if path.is_file() else _some_dicom(sorted(p for p in path.iterdir() if p.is_file()))
    for file in files[:_LOOKS]:
        try:
            modality = kind_of(read_tags(file))
        except DataError:
            continue  # the case itself will say so when its turn comes
        return "slide" if modality == "SM" else "ct"
    return None


def settle_kind(sources: list[ImageSource]) -> str:
    """What the sources are, when the user did not say; slides and scans in one run are refused."""
    examples = {source.kind: source.path for source in reversed(sources) if source.kind is not None}
    if len(examples) > 1:
        raise ConfigError(
            f"both slides ({examples['slide']}) and scans ({examples['ct']}); choose with --kind slide or ct"
        )
    return next(iter(examples), "slide")
