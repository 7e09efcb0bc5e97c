"""Every reader of the project with a valid sample, and how much damage its format may let pass unnoticed.

A reader that has none makes test_every_reader_is_fuzzed fail. The ceiling is a share of all mutations, somewhat above
what 10,000 of them showed (docs/security.md) and the few of the quick form show; formats that carry a checksum
(`sealed`) let no single flipped bit pass.
"""

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel
import numpy as np
import pydicom
from support import ct_makers, drawings
from support import foreign_files as foreign
from support.drift_cases import together
from support.mutations import BINARY, TEXT, Mutation

from fuzz import samples
from fuzz.samples import CELLS, OLD, X, json_file, kept, put, table, text
from smmil.annotations.labels import read_slice_labels
from smmil.annotations.marks import find_marks
from smmil.annotations.masks import PANDA
from smmil.config import load_config
from smmil.data import Manifest
from smmil.data.foreign_tables import clam_manifest, read_labels, stamp_manifest, torchmil_manifest
from smmil.data.manifest import _CHECKED
from smmil.data.sources import write_source
from smmil.data.splits import load_splits
from smmil.data.tables import read_instance_labels, read_label_shares
from smmil.encoders import load_encoder
from smmil.encoders.fetching import _record
from smmil.encoders.networks import _read_tensors
from smmil.errors import DataError
from smmil.evaluate.calibration import Calibration, calibrate
from smmil.evaluate.drift import fit_drift
from smmil.experiments.datasets import _content_digest
from smmil.experiments.run import FORMAT, _content_checksum, _finished
from smmil.experiments.runner import _state
from smmil.experiments.search import _FORMAT as _SEARCH_FORMAT
from smmil.experiments.search import Trial, _read_trials
from smmil.experiments.study import load_study
from smmil.exports.case import ExportCase
from smmil.exports.dicom_source import _source_header
from smmil.exports.raster import _as_stored
from smmil.files import read_json
from smmil.foreign_weights.convert import import_weights
from smmil.foreign_weights.programs import PROGRAMS
from smmil.formats import read_bag, read_provenance
from smmil.formats.convert import LEDGER, convert
from smmil.formats.inspection import describe
from smmil.images import open_slide, open_volume
from smmil.images.matching import find_case_images, find_features
from smmil.packaging import load_package, write_package
from smmil.packaging.writing import _refuse_occupied
from smmil.predict.cases import _chosen_ids, _own_table
from smmil.predict.drift import read_drift, save_drift
from smmil.predict.embeddings import _stored, _write
from smmil.predict.inference import load_run
from smmil.prediction import Prediction
from smmil.prepare import load_recipe
from smmil.prepare.annotate import InstanceLabels, annotate_case, write_labels
from smmil.prepare.annotate import read_labels as read_sidecar
from smmil.prepare.pipeline import _bind_folder
from smmil.prepare.recipe import Recipe, TissueRecipe
from smmil.prepare.selection import _check_classes, _read_points, _stray_images
from smmil.prepare.table import _cases_from_table
from smmil.prepare.table import find_sources as prepare_sources
from smmil.prepare.tissue import _TissueMask
from smmil.report.numbers import Picture
from smmil.report.sources import find_sources
from smmil.synthetic.slides import _bind_folder as _bind_slides
from smmil.train.folder import RunFolder
from smmil.viewer.inspector import _hot_patches
from smmil.weights import read_weights


def embeddings(folder):
    """Vectors of three cases."""
    rows = [([id_, "case", id_, "test", "weights"], np.arange(4, dtype=np.float32)) for id_ in ("s0", "s1", "s2")]
    _write(folder / "e.parquet", rows)
    return folder / "e.parquet"


