"""Ways in that a stranger found: settings of libraries in the working folder, and small files that ask for much."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from support.foreign_files import trident_file

from smmil.data.sources import write_source
from smmil.encoders import load_encoder
from smmil.encoders.networks import _read_tensors
from smmil.errors import DataError
from smmil.foreign_weights.convert import import_weights
from smmil.formats import read_bag
from smmil.graph import grid_graph, knn_graph, radius_graph
from smmil.packaging import load_package
from smmil.prediction import Prediction

SMOOTH = """
import numpy as np, torch, warnings
from smmil.graph import grid_graph
from smmil.nn import sm
from smmil.nn.kernels import sm_numba
cells = np.stack(np.divmod(np.arange(10_000), 100), 1)
graph = grid_graph(cells, 1).normalized()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    sm(torch.randn(10_000, 32), graph, 0.5)
print(sm_numba._kernel() is None, [str(w.message) for w in told if "numba" in str(w.message)])
"""
FIGURE = """
from smmil.maps.canvas import new_figure, write_png
figure = new_figure(2, 2)
figure.text(0.5, 0.5, "a")
write_png(figure, "out.png")
"""


def run_in(folder, code, **environment):
    source = str(Path(sys.modules["smmil"].__file__).parents[1])
    settings = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=settings, capture_output=True, text=True)


def test_numba_obeys_no_file_of_the_working_folder(tmp_path):
    pytest.importorskip("numba")
    (tmp_path / ".numba_config.yaml").write_text("cache_locator_classes: this.X\n")
    told = run_in(tmp_path, SMOOTH)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("True [")
    assert ".numba_config.yaml: numba would obey it" in told.stdout
    assert "Zen of Python" not in told.stdout


def test_matplotlib_obeys_no_file_of_the_working_folder(tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    latex = tmp_path / "bin" / "latex"
    latex.parent.mkdir()
    latex.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    latex.chmod(0o755)
    told = run_in(tmp_path, FIGURE, PATH=f"{latex.parent}:{os.environ['PATH']}")
    assert told.returncode == 0, told.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("place", [lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/zero")])
def test_sums_of_a_package_are_a_regular_file(sound, place):
    (sound.package / "SHA256SUMS").unlink()
    place(sound.package / "SHA256SUMS")
    with pytest.raises(DataError, match="SHA256SUMS: is a pipe, socket or device"):
        load_package(sound.package)


def test_a_graph_of_all_pairs_is_refused_before_it_is_built(tmp_path):
    n, began = 30_000, time.process_time()
    spread = np.random.default_rng(0).random((n, 2))
    for build in (
        lambda: grid_graph(np.zeros((n, 2)), 512),
        lambda: radius_graph(spread, 1e9),
        lambda: radius_graph(np.zeros((n, 2)), 1),
    ):
        with pytest.raises(DataError, match="an instance would have 30,000 neighbours, at most 1,000 are joined"):
            build()
    with pytest.raises(DataError, match="k must be at least 1 and at most 1,000"):
        knn_graph(spread, 10**9)
    with pytest.raises(DataError, match=r"neighbours, at most 1,000 are joined"):
        read_bag(trident_file(tmp_path, np.ones((n, 4), np.float32), np.zeros((n, 2)), 512)).graph  # noqa: B018
    assert time.process_time() - began < 8


def test_edges_of_a_prediction_are_counted_before_they_grow():
    edges = np.zeros((2, 50_000), np.int8)
    with pytest.raises(DataError, match="50,000 edges of 40 instances, at most 1024 for each"):
        Prediction("a", [0.5], np.zeros(40), edges=edges)
    assert Prediction("a", [0.5], np.zeros(40), edges=edges[:, :40_000]).edges.shape == (2, 40_000)


@pytest.mark.parametrize("arguments", [{"depth": 200_000}, {"embed_dim": 30_000}])
def test_an_encoder_larger_than_its_weights_is_not_built(tmp_path, arguments):
    if find_spec("timm") is None:
        pytest.skip("the extra timm is not installed")
    settings = {"architecture": "vit_tiny_patch16_224", "num_classes": 0, "num_features": 192, "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps({**settings, "pretrained_cfg": {"input_size": [3, 224, 224]}}))
    save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    began = time.process_time()
    with pytest.raises(DataError, match=r"config.json: timm cannot build this network \(it would have more than"):
        load_encoder("hf-hub:x/y", weights=tmp_path)
    assert time.process_time() - began < 8


@pytest.mark.parametrize("key", ["manifest", "splits"])
@pytest.mark.parametrize("form", ["${SECRET}", "/tmp/${SECRET}/m.csv", "${HOME}/${SECRET}"])
def test_a_study_cannot_show_the_environment(tmp_path, monkeypatch, command, key, form):
    monkeypatch.setenv("SECRET", "hunter2-0123456789")
    (tmp_path / "m.csv").write_text("id,path,label\na,a.h5,0\n")
    dataset = {"name": "d", "manifest": "m.csv", "folds": 2, key: form}
    study = {"datasets": [dataset], "variants": [{"name": "A", "model": "abmil"}], "learning_rates": [0.1]}
    (tmp_path / "s.yaml").write_text(json.dumps(study))
    for verb in ("run", "status", "tables", "figures", "trust"):
        code, said = command("experiment", verb, tmp_path / "s.yaml", "--out", tmp_path / "out")
        assert (code, "(its value is not shown)" in said, "hunter2" in said) == (2, True, False), said
    assert not [f for f in tmp_path.rglob("*") if f.is_file() and b"hunter2" in f.read_bytes()]


def patch_table(folder, id_="a", path="0.png", x="0"):
    Image.new("RGB", (4, 4)).save(folder / "0.png")
    table = folder / "patches.csv"
    table.write_text(f"id,path,x,y\n{id_},{path},{x},0\n{id_},0.png,4,0\n")
    return table


LONG_OR_FAR = {
    "long id": {"id_": "9" * 400},
    "long id in bytes": {"id_": "ä" * 100},
    "long name": {"path": "9" * 400},
    "long path": {"path": "a/" * 4000},
    "far": {"x": "1e300"},
    "infinite": {"x": "inf"},
    "digits": {"x": "9" * 400},
}


@pytest.mark.parametrize("hostile", LONG_OR_FAR.values(), ids=LONG_OR_FAR)
def test_patch_tables_with_long_names_and_far_places_are_refused(tmp_path, hostile):
    table = patch_table(tmp_path, **hostile)
    with pytest.raises(DataError, match=str(tmp_path)) as told:
        write_source("patches", table, tmp_path / "out")
    assert len(str(told.value)) < 600 + len(str(table))
    assert not list(tmp_path.glob("out/slides/*.csv"))


def circular():
    content = {"w": torch.zeros(2)}
    content["state_dict"] = content
    return content


def doubling(levels=18):
    content = {f"w{n}": torch.zeros(0) for n in range(4)}
    for _ in range(levels):
        content = {"a": content, "b": content}
    return content


ODD_WEIGHTS = {
    "mappings": circular,
    "names": doubling,
    "w claims more numbers": lambda: {"w": torch.zeros(1).expand(100_000, 100_000)},
    "weights claim more": lambda: {f"w{n}": big for big in [torch.zeros(1000)] for n in range(100)},
    "no plain tensor of numbers \\(sparse": lambda: {"w": torch.zeros(2, 2).to_sparse()},
    "no plain tensor of numbers \\(strided, meta": lambda: {"w": torch.empty(10**9, 10**9, device="meta")},
    "complex": lambda: {"w": torch.zeros(2, dtype=torch.complex64)},
    "float8": lambda: {"w": torch.zeros(2).to(torch.float8_e4m3fn)},
    "no name of a weight": lambda: {"w" * 100_000: torch.zeros(2)},
    "a int is no name": lambda: {-1: torch.zeros(2)},
    "bytearray": lambda: {"w": bytearray(b"0")},
}


@pytest.mark.parametrize("words", ODD_WEIGHTS)
@pytest.mark.parametrize("old", [False, True], ids=["zip", "old form"])
def test_weights_of_others_are_plain_and_no_larger_than_their_file(tmp_path, words, old):
    if old and words == "float8":
        pytest.skip("torch itself cannot read it")
    torch.save(ODD_WEIGHTS[words](), tmp_path / "w.pt", _use_new_zipfile_serialization=not old)
    began = time.process_time()
    for read in (lambda path: import_weights(path, "transmil"), _read_tensors):
        with pytest.raises(DataError, match=rf"w\.pt: .*{words}") as told:
            read(tmp_path / "w.pt")
        assert len(str(told.value)) < 400 + len(str(tmp_path))
    assert time.process_time() - began < 5


class Promise:
    """Pickled as the call of numpy that makes an array of this many numbers, in the other order of bytes."""

    def __reduce__(self):
        return np.ndarray, ((3, 10**8), np.dtype(">f4"))


def test_arrays_of_features_are_no_larger_than_their_file(tmp_path):
    path = tmp_path / "pt_files" / "case.pt"
    path.parent.mkdir()
    torch.save(Promise(), path)
    with pytest.raises(DataError, match=r"case\.pt: the array claims more numbers than the file holds"):
        read_bag(path)


def test_tied_weights_are_read(tmp_path):
    tied = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": tied, "b": tied, "c": tied.T, "d": tied[:, :1]}, tmp_path / "w.pt")
    assert all(torch.equal(v, w) for v, w in zip(_read_tensors(tmp_path / "w.pt").values(),
                                                 (tied, tied, tied.T, tied[:, :1]), strict=True))  # fmt: skip
