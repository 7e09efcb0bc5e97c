"""The contract of every export format: atomic, deterministic, readable, private, and as its row of the table says."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer
from support.export_makers import META, scan_case, slide_case
from typer.testing import CliRunner

from smmil import exports
from smmil.cli.export import export as export_verb
from smmil.errors import ConfigError, DataError, SmmilError
from smmil.exports import FORMATS, ExportCase, ExportFormat, export, format_table, possible_formats, register_export
from smmil.files import replacing
from smmil.prediction import Prediction

SECRETS = ("SECRET^NAME", "slides-of-mrs-doe", "hidden note")
PRIVATE = {**META, "note": SECRETS[2], "slide": {"path": "/data/slides-of-mrs-doe/x.svs"}}
CASES = [(name, kind) for name, row in FORMATS.items() for kind in ("slide", "scan") if getattr(row, kind) != "never"]


def read_geojson(path):
    return max(f["properties"]["measurements"]["score"] for f in json.loads(path.read_text())["features"][1:])


def read_csv(path):
    import pandas as pd

    return pd.read_csv(path)["score"].max()


def read_parquet(path):
    import pandas as pd

    return pd.read_parquet(path)["score"].max()


def read_png(path):
    from PIL import Image

    with Image.open(path) as image:
        red, green, blue = np.asarray(image).astype(int).reshape(-1, 3).T
        coloured = (abs(red - green) + abs(green - blue)).max() > 60
        return int(coloured and json.loads(image.text["Comment"])["model"] == META["model"])


def read_tiff(path):
    import tifffile

    return np.nanmax(tifffile.imread(path))


def read_nifti(path):
    import nibabel

    return np.nanmax(nibabel.load(path).get_fdata())


def read_dicom(path):
    import highdicom
    from pydicom import dcmread

    found = dcmread(path)
    if found.Modality == "SEG":
        return highdicom.seg.segread(path).pixel_array.max()
    return np.frombuffer(found.FloatPixelData, np.float32).max()


# What each consumer's library finds in the file: the highest score of the case, or what stands for it.
READ = {
    **{"geojson": read_geojson, "csv": read_csv, "parquet": read_parquet, "png": read_png},
    **{"tiff": read_tiff, "nifti": read_nifti, "dicom-seg": read_dicom, "dicom-pm": read_dicom},
}
STANDS_FOR_IT = {"png": 1, "dicom-seg": 1}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """{kind: (image, prediction)}: a DICOM slide and a CT series, in folders and with facts that must not leave."""
    folder = tmp_path_factory.mktemp("slides-of-mrs-doe")
    slide, tiles = slide_case(folder / "slide", "dicom", meta=PRIVATE)
    tiles = replace(tiles, scores=np.where(tiles.scores > 0, 2.5, -1).astype(np.float32))
    scan, _, slices = scan_case(folder / "scan", meta=PRIVATE)
    for file in [*folder.rglob("*.dcm")]:
        _name_patient(file)
    return {"slide": (slide, tiles), "scan": (scan, slices)}


def _name_patient(file):
    from pydicom import dcmread

    source = dcmread(file)
    source.PatientName, source.PatientID = SECRETS[0], SECRETS[0]
    source.save_as(file)


def given(name, image, **changes):
    """The options that the table asks for, with the image."""
    return {"image": image, "threshold": None if FORMATS[name].threshold == "never" else 0.5, **changes}


def written(name, case, folder, **changes):
    image, prediction = case
    path = folder / f"out{FORMATS[name].endings[0]}"
    export(prediction, name, path, **given(name, image, **changes))
    return path


def test_every_format_is_examined():
    assert set(READ) == set(FORMATS), "a new format needs a reader here"
    assert {name for name, _ in CASES} == set(FORMATS)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_consumers_library_reads_the_scores(tmp_path, cases, name, kind):
    path = written(name, cases[kind], tmp_path)
    highest = float(cases[kind][1].scores.max())
    assert READ[name](path) == pytest.approx(STANDS_FOR_IT.get(name, highest), rel=1e-6)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_same_case_gives_the_same_bytes(tmp_path, cases, name, kind):
    one, other = (written(name, cases[kind], tmp_path / part) for part in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_no_path_patient_or_free_text_of_the_source_leaves(tmp_path, cases, name, kind):
    content = written(name, cases[kind], tmp_path).read_bytes()
    for secret in (*SECRETS, str(tmp_path), str(cases[kind][0].parent)):
        assert secret.encode() not in content
        assert secret.encode("utf-16-le") not in content


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_failure_while_writing_leaves_the_old_file(tmp_path, monkeypatch, cases, name, kind):
    path = written(name, cases[kind], tmp_path)
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("smmil.files.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        written(name, cases[kind], tmp_path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [(path.name, b"old")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_case_without_image_is_written_or_refused_as_the_table_says(tmp_path, cases, name, kind):
    alone = (None, Prediction(**{**vars(cases[kind][1]), "meta": META}))
    if getattr(FORMATS[name], kind) == "optional":
        assert written(name, alone, tmp_path).stat().st_size > 0
    else:
        with pytest.raises(ConfigError, match="image"):
            written(name, alone, tmp_path)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["slide", "scan"])
def test_a_kind_of_case_that_the_table_excludes_is_refused(tmp_path, cases, name, kind):
    if getattr(FORMATS[name], kind) != "never":
        return
    with pytest.raises(SmmilError, match=r"is for (slides|scans)"):
        written(name, cases[kind], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FORMATS)
def test_positions_are_needed_unless_the_table_says_otherwise(tmp_path, cases, name):
    bare = Prediction("bare", [0.5], [1.0, 2.0], meta=META)
    if FORMATS[name].unplaced:
        assert written(name, (None, bare), tmp_path).stat().st_size > 0
    else:
        with pytest.raises(DataError, match="coords"):
            written(name, (cases["slide"][0], bare), tmp_path)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_threshold_is_asked_for_taken_or_refused_as_the_table_says(tmp_path, cases, name, kind):
    need = FORMATS[name].threshold
    if need == "needed":
        with pytest.raises(ConfigError, match="needs --threshold"):
            written(name, cases[kind], tmp_path, threshold=None)
    elif need == "never":
        with pytest.raises(ConfigError, match="no use for it"):
            written(name, cases[kind], tmp_path, threshold=0.5)
    else:
        cut = written(name, cases[kind], tmp_path, threshold=0.5).read_bytes()
        assert cut != written(name, cases[kind], tmp_path, threshold=None).read_bytes()


@pytest.mark.parametrize("kind", ["slide", "scan"])
def test_what_is_offered_for_a_case_can_be_written(tmp_path, cases, kind):
    image, prediction = cases[kind]
    offered = possible_formats(kind, ExportCase(prediction, image))
    assert offered == [name for name, k in CASES if k == kind]
    for name in offered:
        written(name, cases[kind], tmp_path)


def write_hottest(case, path):
    with replacing(path) as temporary:
        temporary.write_text(f"{case.id} {case.score.max():g} above {case.threshold:g}\n")


@pytest.fixture
def registered():
    row = ExportFormat(
        "hottest",
        write_hottest,
        (".txt",),
        "the highest score",
        "any editor",
        slide="optional",
        scan="image",
        threshold="needed",
    )
    yield register_export(row)
    del FORMATS[row.name]


def test_a_format_registered_at_run_time_works_everywhere(tmp_path, cases, registered):
    image, prediction = cases["scan"]
    prediction.save(tmp_path / "scan.npz")
    app = typer.Typer()
    app.command()(export_verb)
    listed = CliRunner().invoke(app, ["--formats"], env={"COLUMNS": "200"})
    assert "hottest" in listed.output
    arguments = [tmp_path / "scan.npz", "--to", "hottest", "--out", tmp_path / "x.txt", "--image", image]
    done = CliRunner().invoke(app, [*map(str, arguments), "--threshold", "0.5"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "x.txt").read_text() == f"scan {prediction.scores.max():g} above 0.5\n"
    row = "| `hottest` | `.txt` | the highest score | any editor | slides, CT with --image | needed |"
    assert row in format_table()


ONE_FILE = """
from smmil.exports.registry import ExportFormat, register_export

