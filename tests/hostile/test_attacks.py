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
from safetensors.torch import save_file
from support.foreign_files import trident_file

from smmil.encoders import load_encoder
from smmil.errors import DataError
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
