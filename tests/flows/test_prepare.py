"""The whole road from pixels to a manifest, on the command line and on real files."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from PIL import Image
from support import prepare_makers as makers
from support.ct_makers import series
from typer.testing import CliRunner

from smmil.cli.prepare import prepare
from smmil.data.manifest import Manifest
from smmil.errors import ConfigError
from smmil.formats import read_bag, read_provenance
from smmil.graph import knn_graph
from smmil.prepare import load_recipe, plan, run

app = typer.Typer()
app.command()(prepare)


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def real(*parts):
    folder = os.environ.get("SMMIL_DATA")
    path = Path(folder or "/nonexistent").joinpath(*parts)
    if not path.exists():
        pytest.skip(f"real data not found: set SMMIL_DATA to a folder with {'/'.join(parts)}")
    return path


@pytest.fixture
def study(tmp_path):
    for seed in range(2):
        makers.write_slide(tmp_path / "slides" / f"s{seed}.svs", makers.speckled(seed, 512))
    (tmp_path / "labels.csv").write_text("id,label\ns0,0\ns1,1\n")
    return tmp_path


OPTIONS = ("--encoder", makers.ENCODER, "--tile-um", 32, "--executor", "serial")


def test_a_folder_of_slides_and_a_table_become_a_manifest(study):
    told = command(study / "slides", "--labels", study / "labels.csv", "--out", study / "out", *OPTIONS)
    assert told.exit_code == 0, told.output
    assert "2 written, 0 there already, 0 failed" in told.output
    Manifest.read(study / "out" / "manifest.csv").check()
    assert {p.name for p in (study / "out" / "previews").iterdir()} == {"s0.png", "s1.png"}
    again = command(study / "slides", "--labels", study / "labels.csv", "--out", study / "out", *OPTIONS)
    assert "0 written, 2 there already" in again.output


def test_a_run_in_which_some_failed_ends_with_three(study):
    (study / "slides" / "s1.svs").write_bytes(b"II*\0 broken")
    told = command(study / "slides", "--labels", study / "labels.csv", "--out", study / "out", *OPTIONS)
    assert told.exit_code == 3
    assert list(pd.read_csv(study / "out" / "failures.csv")["id"]) == ["s1"]
    assert Manifest.read(study / "out" / "manifest.csv").ids == ("s0",)


def test_a_dry_run_shows_cases_sizes_and_numbers_and_writes_nothing(study):
    makers.write_slide(study / "slides" / "glass.svs", makers.glass(256, 256))
    makers.write_slide(study / "slides" / "sizeless.svs", makers.speckled(3, 512), None)
    told = command(study / "slides", "--out", study / "out", "--dry-run", *OPTIONS)
    assert told.exit_code == 3, told.output  # glass, and no pixel size
    lines = {line.split("│")[1].strip(): line for line in told.output.splitlines() if line.startswith("│")}
    assert "to do" in lines["s0"]
    assert [cell.strip() for cell in lines["s0"].split("│")[3:7]] == ["16", "0.5", "32", "32"]
    assert "no tissue" in told.output
    assert "--mpp" in told.output
    assert not (study / "out").exists()


def test_options_and_a_recipe_file_are_joined(study):
    (study / "recipe.yaml").write_text(f"encoder: {makers.ENCODER}\ntile_um: 64\ntissue: {{method: none}}\n")
    words = ("--recipe", study / "recipe.yaml", "--tile-um", 32, "--executor", "serial", "--trust-code")
    told = command(study / "slides", "--out", study / "out", *words)
    assert told.exit_code == 0, told.output
    assert read_bag(study / "out" / "bags" / "s0.h5").n == 64


def test_scans_with_windows(tmp_path):
    series(tmp_path / "scans" / "p1")
    words = ("--encoder", makers.ENCODER, "--window", "brain", "--triplets", "--executor", "serial")
    told = command(tmp_path / "scans", "--out", tmp_path / "out", *words)
    assert told.exit_code == 0, told.output
    assert read_provenance(tmp_path / "out" / "bags" / "p1.h5")["settings"]["windows"] == ["brain"]


PROGRAM = """
import typer
from smmil.cli.prepare import prepare
app = typer.Typer()
app.command()(prepare)
if __name__ == "__main__":
    app()
