"""Small valid samples for the readers, built by code, and what a reader gave as something that can be compared."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import torch
from PIL import Image
from pydantic import BaseModel
from support import ct_makers, dicom_makers, drawings, foreign_programs, pyramids
from support import foreign_files as foreign
from torch import nn

from smmil.bag import Bag
from smmil.data.splits import Split, save_splits
from smmil.formats import write_bag
from smmil.frame import Frame
from smmil.prediction import Prediction
from smmil.synthetic import write_pyramid
from smmil.weights import save_weights

OLD = Path(__file__).parents[1] / "data_0_1"
CELLS = foreign.cells(side=5)
X = foreign.features(len(CELLS), dim=4)


def content(value: Any) -> str:
    """A digest of everything in a result: equal exactly when a user would get the same."""
    total = hashlib.sha256()
    for part in _parts(value):
        total.update(part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass"))
        total.update(b"\0")
    return total.hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, nn.Module):
        value = value.state_dict()
    if isinstance(value, pd.DataFrame):
        value = {str(name): value[name].tolist() for name in value.columns}
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if not f.name.startswith("_")}
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield from (value.dtype, value.shape, value.tobytes())
    elif isinstance(value, Mapping):
        yield len(value)
        for key in sorted(value, key=str):
            yield from (key, *_parts(value[key]))
    elif isinstance(value, list | tuple | np.ndarray):
        yield len(value)
        for item in value:
            yield from _parts(item)
    else:
        yield from (type(value).__name__, value)


def put(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def kept(name: str) -> Callable[[Path], Path]:
    """A copy of a file or folder that version 0.1.0 wrote."""

    def make(folder: Path) -> Path:
        source = OLD / name
        return Path((shutil.copytree if source.is_dir() else shutil.copy)(source, folder / source.name))

    return make


def text(name: str, words: str) -> Callable[[Path], Path]:
    return lambda folder: put(folder / name, words)


def native(folder: Path) -> Path:
    bag = Bag("case", torch.from_numpy(X), torch.from_numpy(CELLS * 512), Frame((512, 512)))
    write_bag(folder / "case.h5", bag, provenance={"encoder": "any"})
    return folder / "case.h5"


def native_with_facts(folder: Path) -> Path:
    facts = torch.from_numpy(np.linspace(-1, 1, 2 * len(X), dtype=np.float32).reshape(-1, 2))
    bag = Bag("case", torch.from_numpy(X), torch.from_numpy(CELLS * 512), Frame((512, 512)), quality=facts)
    write_bag(folder / "case.h5", bag, provenance={"encoder": "any", "quality": ["sharpness", "ink"]})
    return folder / "case.h5"


def clam_pt(folder: Path) -> Path:
    foreign.clam_files(folder, X, CELLS * 512)
    return folder / "pt_files" / "case.pt"


def picture(side: int = 48) -> np.ndarray:
    """Smooth shades with a dark square: a damaged block changes pixels that can be seen."""
    y, x = np.mgrid[:side, :side]
    image = np.stack([100 + 2 * x, 220 - 2 * y, 90 + x + y], 2).astype(np.uint8)
    image[10:20, 12:30] = (60, 20, 120)
    image[24:] += np.random.default_rng(0).integers(0, 9, image[24:].shape).astype(np.uint8)
    return image


def plain(name: str, **options: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        Image.fromarray(picture()).save(folder / name, **options)
        return folder / name

    return make


def patches(folder: Path) -> Path:
    """Four patches of two cases, their common table, and the table of one case."""
    rows = "".join(f"{k}.png,{48 * (k % 2)},0,c{k // 2},{k % 2}\n" for k in range(4))
    put(folder / "images/patches.csv", "path,x,y,id,label\n" + rows)
    for k in range(4):
        Image.fromarray(picture()).save(folder / f"images/{k}.png")
    put(folder / "split.csv", "id,split\nc0,train\nc1,test\n")
    table = "path,x,y,label\n../images/0.png,0,0,0\n../images/1.png,48,0,1\n"
    return put(folder / "slides/c0.patches.csv", table)


def picture_stack(folder: Path) -> Path:
    for k in range(3):
        put(folder / f"scan/{k}.png", b"")
        Image.fromarray(picture(16)[..., k]).save(folder / f"scan/{k}.png")
    return folder / "scan"


def qptiff(folder: Path) -> Path:
    return pyramids.qptiff(folder / "slide.qptiff", pyramids.noise(96, 96), compression="jpeg")


def pyramid(flavour: str, compression: str) -> Callable[[Path], Path]:
    return lambda folder: pyramids.slide_file(
        folder, picture(128), flavour, compression=compression, factors=(1, 4), tile=64
    )


def ct_series(compression: str | None = None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        _, paths = ct_makers.series(
            folder / "scan", ct_makers.voxels(3, 32, 32) if compression else ct_makers.voxels(3, 8, 8)
        )
        for path in paths if compression else ():
            if compression == "jpeg-extended":  # what it can hold: twelve bits without sign
                ct_makers.change(path, BitsStored=12, HighBit=11, PixelRepresentation=0)
            ct_makers.compress(path, compression)
        return folder / "scan"

    return make


def wrapped_series(folder: Path) -> Path:
    """Slices whose negative values wrapped at twelve bits, as in part of the RSNA set."""
    hu, paths = ct_makers.series(folder / "scan", ct_makers.voxels(3, 8, 8))
    for path, pixels in zip(paths, hu, strict=True):
        stored = (pixels.astype(int) % 4096).astype(np.uint16).tobytes()
        ct_makers.change(path, BitsStored=12, HighBit=11, PixelRepresentation=0, RescaleIntercept=0, PixelData=stored)
    return folder / "scan"


def multi_frame(compression: str | None = None) -> Callable[[Path], Path]:
    """One file with three slices as frames, in another order."""

    def make(folder: Path) -> Path:
        _, files = ct_makers.series(folder / "ct", ct_makers.voxels(3, 32, 32))
        file = dicom_makers.enhanced(folder / "scan" / "frames.dcm", files, [2, 0, 1], shared=True)
        if compression:
            dicom_makers.packed_frames(file, compression)
        return file.parent

    return make


def dicom_mask(kind: str) -> Callable[[Path], Path]:
    """A mask beside the folder `ct` of its scan."""

    def make(folder: Path) -> Path:
        _, files = ct_makers.series(folder / "ct", ct_makers.voxels(3, 8, 8))
        lesion = np.zeros((3, 8, 8))
        lesion[0, 2:5, 3:6] = lesion[1, 2:6, 2:6] = 1
        if kind in ("BINARY", "FRACTIONAL", "LABELMAP"):
            pixels = lesion if kind == "FRACTIONAL" else lesion.astype(np.uint8)
            return dicom_makers.segmentation(folder / "mask.dcm", files, pixels, kind=kind)
        corners = np.array([(-9.2, -18.1), (-7.7, -18.1), (-7.7, -16.3), (-9.2, -16.3)])
        rings = [np.column_stack([corners, np.full(4, z)]) for z in (30.0, 35.0)]
        return dicom_makers.structure_set(folder / "mask.dcm", files[0], {1: ("lesion", rings)})

    return make


def nifti(name: str, *, labels: bool = False) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        hu = ct_makers.voxels(3, 8, 8).transpose(2, 1, 0)
        values = (hu > 1000).astype(np.int16) if labels else hu.astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(values, np.diag([-0.5, -0.5, 5.0, 1.0])), folder / name)
        return folder / name

    return make


SHAPES = [("_0", drawings.square(4, 4, 20)), ("_2", drawings.square(8, 8, 4)), ("_1", drawings.square(30, 6, 9))]


def asap(folder: Path) -> Path:
    return drawings.asap(folder / "case.xml", SHAPES)


def geojson(name: str, label: str | None = "Tumor") -> Callable[[Path], Path]:
    rings = [[drawings.square(4, 4, 20), drawings.square(8, 8, 4)], [drawings.square(30, 6, 9)]]
    return lambda folder: drawings.geojson(folder / name, rings, label)


def boxes(folder: Path) -> Path:
    return drawings.boxes(folder / "case.csv", [(4, 4, 20, 20), (30, 6, 9, 12)])


def codes(*values: int) -> np.ndarray:
    image = np.zeros((48, 48), np.uint8)
    for place, value in enumerate(values):
        image[6 + 12 * place : 16 + 12 * place, 4:40] = value
    return image


def mask(name: str, *values: int) -> Callable[[Path], Path]:
    return lambda folder: drawings.mask(folder / name, codes(*values))


def panda_mask(folder: Path) -> Path:
    colours = np.zeros((48, 48, 3), np.uint8)
    colours[..., 0] = codes(1, 2)
    write_pyramid(folder / "case_mask.tiff", colours, mpp=0.5, flavour="generic", factors=(1,), tile=16,
                  compression="none")  # fmt: skip
    return folder / "case_mask.tiff"


def slice_labels(folder: Path) -> Path:
    rows = [f"ID_{n}_{kind},{n % 2 if kind == 'any' else 0}" for n in range(3) for kind in ("any", "epidural")]
    return put(folder / "labels.csv", "ID,Label\n" + "\n".join(rows) + "\n")


MANIFEST = "id,path,label,group,split\n" + "".join(f"s{n},bags/s{n}.h5,{n % 2},p{n // 2},\n" for n in range(12))
LABELS = "id,label\n" + "".join(f"s{n},{n % 2}\n" for n in range(12))


def table(name: str, words: str = MANIFEST) -> Callable[[Path], Path]:
    """A table as CSV, Parquet or Excel, by the ending of its name."""

    def make(folder: Path) -> Path:
        rows = pd.DataFrame(
            [line.split(",") for line in words.splitlines()[1:]], columns=words.split("\n")[0].split(",")
        )
        if name.endswith(".parquet"):
            rows.to_parquet(folder / name, index=False, write_page_checksum=True)
        elif name.endswith(".xlsx"):
            rows.to_excel(folder / name, index=False)
        else:
            put(folder / name, words)
        return folder / name

    return make


def npy(name: str, array: np.ndarray) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.save(folder / name, array)
        return folder / name

    return make


def splits(folder: Path) -> Path:
    save_splits(folder / "splits.json", [Split(("a", "b"), ("c",), ("d",)), Split(("a", "c"), ("b",), ("d",))])
    return folder / "splits.json"


def prediction(folder: Path) -> Path:
    given = {"coords": CELLS * 512, "frame": Frame((512, 512)), "y": 1, "meta": {"model": "sm_ap"}}
    given["uncertainty"] = np.linspace(0.1, 1, len(X))
    Prediction("case", [0.9], X[:, 0], y_inst=np.arange(len(X)) % 2, edges=[[0, 1], [1, 2]], **given).save(
        folder / "case.npz"
    )
    return folder / "case.npz"


def weights(folder: Path) -> Path:
    save_weights(folder / "best.safetensors", {"a": torch.ones(3, 4), "b": torch.arange(5)}, {"note": [1, 2.5, "x"]})
    return folder / "best.safetensors"


def published(program: str) -> Callable[[Path], Path]:
    """A checkpoint in an author's layout."""

    def make(folder: Path) -> Path:
        state = foreign_programs.PROGRAMS[program][0][0]
        parts = {name: dict(part) if isinstance(part, Mapping) else part for name, part in state.items()}
        torch.save(parts, folder / "theirs.pt")
        return folder / "theirs.pt"

    return make


