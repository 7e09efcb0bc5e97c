"""Pickled code under every name that smmil reads: it is not run, and SECURITY.md says nothing without a test."""

import io
import os
import pickle
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from support import prepare_makers as makers

ROOT = Path(__file__).parents[2]


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def payloads(mark: Path) -> dict[str, bytes]:
    thing, array, packed, saved = Payload(mark), io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, np.array([thing], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(packed, "w") as file:
        for name in ("facts", "scores", "probs", "label"):
            file.writestr(f"{name}.npy", array.getvalue())
    torch.save({"state_dict": thing, "features": torch.zeros(2, 2)}, saved)
    return {"pickle": pickle.dumps(thing), "npy": array.getvalue(), "npz": packed.getvalue(), "pt": saved.getvalue()}


@pytest.mark.parametrize("kind", ["pickle", "npy", "npz", "pt"])
def test_no_door_unpickles(sound, tmp_path, command, kind):
    mark, place = tmp_path / "executed", tmp_path / "files"
    data = payloads(mark)[kind]
    for name in ("b.pt", "b.pth", "b.npy", "b.npz", "b.h5", "b.safetensors", "b.parquet", "b.xlsx", "b.svs", "b.dcm"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(data)
    (tmp_path / "npz").mkdir()
    shutil.copy(place / "b.npz", tmp_path / "npz" / "b.npz")
    (tmp_path / "m.csv").write_text("id,path,label,instance_labels\n" + f"a,{place}/b.pt,1,{place}/b.npy\n")
    makers.write_slide(tmp_path / "slides/a.tif", makers.painted(128, 128, (0, 0, 64, 64, makers.TISSUE)))
    slides, out = tmp_path / "slides", tmp_path / "out"
    calls = [("inspect", file) for file in sorted(place.iterdir())]
    calls += [
        ("predict", sound.run, "--manifest", tmp_path / "m.csv", "--out", out),
        ("evaluate", tmp_path / "npz"),
        ("report", tmp_path / "npz", "--out", tmp_path / "report.html"),
        ("convert-weights", place / "b.pt", "--from", "clam", "--out", out),
        ("convert-weights", place / "b.safetensors", "--from", "clam", "--out", out),
        ("prepare", slides, "--weights", place / "b.pth", "--out", out),
        ("prepare", place, "--out", out, "--executor", "serial"),
        ("prepare", slides, "--labels", place / "b.xlsx", "--out", out),
        ("train", "--manifest", place / "b.parquet", "--model", "abmil", "--out", out),
    ]
    for words in calls:
        try:
            assert command(*words)[0] != 0, words
        finally:
            assert not mark.exists(), words
    shutil.copy(place / "b.safetensors", sound.run / "checkpoints/best.safetensors")
    assert command("predict", sound.run, "--out", out)[0] == 2
    assert not mark.exists()
    pickle.loads(payloads(mark)["pickle"])  # noqa: S301 (our own, to see that it works)
    assert mark.exists()


@pytest.mark.parametrize("part", ["Code", "Network, files and data"])
def test_every_promise_names_tests_that_exist(part):
    text = (ROOT / "SECURITY.md").read_text()
    part = text.partition(f"## {part}\n")[2].partition("\n## ")[0]
    promises = [line for line in re.split(r"\n- ", part)[1:] if line.strip()]
    assert promises
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", promise)
        assert named, promise
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), (file, name)
