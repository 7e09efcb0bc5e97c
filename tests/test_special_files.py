"""Only regular files are opened, and a container shows nothing that lies outside it."""

import os
import socket

import h5py
import numpy as np
import pytest
import torch
from support import foreign_files as foreign
from support.ct_makers import series
from support.pyramids import noise, slide_file
from support.sandbox import outcomes

from smmil.annotations.masks import open_mask
from smmil.bag import Bag
from smmil.cli.inspect import inspect
from smmil.errors import DataError
from smmil.files import read_json
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.formats.inspection import describe
from smmil.frame import Frame
from smmil.images import open_slide, open_volume
from smmil.prediction import Prediction
from smmil.viewer.inspector import _features
from smmil.weights import read_foreign_weights, read_weights

CELLS = foreign.cells()
X = foreign.features(len(CELLS))
DOORS = {
    "bag.h5": read_bag,
    "bag.pt": read_bag,
    "features/bag.npy": read_bag,
    "bag.csv": read_bag,
    "facts.h5": describe,
    "origin.h5": read_provenance,
    "scan.nii": open_volume,
    "scan.nii.gz": open_volume,
    "slice.dcm": open_volume,
    "slide.svs": open_slide,
    "slide.png": open_slide,
    "mask.png": open_mask,
    "mask.tif": open_mask,
    "weights.pt": lambda path: read_foreign_weights(path, ()),
    "weights.safetensors": read_weights,
    "case.npz": Prediction.load,
    "table.json": read_json,
    "bag_of_the_verb.h5": lambda path: inspect([path]),
    "manifest.csv": lambda path: inspect([path]),
    "manifest.parquet": lambda path: inspect([path]),
}


def only(kinds):
    return set(kinds) == {"error"}


@pytest.mark.parametrize("name", DOORS)
def test_a_pipe_or_a_device_is_refused_at_every_door(tmp_path, name):
    pipe, device, wire = (tmp_path / kind / name for kind in ("pipe", "device", "socket"))
    for path in (pipe, device, wire):
        path.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    place = os.getcwd()
    try:
        os.chdir(wire.parent)  # the name of a socket must be short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(wire.name)
    finally:
        os.chdir(place)
    found = outcomes(DOORS[name], [pipe, device, wire], None, seconds=3, memory=1 << 29)
    assert only(outcome.kind for outcome in found), found


def test_a_pipe_in_a_folder_of_slices_is_named(tmp_path):
    series(tmp_path)
    os.mkfifo(tmp_path / "more.dcm")
    (found,) = outcomes(open_volume, [tmp_path], None, seconds=3)
    assert found.kind == "error"
    assert "more.dcm: is a pipe" in found.detail


def test_a_pipe_in_a_folder_of_a_dicom_slide_does_not_hang(tmp_path):
    folder = slide_file(tmp_path, noise(256, 256), "dicom")
    os.mkfifo(folder / "more.dcm")
    (found,) = outcomes(lambda path: open_slide(path).read(0, 0, 64, 64) is not None, [folder], True, seconds=5)
    assert found.kind in ("same", "error"), found


def external_link(file, secret):
    file["features"] = h5py.ExternalLink(str(secret), "/features")


def soft_link_to_external(file, secret):
    file.create_group("below")["there"] = h5py.ExternalLink(str(secret), "/features")
    file["features"] = h5py.SoftLink("/below/there")


def group_link(file, secret):
    file["below"] = h5py.ExternalLink(str(secret), "/")
    file["features"] = h5py.SoftLink("/below/features")


def virtual(file, secret):
    layout = h5py.VirtualLayout(X.shape, dtype=X.dtype)
    layout[:] = h5py.VirtualSource(str(secret), "features", shape=X.shape)
    file.create_virtual_dataset("features", layout)


def endless_virtual(file, secret):
    """Its size is that of the source: merely asking for it opens the other file."""
    size = h5py.h5s.create_simple(X.shape, (h5py.h5s.UNLIMITED, X.shape[1]))
    size.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), block=(1, X.shape[1]))
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_virtual(size, str(secret).encode(), b"features", size)
    space = h5py.h5s.create_simple(X.shape, (h5py.h5s.UNLIMITED, X.shape[1]))
    h5py.h5d.create(file.id, b"features", h5py.h5t.NATIVE_FLOAT, space, made)


def external_storage(file, secret):
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_external(str(secret).encode(), 0, X.nbytes)
    h5py.h5d.create(file.id, b"features", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple(X.shape), made)


WAYS_OUT = (external_link, soft_link_to_external, group_link, virtual, endless_virtual, external_storage)
LAYOUTS = {
    "clam": ("features", {}),
    "trident": ("features", {"patch_size_level0": 512, "patch_size": 256, "overlap": 0}),
    "stamp": ("feats", {}),
}


