"""Many cases: the same bytes from every executor and after every kill, and tables that say what happened."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from support import prepare_makers as makers
from support.ct_makers import series

from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, SmmilError
from smmil.prepare import plan, run

N = 5


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "slides"
    for seed in range(N):
        makers.write_slide(folder / f"s{seed}.svs", makers.speckled(seed, 512))
    (folder.parent / "labels.csv").write_text("id,label\n" + "".join(f"s{i},{i % 2}\n" for i in range(N)))
    return folder


def prepare(slides, out, chosen=None, *, executor="serial", labels=True, **options):
    wanted = {k: options.pop(k) for k in ("mpp", "points", "coverage") if k in options}
    table = slides.parent / "labels.csv" if labels is True else labels
    todo = plan([slides], out, chosen or makers.recipe(), labels=table, **wanted)
    return run(todo, executor=executor, **options)


@pytest.fixture(scope="module")
def undisturbed(slides, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    prepare(slides, out)
    return makers.checksums(out), (out / "manifest.csv").read_bytes()


@pytest.mark.parametrize("executor", ["processes", pytest.param("dask", marks=pytest.mark.slow)])
def test_every_executor_writes_the_same_bytes(slides, undisturbed, tmp_path, executor):
    if executor == "dask":
        pytest.importorskip("distributed", reason="the extra dask is not installed")
    done = prepare(slides, tmp_path, executor=executor, workers=1 if executor == "dask" else 2)
    assert done.count("written") == N
    assert makers.checksums(tmp_path) == undisturbed[0]
    assert len(undisturbed[0]) == N
    assert (tmp_path / "manifest.csv").read_bytes() == undisturbed[1]


PROGRAM = """
import sys
from support import prepare_makers as makers
from smmil.prepare import plan, run
if __name__ == "__main__":
    slides, out, workers = sys.argv[1:]
    done = run(plan([slides], out, makers.recipe()), executor="processes", workers=int(workers))
    sys.exit(3 if done.failures else 0)
