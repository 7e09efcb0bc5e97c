"""What made users stumble in trials on data nobody here had seen, each as they met it."""

import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from support import prepare_makers as makers
from support.ct_makers import series
from typer.testing import CliRunner

from smmil.bag import Bag
from smmil.cli.prepare import prepare
from smmil.errors import ConfigError, DataError
from smmil.exports.case import ExportCase
from smmil.exports.geometry import slide_facts
from smmil.files import write_rows
from smmil.formats import read_bag, write_bag
from smmil.predict.cases import _image_facts
from smmil.prediction import Prediction
from smmil.prepare import plan, run
from smmil.report import write_report
from smmil.viewer.data import ViewerData

app = typer.Typer()
app.command()(prepare)
OPTIONS = ("--encoder", makers.ENCODER, "--tile-um", 32, "--executor", "serial")
LONG = "a_study_of_many_words_site_0042_patient_000017_block_b_level_3"


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def predicted(bag_path, folder, score=None):
    """A prediction of a prepared bag with the facts that smmil predict stores."""
    bag = read_bag(bag_path)
    scores = np.arange(bag.n, dtype=np.float32) if score is None else score
    folder.mkdir(parents=True, exist_ok=True)
    made = Prediction(
        bag.id, [0.7], scores, coords=bag.coords.numpy(), frame=bag.frame, y=1, meta=_image_facts(bag_path)
    )
    made.save(folder / f"{bag.id}.npz")
    return made


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """Two slides whose files say 0.5 µm per pixel, one with an id longer than a terminal's column, and glass."""
    folder = tmp_path_factory.mktemp("friction")
    makers.write_slide(folder / "slides" / "s0.svs", makers.speckled(0, 512))
    makers.write_slide(folder / "slides" / f"{LONG}.svs", makers.speckled(1, 512))
    return folder


@pytest.fixture(scope="module")
def resized(slides):
    """Bags of these slides, prepared with another pixel size than their files state."""
    todo = plan([slides / "slides"], slides / "mpp1", makers.recipe(16.0), mpp=1.0)
    assert run(todo).count("written") == 2
    return slides / "mpp1" / "bags"


def test_a_pixel_size_given_to_prepare_holds_for_every_picture_after_it(slides, resized):
    case = predicted(resized / "s0.h5", slides / "predictions" / "model")
    done = write_report([slides / "predictions" / "model"], slides / "report.html", slides=slides / "slides")
    assert done.without_picture == {}
    with closing(ViewerData.read([slides / "predictions" / "model"], slides=slides / "slides")) as study:
        assert study.picture(0).mpp == 1.0
        assert study.geometry(0).patch == (16.0, 16.0)
    facts = slide_facts(ExportCase(case, slides / "slides" / "s0.svs"))
    assert (facts.mpp, facts.size) == (1.0, (512, 512))


def test_another_slide_is_refused_all_the_same_and_the_table_wins_over_prepare(slides, resized, tmp_path):
    predicted(resized / "s0.h5", tmp_path / "model")
    makers.write_slide(tmp_path / "slides" / "s0.svs", makers.speckled(0, 256))
    done = write_report([tmp_path / "model"], tmp_path / "r.html", slides=tmp_path / "slides")
    assert "256 x 256" in done.without_picture["s0"]
    (tmp_path / "images.csv").write_text(f"id,slide,mpp\ns0,{slides / 'slides' / 's0.svs'},0.25\n")
    done = write_report([tmp_path / "model"], tmp_path / "r.html", slides=tmp_path / "images.csv")
    assert "1 µm per pixel" in done.without_picture["s0"]
    assert "0.25" in done.without_picture["s0"]


@pytest.fixture(scope="module")
def looked_at(slides):
    """Words and exit code of a dry run over two good slides, one annotated, three broken ones and one of glass."""
    for name in ("bad1", "bad2", "bad3"):
        (slides / "trouble" / f"{name}.svs").parent.mkdir(exist_ok=True)
        (slides / "trouble" / f"{name}.svs").write_bytes(b"II*\0 broken")
    makers.write_slide(slides / "trouble" / "glass.svs", makers.glass(256, 256))
    (slides / "s0.csv").write_text("x,y,width,height\n128,128,64,128\n")
    (slides / "wrong.csv").write_text("what,ever\n1,2\n")
    rows = ["id,label,annotation", "s0,1,s0.csv", f"{LONG},1,wrong.csv", *(f"bad{i},0," for i in (1, 2, 3)), "glass,0,"]
    (slides / "labels.csv").write_text("\n".join(rows) + "\n")
    words = ("--labels", slides / "labels.csv", "--out", slides / "dry", "--dry-run", *OPTIONS)
    return command(slides / "slides", slides / "trouble", *words)