def _write_ids(case, path):
    path.write_text(case.id)

register_export(ExportFormat("ids", _write_ids, (".ids",), "the id", "any editor", slide="optional", unplaced=True))
"""


def test_a_new_format_is_one_new_file_beside_the_other_writers(tmp_path, monkeypatch):
    (tmp_path / "ids_only.py").write_text(ONE_FILE)
    monkeypatch.setattr(exports, "__path__", [*exports.__path__, str(tmp_path)])
    before = list(FORMATS)
    try:
        exports._import_writers()
        assert list(FORMATS) == [*before, "ids"]
        export(Prediction("bare", [0.5], [1.0, 2.0], meta=META), "ids", tmp_path / "x.ids")
        assert (tmp_path / "x.ids").read_text() == "bare"
        assert "| `ids` | `.ids` | the id | any editor | slides |" in format_table()
    finally:
        FORMATS.pop("ids", None)
        sys.modules.pop("smmil.exports.ids_only", None)


def test_a_registered_format_is_offered_and_downloaded_in_the_viewer(tmp_path, cases, registered):
    from smmil.exports import possible_formats
    from smmil.viewer.api import _needs_threshold, _write_download

    image, prediction = cases["scan"]
    assert "hottest" in possible_formats("scan", ExportCase(prediction, image))
    assert "hottest" not in possible_formats("scan", ExportCase(prediction, None))
    assert _needs_threshold("hottest")
    done = _write_download(prediction, "m", "hottest", tmp_path, 0.25, image=None, column=None)
    assert done.name == "scan_m.txt"
    assert done.file.read_text().endswith("above 0.25\n")


def test_a_name_is_registered_once_and_has_an_ending(registered):
    with pytest.raises(ConfigError, match="'hottest': is registered already"):
        register_export(registered)
    with pytest.raises(ConfigError, match="file endings"):
        register_export(ExportFormat("other", write_hottest, ("txt",), "", ""))
    assert "other" not in FORMATS