"""


def start(script, slides, out, workers):
    script.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "PAUSE": "0.1"}
    return subprocess.Popen([sys.executable, str(script), str(slides), str(out), str(workers)], env=env)


def children(pid):
    with suppress(FileNotFoundError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill_and_repeat(slides, tmp_path, kills, seed, workers=2):
    """Kill a worker, the main process, then any of them, at random moments of the work; repeat until it ends well."""
    chance, out, done = random.Random(seed), tmp_path / "out", 0
    while True:
        main = start(tmp_path / "main.py", slides, out, workers)
        before = len(list(out.glob("bags/s*.h5")))
        while done < kills and main.poll() is None:
            working = len(list(out.glob("bags/s*.h5"))) > before or before == N
            time.sleep(chance.uniform(0, 0.5) if working else 0.05)
            if working and main.poll() is None:
                victims = (children(main.pid), [main.pid], [main.pid, *children(main.pid)])[min(done, 2)]
                with suppress(ProcessLookupError, IndexError):  # it may end by itself in this moment
                    os.kill(chance.choice(victims), signal.SIGKILL)
                done += 1
        if main.wait(120) == 0:
            return out
        assert main.returncode in (-signal.SIGKILL, 3)  # 3: a case whose workers were killed again and again is listed


def check_after_kills(out, undisturbed):
    assert makers.checksums(out) == undisturbed[0]
    assert not list(out.rglob(".smmil-tmp-*"))
    assert len(pd.read_csv(out / "manifest.csv")) == N


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the workers")
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills_in_all(slides, undisturbed, tmp_path, seed):
    check_after_kills(kill_and_repeat(slides, tmp_path, kills=5, seed=10 + seed), undisturbed)


def test_leftovers_of_a_killed_run_are_removed(slides, tmp_path):
    (tmp_path / "bags").mkdir()
    (tmp_path / "bags" / ".smmil-tmp-1-ab-s0.h5").write_bytes(b"half")
    prepare(slides, tmp_path)
    assert not list(tmp_path.rglob(".smmil-tmp-*"))


def test_the_manifest_is_what_train_takes(slides, tmp_path):
    prepare(slides, tmp_path)
    manifest = Manifest.read(tmp_path / "manifest.csv")
    manifest.check()
    assert manifest.ids == tuple(f"s{i}" for i in range(N))
    assert [manifest.labels[i] for i in manifest.ids] == [0, 1, 0, 1, 0]
    assert manifest.bag("s1").n == 16
    again = prepare(slides, tmp_path)
    assert again.count("kept") == N


@pytest.fixture
def troubled(tmp_path):
    """One good slide, one that is none, one without tissue, one without pixel size; and a row without a slide."""
    folder = tmp_path / "slides"
    good = makers.write_slide(folder / "good.svs", makers.speckled(0))
    (folder / "corrupt.svs").write_bytes(good.read_bytes()[:500])
    makers.write_slide(folder / "glass.svs", makers.glass(256, 256))
    makers.write_slide(folder / "sizeless.svs", makers.speckled(1), None)
    rows = ("good", "corrupt", "glass", "sizeless", "absent")
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{r},{i % 2}\n" for i, r in enumerate(rows)))
    return folder


def test_cases_that_fail_are_listed_with_the_reason_and_the_others_are_done(troubled, tmp_path):
    done = prepare(troubled, tmp_path / "out")
    assert Manifest.read(done.manifest).ids == ("good",)
    reasons = pd.read_csv(tmp_path / "out" / "failures.csv").set_index("id")["reason"].to_dict()
    assert set(reasons) == {"corrupt", "glass", "sizeless", "absent"}
    assert "corrupt.svs: not a slide that can be read, or damaged" in reasons["corrupt"]
    assert "no tissue found; look at" in reasons["glass"]
    assert "give it with --mpp" in reasons["sizeless"]
    assert "no slide or scan is called 'absent'" in reasons["absent"]
    status = pd.read_csv(tmp_path / "out" / "cases.csv").set_index("id")["status"].to_dict()
    assert status == {"good": "done", "corrupt": "failed", "glass": "no tissue", "sizeless": "failed"}


def test_the_tables_do_not_name_local_folders(troubled, tmp_path):
    inner = troubled / "inner"
    inner.mkdir()
    (troubled / "corrupt.svs").rename(inner / "corrupt.svs")
    done = prepare(troubled, tmp_path / "out", labels=None)
    failures = pd.read_csv(tmp_path / "out" / "failures.csv").set_index("id")
    assert failures["path"].to_dict() == {
        "corrupt": "inner/corrupt.svs",
        "glass": "glass.svs",
        "sizeless": "sizeless.svs",
    }
    assert failures["reason"]["corrupt"].startswith("inner/corrupt.svs: not a slide")
    assert "look at previews/glass.png" in failures["reason"]["glass"]
    for name in ("failures.csv", "cases.csv", "manifest.csv"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()
    assert str(troubled) in {id_: path for id_, path, _ in done.failures}["glass"]  # for programs, as it was


def test_a_failure_that_was_mended_is_no_longer_listed(troubled, tmp_path):
    for name in ("corrupt", "glass"):
        (troubled / f"{name}.svs").unlink()
    assert prepare(troubled, tmp_path / "out", labels=None).failures[0][0] == "sizeless"
    mended = prepare(troubled, tmp_path / "out", labels=None, mpp=0.5)
    assert mended.failures == ()
    assert not (tmp_path / "out" / "failures.csv").exists()


def test_tables_for_people_hold_no_formula_and_the_manifest_holds_the_ids_as_they_are(tmp_path):
    folder = tmp_path / "slides"  # ids in full width are not refused, and some spreadsheets compute them
    makers.write_slide(folder / "＝1+1.svs", makers.speckled(0, 256))
    (folder / "＠broken.svs").write_bytes(b"no slide")
    done = prepare(folder, tmp_path / "out", labels=None)
    assert pd.read_csv(tmp_path / "out" / "failures.csv")["id"].tolist() == ["'＠broken"]
    assert set(pd.read_csv(tmp_path / "out" / "cases.csv")["id"]) == {"'＝1+1", "'＠broken"}
    manifest = Manifest.read(done.manifest)
    assert manifest.ids == ("＝1+1",)
    assert manifest.bag("＝1+1").id == "＝1+1"
    before = done.manifest.read_bytes()
    again = prepare(folder, tmp_path / "out", labels=None)
    assert again.count("kept") == 1
    assert again.manifest.read_bytes() == before


def test_one_folder_holds_bags_of_one_recipe(slides, tmp_path):
    prepare(slides, tmp_path)
    other = makers.recipe(tile_um=16.0)
    with pytest.raises(ConfigError, match=r"tile_um: 32\.0 there, 16\.0 now.*--overwrite"):
        prepare(slides, tmp_path, other)
    assert prepare(slides, tmp_path, other, overwrite=True).count("written") == N


def test_an_unknown_encoder_and_missing_weights_are_told_before_any_work(slides, tmp_path, monkeypatch):
    monkeypatch.setenv("SMMIL_WEIGHTS", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="efficientnet-lite0"):
        prepare(slides, tmp_path / "out", makers.recipe(encoder="eficientnet-lite0"))
    with pytest.raises(SmmilError, match="resnet50-bt"):
        prepare(slides, tmp_path / "out", makers.recipe(encoder="resnet50-bt"))
    with pytest.raises(ConfigError, match=r"expected package\.module:function"):
        prepare(slides, tmp_path / "out", makers.recipe(encoder="support.prepare_makers:nothing"))
    assert not (tmp_path / "out").exists()


def test_scans_are_recognised_and_prepared(tmp_path):
    for name in ("p1", "p2"):
        series(tmp_path / "scans" / name)
    done = prepare(tmp_path / "scans", tmp_path / "out", labels=None)
    assert [o.value.instances for o in done.outcomes] == [6, 6]
    assert Manifest.read(done.manifest).bag("p2").frame.unit == "mm"


def test_annotations_become_instance_labels_beside_the_bag(slides, tmp_path):
    import json

    ring = [[128, 128], [192, 128], [192, 192], [128, 192], [128, 128]]
    shape = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}}
    (tmp_path / "lesion.geojson").write_text(json.dumps(shape))
    (tmp_path / "labels.csv").write_text("id,label,annotation\ns0,1,lesion.geojson\ns1,0,\n")
    done = prepare(slides, tmp_path / "out", labels=tmp_path / "labels.csv")
    manifest = Manifest.read(done.manifest)
    manifest.check()
    bag = manifest.bag("s0")
    assert bag.coords[bag.y_inst == 1].tolist() == [[128, 128]]
    assert not manifest.bag("s1").y_inst.any()  # of class 0, beside annotated ones


def test_a_place_that_cannot_be_written_is_a_failure_in_one_line(slides, tmp_path):
    (tmp_path / "previews").write_text("a file where a folder should be")
    done = prepare(slides, tmp_path)
    assert len(done.failures) == N
    assert all("previews" in reason and "cannot be written" in reason for _, _, reason in done.failures)
    assert done.manifest is None


def test_images_of_the_other_kind_are_refused_not_forgotten(slides, tmp_path):
    with pytest.raises(ConfigError, match="no source for the kind 'ct'"):
        prepare(slides, tmp_path, makers.recipe(kind="ct"), labels=None)
    with pytest.raises(ConfigError, match="belong together"):
        prepare(slides, tmp_path, makers.recipe(kind="points"), labels=None)