"""


def test_sigterm_is_answered_with_a_word_and_leaves_nothing_half(study):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PAUSE": "0.3"}
    words = ("prepare", study / "slides", "--out", study / "out", *OPTIONS)
    main = subprocess.Popen(
        [sys.executable, "-m", "smmil", *map(str, words)], env=env, stderr=subprocess.PIPE, text=True
    )
    while not list(study.glob("out/bags/s*.h5")):
        assert main.poll() is None
        time.sleep(0.05)
    main.terminate()
    _, told = main.communicate(timeout=30)
    assert main.returncode == 128 + signal.SIGTERM
    assert told.splitlines()[-1] == "stopped by SIGTERM; what is done is kept, repeat the command to go on"
    assert "Traceback" not in told
    assert not list(study.rglob(".smmil-tmp-*"))


def test_ctrl_c_ends_the_workers_keeps_what_is_done_and_says_how_to_go_on(study):
    (study / "main.py").write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PAUSE": "0.3"}
    words = (study / "slides", "--out", study / "out", *OPTIONS[:-1], "processes", "--workers", 1)
    main = subprocess.Popen(
        [sys.executable, study / "main.py", *map(str, words)],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs inherit "ignored"
    )
    while not list(study.glob("out/bags/s*.h5")):
        assert main.poll() is None
        time.sleep(0.05)
    main.send_signal(signal.SIGINT)
    _, told = main.communicate(timeout=30)
    assert main.returncode == 130
    assert "repeat the command to go on" in told
    assert "Traceback" not in told
    assert not list(study.rglob(".smmil-tmp-*"))
    again = command(study / "slides", "--out", study / "out", *OPTIONS)
    written, kept = map(int, re.search(r"(\d) written, (\d) there already, 0 failed", again.output).groups())
    assert kept >= 1
    assert written + kept == 2


def test_a_real_slide_with_the_embedded_encoder(tmp_path):
    slide = real("cmu_small_svs", "cmu_small_region.svs")
    done = run(plan([slide], tmp_path, load_recipe(None, {"tile_um": 256.0})))
    bag = Manifest.read(done.manifest).bag("cmu_small_region")
    assert bag.frame.patch == (513, 513)  # 256 µm at 0.499 µm per pixel
    assert bag.x.shape[1] == 1280
    assert 8 < bag.n < 30
    facts = read_provenance(tmp_path / "bags" / "cmu_small_region.h5")
    assert facts["encoder"].startswith("efficientnet-lite0@")
    assert facts["licence"]


def test_real_nuclei_as_instances(tmp_path):
    folder = real("crchisto")
    chosen = load_recipe(None, {"encoder": makers.ENCODER})
    images = [folder / "png" / f"img{i}.png" for i in (1, 2)]
    done = run(plan(images, tmp_path, chosen, points=folder / "nuclei.csv"))
    table = pd.read_csv(folder / "nuclei.csv")
    for name in ("img1", "img2"):
        bag = Manifest.read(done.manifest).bag(name)
        xy = table[table["image"] == name][["x", "y"]].to_numpy()
        assert bag.coords.numpy() == pytest.approx(xy - 14)
        assert bag.graph.same_as(knn_graph(xy, 5))


def test_the_ct_slices_that_come_with_pydicom(tmp_path):
    data = pytest.importorskip("pydicom.data", reason="the extra ct is not installed")
    source = Path(data.get_testdata_file("CT_small.dcm", download=False))
    folder = tmp_path / "scan"
    folder.mkdir()
    (folder / "slice.dcm").write_bytes(source.read_bytes())
    done = run(plan([folder], tmp_path / "out", load_recipe(None, {"kind": "ct"})))
    bag = Manifest.read(done.manifest).bag("scan")
    assert bag.x.shape == (1, 1280)
    assert np.isfinite(bag.x.numpy()).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--window", "brain"), "--window: is for CT scans, but these are slides; leave it out"),
        (("--triplets",), "--triplets: is for CT scans"),
        (("--crop-px", 9), "--crop-px: is for crops around points"),
        (("--workers", 2), "--workers: the executor serial works alone"),
        (("--executor", "auto", "--workers", 0), "--workers: must be at least 1, got 0"),
        (("--dask", "tcp://x:1"), "--dask: is for the executor dask, not serial"),
        (("--executor", "dask", "--dask", "tcp://x:1", "--workers", 2), "--workers: the cluster at --dask has its own"),
        (("--coverage", 0.3), "--coverage: no case has an annotation"),
        (("--positive", "tumour"), "--positive: no case has an annotation"),
        (("--encoder-pixels", 64), "--encoder-pixels: the encoder 'support.prepare_makers:mean_colour' is your own"),
    ],
)
def test_options_that_would_do_nothing_are_refused(study, words, message):
    told = command(study / "slides", "--out", study / "out", *OPTIONS, *words)
    assert isinstance(told.exception, ConfigError)
    assert message in str(told.exception)
    assert not (study / "out").exists()


def test_a_failure_is_told_once_where_it_happens(study):
    (study / "slides" / "s1.svs").write_bytes(b"II*\0 broken")
    told = command(study / "slides", "--labels", study / "labels.csv", "--out", study / "out", *OPTIONS)
    assert told.output.count("failed: s1: ") == 1
    assert told.output.count("broken\n") <= 1
    assert "only one class (0)" in told.output  # what is left cannot be trained on
    assert "next: smmil train" not in told.output


def test_without_labels_the_next_step_is_labels(study):
    told = command(study / "slides", "--out", study / "out", *OPTIONS)
    assert "no labels yet" in told.output
    assert "next: smmil train" not in told.output
    told = command(study / "slides", "--labels", study / "labels.csv", "--out", study / "out", *OPTIONS)
    assert f"next: smmil train --manifest {study / 'out' / 'manifest.csv'} --model sm_ap" in told.output


def test_classes_of_points_are_told_and_then_used(tmp_path):
    Image.fromarray(makers.speckled(0, 64)).save(tmp_path / "a.png")
    (tmp_path / "p.csv").write_text("image,x,y,class\na,20,20,nerve\na,40,40,tumour\n")
    words = (tmp_path / "a.png", "--points", tmp_path / "p.csv", "--encoder", makers.ENCODER, "--executor", "serial")
    told = command(*words, "--out", tmp_path / "out")
    assert "note: " in told.output
    assert "--positive" in told.output
    assert not (tmp_path / "out" / "instance_labels").exists()
    told = command(*words, "--positive", "tumour", "--out", tmp_path / "out")
    assert told.exit_code == 0, told.output
    assert Manifest.read(tmp_path / "out" / "manifest.csv").bag("a").y_inst.tolist() == [0, 1]