def tensors(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        state = {"layer.weight": torch.ones(3, 4), "layer.bias": torch.zeros(3)}
        if name.endswith(".safetensors"):
            from safetensors.torch import save_file

            save_file(state, folder / name)
        else:
            torch.save({"state_dict": state, "epoch": 3}, folder / name)
        return folder / name

    return make


def hub_model(folder: Path) -> Path:
    """A small network of timm as it lies in the hub's cache."""
    from safetensors.torch import save_file

    from smmil.encoders.networks import _prepare_torchvision

    _prepare_torchvision("this sample")
    import timm

    made = timm.create_model("test_vit", img_size=32, depth=1, num_classes=2)
    save_file(made.state_dict(), folder / "model.safetensors")
    stated = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.25] * 3, "classifier": "head", "license": "mit"}
    model = {"architecture": "test_vit", "num_classes": 2, "model_args": {"img_size": 32, "depth": 1}}
    return put(folder / "config.json", json.dumps({**model, "pretrained_cfg": stated}, indent=1)).parent


def json_file(name: str, value: Any) -> Callable[[Path], Path]:
    return lambda folder: put(folder / name, json.dumps(value, indent=1))


def run_folder(folder: Path) -> Path:
    """A finished run with its bags beside it, and predictions in it."""
    shutil.copy(OLD / "manifest.csv", folder)
    shutil.copytree(OLD / "bags", folder / "bags")
    shutil.copytree(OLD / "labels", folder / "labels")
    run = Path(shutil.copytree(OLD / "trained" / "abmil", folder / "run"))
    shutil.copytree(OLD / "predictions" / "abmil", run / "predictions")
    settings = (run / "config.yaml").read_text().replace("/study/manifest.csv", str(folder / "manifest.csv"))
    (run / "config.yaml").write_text(settings)
    return run