@dataclass(frozen=True)
class FuzzReader:
    """A way into the project for a file.

    make     builds a valid sample in an empty folder and gives what is read: a file, or a folder
    read     from there to whatever a user gets
    refers   names of other files that the sample names, where an error may arise
    damage   patterns of the files below the sample's folder to damage; () means what is read
    ceiling  share of mutations that may go unnoticed, and the reason; sealed: of flipped bits none
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    kinds: tuple[Mutation, ...] = BINARY
    ceiling: float = 0.0
    reason: str = "the content is under a checksum"
    sealed: bool = False
    damage: tuple[str, ...] = ()
    refers: tuple[str, ...] = ()

    def files(self, folder: Path, target: Path) -> list[Path]:
        """The files to damage, in a fixed order."""
        if self.damage:
            return sorted({path for pattern in self.damage for path in folder.glob(pattern) if path.is_file()})
        return sorted(p for p in target.rglob("*") if p.is_file()) if target.is_dir() else [target]

    def named(self, folder: Path, target: Path) -> tuple[str, ...]:
        """What an error may name in place of the damaged file: what was read, or a file that it refers to."""
        return (target.name, *self.refers, *([f"{folder}/"] if self.damage or target.is_dir() else []))


PLAIN = "numbers and words without a checksum: another number is as good as the right one"
PIXELS = "pixels without a checksum: another shade is as good as the right one"
MASK = "a few pixels without a checksum; all else in the file must fit the scan"
ARRAYS = "HDF5 and NumPy as other programs write them keep no checksum of arrays"


def bag_of(path: Path) -> Any:
    return read_bag(path), read_provenance(path)


def pixels(path: Path, reader: str | None = None, mpp: float | None = None) -> Any:
    """All ways to look at a slide: everything at full size, a part at half its size, and small."""
    with open_slide(path, mpp=mpp, reader=reader) as slide:
        side = min(256, max(slide.size))
        views = slide.read(0, 0, side, side), slide.read(20, 30, 40, 20), slide.thumbnail(16)
        return slide.size, slide.mpp, slide.bounds, views


def voxels(path: Path) -> Any:
    volume = open_volume(path)
    return volume.shape, volume.affine, volume.positions_mm, volume.notes, volume.hu


PATCHES = drawings.lattice(6, 6, 8)
SCAN = drawings.lattice(3, 1, 8)


MARKS = "id,instance,x,y,label\n" + "".join(f"case,{n},,,{n % 2}\n" for n in range(6)) + "case,,9,17,not lesion\n"


def marked(path: Path) -> Any:
    """Labels by marks of experts."""
    found, strays = find_marks(path, ["case"])
    coords, patch = PATCHES.coords.numpy(), PATCHES.frame.patch
    return {id_: marks.labels(PATCHES.n, coords, patch) for id_, marks in found.items()}, strays


def labelled(kind: str, **options: Any) -> Callable[[Path], Any]:
    """Labels and shares of a bag by an annotation; without the checksum of the file, which is new for any damage."""

    def read(path: Path) -> Any:
        bag = SCAN if kind in ("rsna", "volume") else PATCHES
        made = annotate_case(bag, path, kind=kind, **options)
        return made.labels, made.share, {k: v for k, v in made.about.items() if k != "digest"}

    return read


def over_scan(path: Path) -> Any:
    """Labels and shares of slices by a DICOM mask that lies beside its scan."""
    made = annotate_case(SCAN, path, scan=open_volume(path.parent / "ct"))
    return made.labels, made.share, made.about["notes"]


def shares(folder: Path) -> Path:
    about = {"kind": "asap", "coverage": 0.5}
    labels = InstanceLabels(np.array([1, 0, -1], np.int8), np.array([0.75, 0.25, 0.5]), about)
    write_labels(folder / "case.csv", labels)
    return folder / "case.csv"


def sidecar(folder: Path) -> Path:
    labels = InstanceLabels(np.array([1, 0, -1], np.int8), np.array([0.75, 0.25, 0.5]), {"kind": "asap"})
    write_labels(folder / "case.csv", labels)
    return folder / "case.csv"


def tissue(path: Path) -> Any:
    slide: Any = SimpleNamespace(size=(48, 48), bounds=(0, 0, 48, 48), mpp=0.5, path=path)
    return _TissueMask.find(slide, TissueRecipe(resolution_um=1.0), path)


def manifest_table(path: Path) -> Any:
    """A manifest as training takes it: labels, patients and files of every bag."""
    read = Manifest.read(path)
    read.check_table()
    return read.labels, read.groups, read.splits, [read.path_of(i) for i in read.ids], read.table


def read_points(path: Path) -> Any:
    return _check_classes(path, ["b"]), _read_points(path, "img1", ["b"]), _stray_images(path, ["img1"])


def case_table(folder: Path) -> Path:
    for name in ("a", "b"):
        samples.plain(f"{name}.png")(folder)
    return put(folder / "cases.csv", "id,label,patient,mpp,annotation\na,0,p1,0.5,\nb,1,p2,0.25,b.xml\n")


def clam_study(folder: Path) -> Path:
    put(folder / "t.csv", "case_id,slide_id,label\np1,007,tumor\np1,008,tumor\np2,009,normal\n")
    put(folder / "splits_0.csv", ",train,val,test\n0,007,,009\n1,008,,\n")
    return folder


def read_clam_study(folder: Path) -> Any:
    options = {"split": folder / "splits_0.csv", "classes": ["normal", "tumor"], "folder": folder}
    return clam_manifest(folder / "t.csv", folder / "feats", **options).table


def stamp_study(folder: Path) -> Path:
    put(folder / "clini.csv", "PATIENT,MSI,AGE\nB,1,50\nA,0,60\n")
    put(folder / "slides.csv", "PATIENT,FILENAME\nA,a1.h5\nB,b1.h5\n")
    return folder


def torchmil_study(folder: Path) -> Path:
    for name, label in (("a", 1), ("b", 0)):
        foreign.torchmil_files(folder, X, CELLS * 512, name=name, label=label)
    put(folder / "splits.csv", "bag_name,split\na,train\nb,test\n")
    return folder


def images(folder: Path, *names: str) -> Path:
    for name in names:
        put(folder / name, b"")
    return folder


def camelyon16(folder: Path) -> Path:
    put(folder / "images/testing/reference.csv", "test_001,Tumor,IDC,Macro\ntest_002,Normal,None,None\n")
    return images(folder / "images", *(f"{n}.tif" for n in ("normal_001", "tumor_001", "test_001", "test_002")))


def panda(folder: Path) -> Path:
    grades = [f"00{i},{('radboud', 'karolinska')[i % 2]},{i % 3},0+0\n" for i in range(4)]
    put(folder / "images/train.csv", "image_id,data_provider,isup_grade,gleason_score\n" + "".join(grades))
    put(folder / "split.csv", "id,split\n000,train\n001,train\n002,test\n003,test\n")
    return images(folder / "images", *(f"train_images/00{i}.tiff" for i in range(4)), "train_label_masks/000_mask.tiff")


def crchisto(folder: Path) -> Path:
    rows = [f"img{i},{5 + i},{7 + i},{('epithelial', 'others')[i % 2]}\n" for i in range(4)]
    put(folder / "images/nuclei.csv", "image,x,y,class\n" + "".join(rows))
    put(folder / "split.csv", "id,split\nimg0,train\nimg1,train\nimg2,test\nimg3,test\n")
    return images(folder / "images", *(f"png/img{i}.png" for i in range(4)))


def images_and_table(folder: Path) -> Path:
    put(folder / "split.csv", "id,label,patient,split\n007,0,p1,train\n008,1,p2,test\n")
    return images(folder / "images", "007.tif", "008.tif")


def rsna(folder: Path) -> Path:
    rows = []
    for scan in range(2):
        _, paths = ct_makers.series(folder / f"made/{scan}", ct_makers.voxels(2, 4, 4, scan), seed=scan)
        (folder / "images/stage_2_train").mkdir(parents=True, exist_ok=True)
        for z, path in enumerate(paths):
            name = f"ID_{scan}{z}"
            uids = {"SOPInstanceUID": name, "StudyInstanceUID": f"ID_study{scan}", "PatientID": f"p{scan}"}
            dataset = pydicom.dcmread(path)
            with warnings.catch_warnings(action="ignore"):  # RSNA's identifiers are not what the standard wants
                for tag, uid in uids.items():
                    setattr(dataset, tag, uid)
                dataset.file_meta.MediaStorageSOPInstanceUID = name
                dataset.save_as(folder / f"images/stage_2_train/{name}.dcm")
            rows += [f"{name}_any,{scan}", f"{name}_epidural,{scan}"]
    put(folder / "images/stage_2_train.csv", "ID,Label\n" + "\n".join(rows) + "\n")
    put(folder / "split.csv", "id,split\nID_study0,train\nID_study1,test\n")
    read_source("rsna_ich")(folder / "images")  # writes the index of headers
    return folder / "images"


def read_source(name: str) -> Callable[[Path], Any]:
    """The table that `smmil source` writes for a data set; the split file lies beside its folder."""
    options: Any = {"camelyon16": lambda _: {"allow_missing": True}, "folder": lambda p: {"table": p}}
    choose = options.get(name, lambda p: {"split": p})
    return lambda root: write_source(name, root, root.parent / "out", **choose(root.parent / "split.csv")).table


def read_patches(target: Path) -> Any:
    """From a table of patches; the tables of cases lie beside it."""
    root = target.parents[1]
    return write_source("patches", root / "images/patches.csv", root / "out", split=root / "split.csv").table


def read_rsna(root: Path) -> Any:
    """With the headers read anew."""
    (root.parent / "out/dicom_index.csv").unlink(missing_ok=True)
    return read_source("rsna_ich")(root)


def run_content(run: Path) -> Any:
    """A run folder through every door: resuming, predicting, packaging, reporting."""
    model, config = load_run(run)
    made = write_package(run, run.parent / "package", licence="MIT", force=True)
    ids = _chosen_ids(run, _own_table(config, run), "test")
    folder = RunFolder(run)
    folder.mark_finished(folder.finished())  # type: ignore[arg-type]
    return model, config, read_json(made.folder / "config.json"), made.notes, ids, find_sources([run])


def result_folder(folder: Path) -> Path:
    row = {"format": FORMAT, "row": {"epoch": 3, "inst_auroc": 0.75, "weights": "ab"}, "files": {}}
    json_file("result.json", {**row, "seal": _content_checksum(row)})(folder)
    return folder


def read_result(folder: Path) -> Any:
    found = _finished(folder)
    if found is None:
        raise DataError(f"{folder}/result.json: not believed, the run is brought to its end again")
    return found


def failure_folder(folder: Path) -> Path:
    json_file("failure.json", {"reason": "case s1: no such file", "kind": "DataError"})(folder)
    return folder


def search_trials(folder: Path) -> Path:
    trials = [asdict(Trial(n, {"training.lr": 0.01 * n}, "done", 0.5, 0.7, [3], "")) for n in range(3)]
    return json_file("trials.json", {"format": _SEARCH_FORMAT, "search": "digest", "trials": trials})(folder)


def digest_cache(folder: Path) -> Path:
    shutil.copy(OLD / "manifest.csv", folder)
    shutil.copytree(OLD / "bags", folder / "bags")
    shutil.copytree(OLD / "labels", folder / "labels")
    read_cache(folder / "digests.json")
    return folder / "digests.json"


def read_cache(path: Path) -> Any:
    return _content_digest(Manifest.read(path.parent / "manifest.csv"), path)


def checked_bags(folder: Path) -> Path:
    digest_cache(folder)
    manifest = Manifest.read(folder / "manifest.csv")
    manifest._remember({id_: [["marks of another day"], 4, False] for id_ in manifest.ids})
    return folder / _CHECKED


def read_checked(path: Path) -> Any:
    return Manifest.read(path.parent / "manifest.csv").check_files()


def converted(folder: Path) -> Path:
    samples.native(folder)
    read_converted(folder / "out" / LEDGER)
    return folder / "out" / LEDGER


def read_converted(path: Path) -> Any:
    return convert(path.parents[1] / "case.h5", to="torchmil", out=path.parent).failed


def prepared(folder: Path) -> Path:
    shutil.copytree(OLD / "prepared", folder / "out")
    (folder / "out/recipe.json").unlink()
    read_prepared(folder / "out")
    return folder / "out"


def read_prepared(out: Path) -> Any:
    plan: Any = SimpleNamespace(out=out, encoder="e@1", recipe=Recipe())
    return _bind_folder(plan, overwrite=False)


def stained(folder: Path) -> Path:
    _bind_slides(folder, {"seed": 1, "n": 4})
    return folder


def hot(path: Path) -> Any:
    case = Prediction("case", [0.9], X[:, 0], coords=None if path.suffix == ".npy" else CELLS * 512)
    return _hot_patches(path, case, X[:, 0])


def occupied(folder: Path) -> Any:
    return _refuse_occupied(folder, read_json(OLD / "packages/sm_ap/config.json")["run"], force=True)


def hub_encoder(folder: Path) -> Any:
    made = load_encoder("hf-hub:lab/net", weights=folder, device="cpu")
    return made.id, made.dim, made.pixels, made.mean, made.std, made.licence, made.network


def header(path: Path) -> Any:
    case = ExportCase(Prediction("case", [0.9], X[:, 0]), path)
    return [str(element) for element in _source_header(case, path)]


def stored_axes(path: Path) -> Any:
    volume = open_volume(path)
    image = nibabel.Nifti1Image(np.zeros(volume.shape[::-1], np.float32), volume.affine)
    return _as_stored(image, volume, path).affine


def first_slice(folder: Path) -> Path:
    return min(samples.ct_series()(folder).iterdir())


def drift_summary(folder: Path) -> Path:
    save_drift(fit_drift(*together(20)), folder / "drift.safetensors")
    return folder / "drift.safetensors"


def calibration(folder: Path) -> Path:
    cases = [Prediction(f"c{i}", [i / 12], [i / 3, 1 - i], y=i % 2, y_inst=[1, 0]) for i in range(12)]
    calibrate(cases, probabilities="isotonic").save(folder / "calibration.json")
    return folder / "calibration.json"


def whole_package(folder: Path) -> Path:
    return kept("packages/sm_ap")(folder)


CONFIG = "data:\n  manifest: m.csv\n  folds: 2\nmodel:\n  name: sm_ap\n  options:\n    dim: 8\ntraining:\n  lr: 1e-4\n"
FETCHED = '{"file": "model.safetensors", "revision": "0123abcd", "sha256": "89ef", "bytes": 4}'
RECIPE = "kind: slide\ntile_um: 128\noverlap_um: 0\ntissue:\n  method: otsu\n  share: 0.5\nencoder_pixels: 64\n"
STUDY = """name: small
datasets:
- {name: one, manifest: m.csv, folds: 2}
variants:
- {name: ABMIL, model: abmil, options: {dim: 8}}
- {name: SmAP, model: sm_ap, family: local}
learning_rates: [1e-3, 1e-4]
training: {epochs: 2}
reference: ABMIL
"""
POINTS = "image,x,y,class\n" + "".join(f"img{i % 2},{3 * i},{5 * i},{'ab'[i % 2]}\n" for i in range(8))

READERS: tuple[FuzzReader, ...] = (
    # feature files
    FuzzReader("format:native", samples.native, lambda p: (*bag_of(p), describe(p)), sealed=True),
    FuzzReader("format:native facts", samples.native_with_facts, lambda p: (*bag_of(p), describe(p)), sealed=True),
    FuzzReader("format:trident", lambda f: foreign.trident_file(f, X, CELLS * 512, 512), bag_of, BINARY, 0.15, ARRAYS),
    FuzzReader("format:trident in chunks", lambda f: foreign.trident_file(
                   f, X, CELLS * 512, 512, chunks=(4, 2), maxshape=(None, 4), compression="gzip", shuffle=True),
               bag_of, BINARY, 0.1, ARRAYS),
    FuzzReader("format:clam", lambda f: foreign.clam_files(f, X, CELLS * 512), bag_of, BINARY, 0.3, ARRAYS,
               damage=("h5_files/*", "patches/*")),
    FuzzReader("format:clam_pt", samples.clam_pt, bag_of, BINARY, 0.01, "zip keeps a checksum of each part only",
               sealed=True, damage=("pt_files/*",)),
    FuzzReader("format:stamp", lambda f: foreign.stamp_file(f, X, CELLS * 256.0, **foreign.STAMP), bag_of, BINARY, 0.25,
               ARRAYS),
    FuzzReader("format:torchmil", lambda f: foreign.torchmil_files(f, X, CELLS * 512), bag_of, BINARY, 0.65, ARRAYS,
               damage=("**/*.npy",)),
    FuzzReader("format:lazyslide", lambda f: foreign.lazyslide_store(f, X, CELLS * 512), bag_of, BINARY, 0.25,
               "zarr as it is usually written has no checksum of chunks"),
    FuzzReader("format:wsinfer", lambda f: foreign.wsinfer_csv(f, X, CELLS * 512, width=512, height=512), bag_of, TEXT,
               0.3, PLAIN),
    # slides, images, scans
    FuzzReader("slide:openslide", samples.pyramid("aperio", "jpeg"), pixels, BINARY, 0.55, PIXELS),
    FuzzReader("slide:openslide scn", samples.pyramid("leica", "none"), pixels, BINARY, 0.85, PIXELS),
    FuzzReader("slide:tifffile", samples.pyramid("generic", "none"), lambda p: pixels(p, "tifffile"), BINARY, 0.85,
               PIXELS),
    FuzzReader("slide:tifffile jpeg", samples.pyramid("aperio", "jpeg"), lambda p: pixels(p, "tifffile"), BINARY, 0.55,
               PIXELS),
    FuzzReader("slide:openslide tiff", samples.pyramid("generic", "jpeg"), pixels, BINARY, 0.55, PIXELS),
    FuzzReader("slide:openslide qptiff", samples.qptiff, pixels, BINARY, 0.85, PIXELS),
    FuzzReader("slide:dicom", samples.pyramid("dicom", "jpeg"), pixels, BINARY, 0.6, PIXELS),
    FuzzReader("slide:pillow", samples.plain("a.png"), lambda p: pixels(p, mpp=0.5), sealed=True),
    FuzzReader("slide:pillow jpeg", samples.plain("a.jpg"), lambda p: pixels(p, mpp=0.5), BINARY, 0.4, PIXELS),
    FuzzReader("slide:pillow tiff", samples.plain("a.tiff"), lambda p: pixels(p, "pillow", 0.5), BINARY, 1, PIXELS),
    FuzzReader("slide:pillow bmp", samples.plain("a.bmp"), lambda p: pixels(p, mpp=0.5), BINARY, 1, PIXELS),
    FuzzReader("slide:pillow webp", samples.plain("a.webp", lossless=True), lambda p: pixels(p, mpp=0.5), BINARY, 0.7,
               PIXELS),
    FuzzReader("slide:pillow ppm", samples.plain("a.ppm"), lambda p: pixels(p, mpp=0.5), BINARY, 1, PIXELS),
    FuzzReader("slide:pillow patches", samples.patches, lambda p: pixels(p, mpp=0.5), TEXT, 0.05, PLAIN,
               damage=("slides/*.patches.csv",)),
    FuzzReader("scan:pictures", samples.picture_stack, voxels, sealed=True),
    FuzzReader("scan:dicom", samples.ct_series(), voxels, BINARY, 0.4, PIXELS),
    FuzzReader("scan:dicom rle", samples.ct_series("rle"), voxels, BINARY, 0.55, PIXELS),
    FuzzReader("scan:dicom jpeg2000", samples.ct_series("jpeg2000"), voxels, BINARY, 0.6, PIXELS),
    FuzzReader("scan:dicom jpeg-lossless", samples.ct_series("jpeg-lossless-sv1"), voxels, BINARY, 0.6, PIXELS),
    FuzzReader("scan:dicom jpeg-ls", samples.ct_series("jpeg-ls"), voxels, BINARY, 0.3, PIXELS),
    FuzzReader("scan:dicom jpeg 12 bit", samples.ct_series("jpeg-extended"), voxels, BINARY, 0.6, PIXELS),
    FuzzReader("scan:dicom 12 bit wrapped", samples.wrapped_series, voxels, BINARY, 0.4, PIXELS),
    FuzzReader("scan:dicom multi-frame", samples.multi_frame(), voxels, BINARY, 0.8, PIXELS),
    FuzzReader("scan:dicom multi-frame jpeg-lossless", samples.multi_frame("jpeg-lossless"), voxels, BINARY, 0.6,
               PIXELS),
    FuzzReader("scan:nifti", samples.nifti("a.nii"), voxels, BINARY, 0.75, PIXELS),
    FuzzReader("scan:nifti gz", samples.nifti("a.nii.gz"), voxels, sealed=True),
    FuzzReader("export:dicom header", first_slice, header, BINARY, 0.3, PLAIN),
    FuzzReader("export:nifti axes", samples.nifti("a.nii.gz"), stored_axes, sealed=True),
    FuzzReader("report:picture", samples.plain("a.png"), lambda p: Picture(p, "", "").source, BINARY, 0.01,
               "what follows the end of the picture is passed on with it", sealed=True),
    # annotations and masks
    FuzzReader("annotation:asap", samples.asap, labelled("asap"), TEXT, 0.1, PLAIN),
    FuzzReader("annotation:geojson", samples.geojson("a.geojson"), labelled("geojson"), TEXT, 0.05, PLAIN),
    FuzzReader("annotation:boxes", samples.boxes, labelled("auto"), TEXT, 0.15, PLAIN),
    FuzzReader("annotation:label-image", samples.mask("a.png", 1), labelled("label-image"), sealed=True),
    FuzzReader("annotation:label-image tiff", samples.mask("a.tif", 1), labelled("label-image"), BINARY, 0.45, PIXELS),
    FuzzReader("annotation:panda-radboud", samples.panda_mask, labelled("panda-radboud"), BINARY, 0.02, PIXELS),
    FuzzReader("annotation:panda-karolinska", samples.panda_mask, labelled("panda-karolinska"), BINARY, 0.4, PIXELS),
    FuzzReader("annotation:volume", samples.nifti("a.nii.gz", labels=True),
               lambda p: annotate_case(SCAN, p, kind="volume").labels, sealed=True),
    *(FuzzReader(f"annotation:dicom-seg {kind}", samples.dicom_mask(kind), over_scan, BINARY, 0.05, MASK)
      for kind in ("BINARY", "FRACTIONAL", "LABELMAP")),
    FuzzReader("annotation:rtstruct", samples.dicom_mask("rtstruct"), over_scan, BINARY, 0.15, PLAIN),
    FuzzReader("annotation:rsna", samples.slice_labels, labelled("rsna", slices=["ID_0", "ID_1", "ID_2"]), TEXT, 0.02,
               PLAIN),
    FuzzReader("marks:drawing", samples.geojson("case.geojson"), marked, TEXT, 0.05, PLAIN),
    FuzzReader("marks:table", text("m.csv", MARKS), marked, TEXT, 0.45, PLAIN),
    FuzzReader("labels:slices", samples.slice_labels, read_slice_labels, TEXT, 0.05, PLAIN),
    FuzzReader("labels:sidecar", sidecar, read_sidecar, TEXT, 0.25, PLAIN),
    FuzzReader("labels:shares", shares, read_label_shares, TEXT, 0.3, PLAIN),
    FuzzReader("labels:npy", samples.npy("a.npy", np.arange(40) % 2), read_instance_labels, BINARY, 0.55, ARRAYS),
    FuzzReader("labels:csv", text("a.csv", "label\n" + "0\n1\n-1\n" * 9), read_instance_labels, TEXT, 0.45, PLAIN),
    FuzzReader("tissue:image", samples.mask("a.png", 255), tissue, sealed=True),
    FuzzReader("tissue:outlines", samples.geojson("a.geojson", None), tissue, TEXT, 0.02, PLAIN),
    # tables
    FuzzReader("table:manifest", table("m.csv"), manifest_table, TEXT, 0.55, PLAIN),
    FuzzReader("table:manifest parquet", table("m.parquet"), manifest_table, sealed=True),
    FuzzReader("table:embeddings", embeddings, lambda p: _stored(p, "weights", "case", {"s0", "s1"}), sealed=True),
    FuzzReader("table:labels", table("m.csv", samples.LABELS), read_labels, TEXT, 0.65, PLAIN),
    FuzzReader("table:labels xlsx", table("m.xlsx", samples.LABELS), read_labels, BINARY, 0.01,
               "zip keeps a checksum of each part only", sealed=True),
    FuzzReader("table:cases", case_table, lambda p: _cases_from_table(p, prepare_sources([p.parent])), TEXT, 0.7,
               PLAIN),
    FuzzReader("table:points", text("p.csv", POINTS), read_points, TEXT, 0.5, PLAIN),
    FuzzReader("table:images", text("i.csv", "id,slide,mpp\na,a.svs,0.5\nb,b.svs,0.25\n"),
               lambda p: find_case_images(p, ["a", "b"]), TEXT, 0.6, PLAIN),
    FuzzReader("table:bags", table("m.csv"), lambda p: find_features(p, ["s0", "s1", "s2"]), TEXT, 0.3, PLAIN),
    FuzzReader("table:bags parquet", table("m.parquet"), lambda p: find_features(p, ["s0", "s1", "s2"]), sealed=True),
    FuzzReader("table:clam", clam_study, read_clam_study, TEXT, 0.25, PLAIN),
    FuzzReader("table:stamp", stamp_study,
               lambda f: stamp_manifest(f / "clini.csv", f / "slides.csv", f, label="MSI", folder=f).table, TEXT, 0.3,
               PLAIN),
    FuzzReader("table:torchmil", torchmil_study, lambda f: torchmil_manifest(f, "UNI", folder=f)[0].table, TEXT, 0.3,
               PLAIN, damage=("splits.csv", "**/labels/*.npy")),
    FuzzReader("table:splits", samples.splits, load_splits, TEXT, 0.3, PLAIN),
    FuzzReader("source:camelyon16", camelyon16, read_source("camelyon16"), TEXT, 0.3, PLAIN,
               damage=("images/testing/reference.csv",)),
    FuzzReader("source:panda", panda, read_source("panda"), TEXT, 0.05, PLAIN,
               damage=("images/train.csv", "split.csv")),
    FuzzReader("source:rsna_ich", rsna, read_rsna, (*TEXT, *BINARY), 0.05, PLAIN,
               damage=("images/stage_2_train.csv", "split.csv", "images/stage_2_train/*.dcm")),
    FuzzReader("source:rsna_ich index", rsna, read_source("rsna_ich"), TEXT, 0.05, PLAIN,
               damage=("out/dicom_index.csv",)),
    FuzzReader("source:crchisto", crchisto, read_source("crchisto"), TEXT, 0.05, PLAIN,
               damage=("images/nuclei.csv", "split.csv")),
    FuzzReader("source:patches", samples.patches, read_patches, TEXT, 0.3, PLAIN, damage=("images/patches.csv",)),
    FuzzReader("source:folder", images_and_table, read_source("folder"), TEXT, 0.4, PLAIN, damage=("split.csv",)),
    # settings
    FuzzReader("settings:config", text("c.yaml", CONFIG), load_config, TEXT, 0.15, PLAIN),
    FuzzReader("settings:recipe", text("r.yaml", RECIPE), load_recipe, TEXT, 0.15, PLAIN),
    FuzzReader("settings:study", text("s.yaml", STUDY), load_study, TEXT, 0.2, PLAIN),
    # predictions, weights, runs, packages
    FuzzReader("prediction", samples.prediction, Prediction.load, sealed=True),
    FuzzReader("calibration", calibration, Calibration.load, TEXT, sealed=True),
    FuzzReader("drift", drift_summary, read_drift, sealed=True),
    FuzzReader("weights:own", samples.weights, read_weights, sealed=True),
    FuzzReader("weights:encoder pth", samples.tensors("w.pth"), _read_tensors, BINARY, 0.01,
               "zip keeps a checksum of each part only", sealed=True),
    FuzzReader("weights:encoder safetensors", samples.tensors("w.safetensors"), _read_tensors, BINARY, 0.3,
               "safetensors of other programs have no checksum"),
    FuzzReader("weights:encoder hub", samples.hub_model, hub_encoder, TEXT, 0.05, PLAIN, damage=("config.json",)),
    FuzzReader("weights:fetched", text("fetched.json", FETCHED), lambda p: _record(p.parent), TEXT, 0.3, PLAIN),
    *(FuzzReader(f"weights:{name}", samples.published(name), lambda p, n=name: _imported(p, n), BINARY, 0.01,
                 "zip keeps a checksum of each part only", True) for name in PROGRAMS),
    FuzzReader("run:texts", samples.run_folder, run_content, TEXT, 0.25, PLAIN,
               damage=("run/config.yaml", "run/run.json", "run/split.json"), refers=("manifest.csv",)),
    FuzzReader("run:checkpoints", samples.run_folder, run_content, sealed=True,
               damage=("run/checkpoints/best.safetensors", "run/checkpoints/last.safetensors")),
    FuzzReader("package", whole_package, load_package, sealed=True),
    FuzzReader("package:occupied", whole_package, occupied, TEXT, 0.01, "only asks whose package lies there",
               damage=("sm_ap/config.json",)),
    # what is kept between two calls
    FuzzReader("kept:result", result_folder, read_result, TEXT, sealed=True),
    FuzzReader("kept:failure", failure_folder, _state, TEXT, 0.5, "shown to the user as it is, never computed with"),
    FuzzReader("kept:search", search_trials, lambda p: _read_trials(p, "digest"), TEXT, 0.5, PLAIN),
    FuzzReader("kept:digests", digest_cache, read_cache, TEXT, 0.25, PLAIN),
    FuzzReader("kept:checked bags", checked_bags, read_checked, TEXT, 0.0, "what does not fit is checked again"),
    FuzzReader("kept:conversion", converted, read_converted, TEXT, 0.01, PLAIN),
    FuzzReader("kept:recipe", prepared, read_prepared, TEXT, 0.0, "compared as a whole", damage=("out/recipe.json",)),
    FuzzReader("kept:synthetic slides", stained, lambda p: _bind_slides(p, {"seed": 1, "n": 4}), TEXT, 0.0,
               "compared as a whole"),
    FuzzReader("viewer:features", samples.native, hot, BINARY, 0.1, ARRAYS),
    FuzzReader("viewer:features npy", samples.npy("a.npy", X), hot, BINARY, 0.6, ARRAYS),
)  # fmt: skip


def _imported(path: Path, program: str) -> Any:
    made = import_weights(path, program)
    return made.model, made.shape, made.dropped


def names(kind: str, readers: Sequence[FuzzReader] = READERS) -> set[str]:
    """Names after the colon of the readers of a kind, without what tells variants apart."""
    return {r.name.partition(":")[2].split(" ")[0] for r in readers if r.name.startswith(f"{kind}:")}


assert set(PANDA) <= names("annotation")