def secret_file(folder):
    with h5py.File(folder / "secret.h5", "w") as file:
        file["features"] = X
    return folder / "secret.h5"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_bag_cannot_show_what_lies_in_other_files(tmp_path, way, layout):
    name, stated = LAYOUTS[layout]
    path, secret = tmp_path / "case.h5", secret_file(tmp_path)
    with h5py.File(path, "w") as file:
        file.create_dataset("coords", data=CELLS * 512).attrs.update(stated)
        file.attrs.update(foreign.STAMP if layout == "stamp" else {})
        way(file, secret)
        if name != "features":
            file.move("features", name)
    for read in (read_bag, describe, read_provenance, lambda path: _features(path).__enter__()):
        with pytest.raises(DataError, match=r"case\.h5: .*(another file|other files)"):
            read(path)


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_bag_of_our_own_cannot_either(tmp_path, way):
    path, secret = tmp_path / "case.h5", secret_file(tmp_path)
    write_bag(path, Bag("case", torch.from_numpy(X), torch.from_numpy(CELLS * 512), Frame((512, 512))))
    with h5py.File(path, "r+") as file:
        del file["features"]
        way(file, secret)
    for read in (read_bag, read_provenance):
        with pytest.raises(DataError, match=r"case\.h5: .*(another file|other files)"):
            read(path)


def test_the_patch_file_beside_a_tensor_cannot_either(tmp_path):
    clam = foreign.clam_files(tmp_path, X, CELLS * 512)
    clam.unlink()
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["coords"] = CELLS
    with h5py.File(tmp_path / "patches" / "case.h5", "w") as file:
        file["coords"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/coords")
    with pytest.raises(DataError, match="another file"):
        read_bag(tmp_path / "pt_files" / "case.pt")


def test_no_other_file_is_touched_before_the_refusal(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    paths = []
    for way in WAYS_OUT:
        paths.append(tmp_path / f"{way.__name__}.h5")
        with h5py.File(paths[-1], "w") as file:
            file["coords"] = CELLS * 512
            way(file, tmp_path / "pipe")
    found = outcomes(read_bag, paths, None, seconds=3)
    assert only(outcome.kind for outcome in found), found


def test_links_inside_a_file_still_work(tmp_path):
    with h5py.File(tmp_path / "case.h5", "w") as file:
        file["below/x"], file["coords"] = X, CELLS * 512
        file["features"] = h5py.SoftLink("/below/x")
    assert np.array_equal(read_bag(tmp_path / "case.h5").x.numpy(), X)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "what", ["tables/uni_tiles/X", "tables", "tables/uni_tiles", "shapes", "shapes/tiles/shapes.parquet"]
)
def test_a_store_cannot_show_what_lies_outside(tmp_path, what, version):
    (tmp_path / "elsewhere").mkdir()
    store = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC, version=version)
    read_bag(store)
    (store / what).rename(tmp_path / "elsewhere" / "part")
    (store / what).symlink_to(tmp_path / "elsewhere" / "part")
    with pytest.raises(DataError, match=r"case\.zarr: .*link out of the store"):
        read_bag(store)


def test_a_store_may_be_a_link_itself_and_hold_links_inside(tmp_path):
    store = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC)
    (store / "tables").rename(store / "kept")
    (store / "tables").symlink_to(store / "kept")
    (tmp_path / "linked.zarr").symlink_to(store)
    assert np.array_equal(read_bag(tmp_path / "linked.zarr").x.numpy(), X)


def test_a_pipe_in_a_store_does_not_hang(tmp_path):
    store = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC)
    chunk = next(p for p in (store / "tables" / "uni_tiles" / "X" / "c").rglob("*") if p.is_file())
    chunk.unlink()
    os.mkfifo(chunk)
    (found,) = outcomes(read_bag, [store], None, seconds=3)
    assert found.kind == "error"


def test_a_text_of_another_type_does_not_bring_the_process_down(tmp_path):
    """HDF5 dies with signal 11 when it converts a variable-length type that is neither text nor sequence."""
    path = foreign.trident_file(tmp_path, X, CELLS * 512, 512)
    data = path.read_bytes()
    place = data.index(b"\x19\x01", data.index(b"encoder"))
    path.write_bytes(data[: place + 1] + b"\x2d" + data[place + 2 :])
    (found,) = outcomes(read_provenance, [path], None)
    assert found.kind == "error", found


def test_a_level_that_is_no_dicom_any_more_is_not_passed_over(tmp_path):
    folder = slide_file(tmp_path, noise(256, 256), "dicom")
    largest = max(folder.glob("*.dcm"), key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(5000))
    with pytest.raises(DataError, match=f"{largest.name}: not a DICOM file"):
        open_slide(folder)