def test_a_dry_run_that_shows_failing_cases_does_not_end_as_if_all_were_well(looked_at):
    assert looked_at.exit_code == 3
    assert "5 of 6 case(s) would fail" in looked_at.stderr


def test_a_dry_run_tells_every_reason_once_and_one_line_for_each_case(looked_at):
    rows = [line for line in looked_at.stdout.splitlines() if line.startswith("│")]
    assert len(rows) == 6
    broken = [line for line in looked_at.stderr.splitlines() if "bad1" in line]
    assert len(broken) == 1
    assert broken[0].startswith("fails: bad1, bad2, bad3: ")


def test_a_dry_run_shows_ids_in_full_where_there_is_no_wide_terminal(looked_at):
    assert f"│ {LONG} │" in looked_at.stdout
    assert "…" not in looked_at.stdout


def test_a_dry_run_reads_annotations(looked_at):
    row = next(line for line in looked_at.stdout.splitlines() if line.startswith("│ s0"))
    assert row.split("│")[-2].strip() == "2"  # 64 x 128 pixels of 0.5 µm hold two tiles of 32 µm
    assert f"fails: {LONG}: neither ID,Label of slices nor x,y,width,height of boxes" in looked_at.stderr


def test_the_dry_run_and_the_run_count_the_same_positive_instances(slides, looked_at):
    (slides / "one.csv").write_text("id,label,annotation\ns0,1,s0.csv\n")
    command(slides / "slides", "--labels", slides / "one.csv", "--out", slides / "real", *OPTIONS)
    labels = np.loadtxt(slides / "real" / "instance_labels" / "s0.csv", delimiter=",", skiprows=1, usecols=0)
    assert labels.sum() == 2


def test_only_what_differs_between_two_recipes_is_named(slides):
    first = plan([slides / "slides"], slides / "recipes", makers.recipe())
    run(first)
    other = plan([slides / "slides"], slides / "recipes", makers.recipe(tissue={"share": 0.5}))
    with pytest.raises(ConfigError) as told:
        run(other)
    assert "(tissue.share: 0.25 there, 0.5 now)" in str(told.value)
    assert "{" not in str(told.value)


def test_a_bag_gets_its_label_when_it_is_read(tmp_path):
    write_bag(tmp_path / "a.h5", Bag("a", torch.zeros(3, 2)), graph="none")
    assert read_bag(tmp_path / "a.h5").y is None
    assert read_bag(tmp_path / "a.h5", y=1).y == 1
    assert read_bag(tmp_path / "a.h5", y=0, instance_labels=False).y == 0


@pytest.fixture(scope="module")
def gapped(tmp_path_factory):
    """A scan without its fourth slice, prepared on the command line; its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("gap")
    _, paths = series(folder / "scans" / "p1", np.zeros((8, 9, 7), np.float32) + np.arange(63).reshape(9, 7))
    Path(paths[3]).unlink()
    words = ("--encoder", makers.ENCODER, "--window", "brain", "--executor", "serial")
    return folder, command(folder / "scans", "--out", folder / "out", *words)


GAP = "1 gap(s) between slices otherwise 5.00 mm apart"


def test_missing_slices_are_told_by_prepare_and_on_the_pages(gapped):
    folder, told = gapped
    assert f"note: p1: {GAP}" in told.stderr
    predicted(folder / "out" / "bags" / "p1.h5", folder / "model")
    write_report([folder / "model"], folder / "report.html")
    assert GAP in (folder / "report.html").read_text()
    from smmil.viewer.api import _one_case

    with closing(ViewerData.read([folder / "model"])) as study:
        assert any(GAP in note for note in _one_case(study, 0)["notes"])


def test_tables_of_failures_hold_no_folders_of_this_machine(tmp_path):
    table = tmp_path / "study" / "failures.csv"
    table.parent.mkdir()
    near, far = tmp_path / "slides" / "a.svs", "/mnt/hospital/ward/b.svs"
    reasons = [(near, f"{near}: damaged; see {tmp_path}/study/previews/a.png"), (far, f"'{far}' (or {far}): gone")]
    write_rows(table, ("path", "reason"), [(str(path), reason) for path, reason in reasons])
    text = table.read_text()
    assert "../slides/a.svs,../slides/a.svs: damaged; see previews/a.png" in text
    assert "b.svs,'b.svs' (or b.svs): gone" in text
    assert "/mnt" not in text
    assert str(tmp_path) not in text
    write_rows(table, ("reason",), [("1/2 of µm/px, 3 / 4, https://a.org/b/c and/or",)])
    assert table.read_text() == 'reason\n"1/2 of µm/px, 3 / 4, https://a.org/b/c and/or"\n'


def test_failures_of_prepare_name_files_from_the_folders_that_were_given(slides, tmp_path):
    (tmp_path / "labels.csv").write_text("id,label\ns0,1\nnobody,0\n")
    told = command(slides / "slides", "--labels", tmp_path / "labels.csv", "--out", tmp_path / "out", *OPTIONS)
    assert told.exit_code == 3
    assert not re.search(r"(^|[\s'\"(,])/", (tmp_path / "out" / "failures.csv").read_text())


def test_a_linked_folder_of_predictions_is_a_model_called_by_its_own_name(slides, resized, tmp_path):
    from smmil.evaluate.folders import named_folders
    from smmil.report.sources import find_sources

    predicted(resized / "s0.h5", tmp_path / "store" / "0017")
    (tmp_path / "sm_ap").symlink_to(tmp_path / "store" / "0017")
    (tmp_path / "abmil").symlink_to(tmp_path / "store" / "0017")
    assert list(named_folders([tmp_path / "sm_ap", tmp_path / "abmil"])) == ["sm_ap", "abmil"]
    assert [name for name, _, _ in find_sources([tmp_path / "sm_ap"])] == ["sm_ap"]


def test_labels_in_words_are_asked_for_never_guessed(tmp_path):
    from smmil.data.manifest import Manifest

    (tmp_path / "m.csv").write_text("id,path,label\na,a.h5,ICH\nb,b.h5,normal\n")
    with pytest.raises(DataError) as told:
        Manifest.read(tmp_path / "m.csv").check_table()
    assert "got 'ICH', 'normal'" in str(told.value)
    assert not re.search(r"(ICH|normal)\s*=", str(told.value))
    assert "NEGATIVE_WORD = 0, POSITIVE_WORD = 1" in str(told.value)


def test_long_work_tells_the_time_left_where_no_bar_can_be_shown(monkeypatch):
    import io
    from types import SimpleNamespace

    from rich.console import Console

    from smmil.cli import progress

    clock, said = SimpleNamespace(now=100.0), io.StringIO()
    monkeypatch.setattr(progress, "monotonic", lambda: clock.now)
    with progress._GridBars() as bars:
        bars.console = Console(file=said, force_terminal=False, width=40)
        bars.begun(2, 12)
        clock.now += 90
        bars.ended("tiny · ABMIL · fold 0", None)
        clock.now += 1
        bars.ended("tiny · ABMIL · fold 1", "no bags")  # so soon after the last line only failures are told
        clock.now += 89
        bars.ended("tiny · SmAP · fold 0", None)
    lines = said.getvalue().splitlines()
    assert lines == [
        "2 of 12 runs, 0:00:00 gone: begun",
        "3 of 12 runs, 0:01:30 gone, about 0:13:30 left: tiny · ABMIL · fold 0",
        "failed: tiny · ABMIL · fold 1: no bags",
        "5 of 12 runs, 0:03:00 gone, about 0:07:00 left: tiny · SmAP · fold 0",
    ]


def test_a_single_long_run_is_not_silent_either(monkeypatch):
    import io
    import time

    from rich.console import Console

    from smmil.cli import progress

    monkeypatch.setattr(progress, "_MINUTE", 0.01)
    said = io.StringIO()
    with progress._GridBars("steps") as bars:
        bars.console = Console(file=said, force_terminal=False, width=40)
        bars.begun(0, 3)
        while "still at work" not in said.getvalue():
            time.sleep(0.01)
    assert "0 of 3 steps" in said.getvalue()


def test_a_notebook_that_forces_colours_gets_no_page_of_bars(slides, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter does for %%bash
    told = command(slides / "slides", "--out", tmp_path / "out", *OPTIONS)
    assert told.exit_code == 0
    assert "━" not in told.stderr


def reference_between(image, x, y):
    """Plain bilinear interpolation at one place, in cells, over the cells that hold a value."""
    if np.isnan(image[int(y), int(x)]):
        return np.nan
    total = weight = 0.0
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            near = max(0, 1 - abs(x - column - 0.5)) * max(0, 1 - abs(y - row - 0.5))
            if near and not np.isnan(image[row, column]):
                total, weight = total + near * image[row, column], weight + near
    return total / weight


@pytest.fixture(scope="module")
def holey():
    image = np.random.default_rng(0).normal(size=(5, 7))
    image[1, 2] = image[3, 4:] = np.nan
    return image


def test_interpolated_maps_know_no_more_than_their_patches(holey):
    from smmil.maps.raster import between_cells, finer

    extent = (100.0, 100.0 + 7 * 64, 50.0 + 5 * 32, 50.0)
    x, y = np.random.default_rng(1).uniform(0, 7, 40), np.random.default_rng(2).uniform(0, 5, 30)
    found = between_cells(holey, extent, 100 + 64 * x, 50 + 32 * y)
    wanted = np.array([[reference_between(holey, one, other) for one in x] for other in y])
    assert np.allclose(found, wanted, equal_nan=True, atol=1e-9)
    middles = between_cells(holey, extent, 100 + 64 * (np.arange(7) + 0.5), 50 + 32 * (np.arange(5) + 0.5))
    assert np.allclose(middles, holey, equal_nan=True)
    fine = finer(holey, extent, 4)
    assert (np.isnan(fine) == np.isnan(holey).repeat(4, 0).repeat(4, 1)).all()  # no colour where there is no patch
    around = np.pad(holey, 1, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3)).reshape(5, 7, 9)
    low, high = (f(windows, axis=2).repeat(4, 0).repeat(4, 1) for f in (np.nanmin, np.nanmax))
    shown = ~np.isnan(fine)
    assert (fine[shown] >= low[shown] - 1e-12).all()
    assert (fine[shown] <= high[shown] + 1e-12).all()
    far = between_cells(holey, extent, np.array([-1e6, 1e6]), np.array([-1e6, 1e6]))
    assert np.isnan(far).all()


def test_exported_pictures_are_interpolated_only_when_asked_and_say_between_what(slides, resized, tmp_path):
    from PIL import Image

    from smmil.errors import ConfigError
    from smmil.exports.batch import export

    case = predicted(resized / "s0.h5", tmp_path / "m", np.random.default_rng(0).normal(size=256).astype(np.float32))
    image = slides / "slides" / "s0.svs"
    blocks = export(case, "png", tmp_path / "blocks.png", image=image, size=512)
    smooth = export(case, "png", tmp_path / "smooth.png", image=image, size=512, interpolate=True)
    assert (blocks.notes, smooth.notes) == ([], [("s0", "interpolated between patches of 16 µm")])
    one, other = (np.asarray(Image.open(tmp_path / f"{name}.png")).astype(int) for name in ("blocks", "smooth"))
    inside = slice(128, 384)
    assert (one != other).any(2)[inside, inside].mean() > 0.5
    assert (one == other)[:128].all()  # glass stays glass
    middle = np.abs(one - other)[136:384:16, 136:384:16]
    assert np.median(middle) <= 4  # pixels lie half a pixel beside the middle of a patch
    with pytest.raises(ConfigError, match="--interpolate"):
        export(case, "csv", tmp_path / "t.csv", interpolate=True)


def test_previews_of_scans_number_their_slices_and_show_the_truth_of_today(gapped, tmp_path):
    from PIL import Image

    from smmil.prepare.case import _BAND, _SLICE, _mark_truth

    preview = tmp_path / "p.png"
    stored = gapped[0] / "out" / "previews" / "p1.png"
    preview.write_bytes(stored.read_bytes())
    pixels = np.asarray(Image.open(preview))
    assert pixels.shape == (2 * (_SLICE + _BAND), 5 * _SLICE, 3)
    corners = [pixels[2:16, k * _SLICE + 2 : k * _SLICE + 14].max(2) for k in range(5)]
    assert all(corner.max() > 220 for corner in corners)  # brighter than any voxel of this scan: a number
    assert len({corner.tobytes() for corner in corners}) == 5
    for labels in ([0, 1, -1, 0, 1, 0, 0], [1, 0, 0, 0, 0, -1, 0]):
        _mark_truth(preview, np.array(labels))
        bands = np.asarray(Image.open(preview))[_SLICE + 2 :: _SLICE + _BAND, _SLICE // 2 :: _SLICE].reshape(-1, 3)
        assert [2 * (r > g) - (r == g) for r, g, _ in bands[:7].tolist()] == [2 * (v > 0) - (v < 0) for v in labels]


@pytest.fixture(scope="module")
def mr(tmp_path_factory):
    """Predictions of an MR scan as NIfTI with values from 0 to 1, and the scan."""
    nibabel = pytest.importorskip("nibabel", reason="needs nibabel: pip install 'smmil[ct]'")
    from smmil.frame import Frame

    folder = tmp_path_factory.mktemp("mr")
    values = np.random.default_rng(0).random((6, 9, 7)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values.transpose(2, 1, 0), np.diag([-2.0, -2.0, 5.0, 1.0])), folder / "m1.nii.gz")
    truth = np.array([0, 0, 1, 1, 0, 0])
    case = Prediction("m1", [0.7], np.arange(6.0), coords=np.arange(6)[:, None], frame=Frame((1,), (5.0,), "mm"), y=1,
                      y_inst=truth)  # fmt: skip
    (folder / "model").mkdir()
    case.save(folder / "model" / "m1.npz")
    return folder, values, case


def test_a_scan_of_values_between_0_and_1_is_seen_in_the_viewer(mr):
    from smmil.images.volume import open_volume
    from smmil.viewer.tiles import _scan_facts

    folder, _, case = mr
    volume = open_volume(folder / "m1.nii.gz")
    facts = _scan_facts(volume, case)
    with closing(ViewerData.read([folder / "model"], slides=folder)) as study:
        sent = np.frombuffer(study.slice(0, 2), "<f4" if facts["numbers"] == "float32" else "<i2").reshape(9, 7)
    assert np.array_equal(sent, volume.slice_hu(2))
    centre, width = next(iter(facts["windows"].values()))
    shades = np.clip((sent - centre + width / 2) / width, 0, 1)
    assert 0.4 < shades.mean() < 0.6
    assert shades.std() > 0.2
    assert facts["unit"] is None
    assert facts["orientation"] == "LPS"


def test_sheets_of_slices_have_numbers_truth_and_a_colour_scale(mr, tmp_path):
    from PIL import Image

    from smmil.exports.batch import export
    from smmil.exports.raster import _numbered

    folder, _, case = mr
    export(case, "png", tmp_path / "sheet.png", image=folder / "m1.nii.gz", size=300)
    pixels = np.asarray(Image.open(tmp_path / "sheet.png")).astype(int)
    cell = 100
    white = (pixels[:200] == 255).all(2)
    cells = [white[r * cell : (r + 1) * cell, c * cell : (c + 1) * cell] for r in (0, 1) for c in range(3)]
    assert [bool(one[1:5, 94:98].all()) for one in cells] == [bool(label) for label in case.y_inst]
    black = _numbered(np.zeros((200, 300, 3), np.float32), cell, 3, 6, ExportCase(case))
    numbers = [black[r * cell : r * cell + 30, c * cell : c * cell + 40] for r in (0, 1) for c in range(3)]
    assert all(number.max() > 220 for number in numbers)
    assert len({number.tobytes() for number in numbers}) == 6
    grey = pixels[20:80, 20:80]  # inside the first slice: neither all black nor all white, whatever the values are
    assert 60 < grey.mean() < 200
    below = pixels[200:]
    assert len(np.unique(below.reshape(-1, 3), axis=0)) > 40  # the colours of the scale
    assert (below == 255).all(2).mean() > 0.3
