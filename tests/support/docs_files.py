"""Small files under the names that README and docs use: what a reader of a page has before the first command.

Every maker writes into the working folder.
"""

from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import torch
from PIL import Image

from smmil.config import load_config
from smmil.data.sources.camelyon16 import EXPECTED
from smmil.frame import Frame
from smmil.packaging.writing import write_package
from smmil.predict.cases import predict_run
from smmil.prediction import Prediction
from smmil.prepare import load_recipe, plan
from smmil.prepare import run as prepare_all
from smmil.synthetic import planted_slides, synthetic_slides, write_planted, write_synthetic
from smmil.synthetic.ct import synthetic_ct_scans
from smmil.train.run import train
from support import foreign_files as foreign
from support import foreign_programs as programs
from support import prepare_makers as makers
from support.patients import write_patients
from support.published_bags import published_bags

# drift takes 20 patients of training and validation or more, calibrate 9 positive ones that were not seen
PARTS = ("train",) * 14 + ("val",) * 6 + ("test",) * 18
QUICK = ("training.epochs=2", "training.threads=1", "training.warmup_epochs=1")


def cases(n=len(PARTS)):
    """Ids, labels and parts of the cases: every other one is positive."""
    ids = [f"slide_{i:04d}" for i in range(1, n + 1)]
    return pd.DataFrame({"id": ids, "label": [i % 2 for i in range(n)], "split": PARTS[:n]})


def tissue(seed, lesion=False, side=512):
    """Stained tissue all over; a lesion fills the first quarter."""
    rng = np.random.default_rng(seed)
    image = np.array((205, 140, 175)) + rng.normal(0, 14, (side, side, 1)) + rng.normal(0, 5, (side, side, 3))
    if lesion:
        image[: side // 2, : side // 2] -= (90, 80, 30)
    return np.clip(image, 0, 255).astype(np.uint8)


def planted(kind):
    """Slides with a planted target in the folder study."""
    write_planted("study", planted_slides(60, kind, size=(8, 14), dim=6))


def slides(folder="slides", n=len(PARTS)):
    """Slides of four tiles, labels.csv with boxes around lesions, and one slide that came later."""
    table = cases(n)
    Path("annotations").mkdir(exist_ok=True)
    for i, row in enumerate(table.itertuples()):
        makers.write_slide(Path(folder) / f"{row.id}.svs", tissue(i, row.label), mpp=1.0, tile=256, factors=(1, 4))
        boxes = "0,0,256,256\n" * row.label
        Path("annotations", f"{row.id}.csv").write_text(f"x,y,width,height\n{boxes}")
    table["annotation"] = [f"annotations/{id_}.csv" for id_ in table["id"]]
    table.to_csv("labels.csv", index=False)
    for name in ("new.svs", "slide.svs"):
        makers.write_slide(Path(name), tissue(99, True), mpp=1.0, tile=256, factors=(1, 4))
    Image.fromarray(tissue(98)).save("liked.png")


def bags(*manifests, n=len(PARTS)):
    """Bags of features below bags/, and manifests of them."""
    drawn = synthetic_slides(n, seed=1, size=(20, 30), dim=12, lesion=(0.1, 0.3))
    write_synthetic("bags", drawn)
    table = pd.read_csv("bags/manifest.csv").assign(split=PARTS[:n], group=lambda rows: rows["id"])
    table.to_csv("bags/manifest.csv", index=False)
    table[["id", "label"]].to_csv("labels.csv", index=False)
    for name in manifests:
        to, up = Path(name), "../" * (len(Path(name).parts) - 1)
        to.parent.mkdir(parents=True, exist_ok=True)
        table.assign(path=up + "bags/" + table["path"], instance_labels=up + "bags/" + table["instance_labels"]).to_csv(
            to, index=False
        )


def patients():
    """Patients with several slides, their age and sex, in manifest.csv."""
    write_patients(Path(), 40, seed=5)


def native():
    """Three bags and their manifest below study/."""
    write_synthetic("study", synthetic_slides(3, dim=6))


def run(folder, model="sm_ap", manifest="bags/manifest.csv", seed=0):
    """The folder of a training of two epochs."""
    chosen = (f"data.manifest={manifest}", f"model.name={model}", f"training.seed={seed}", *QUICK)
    train(load_config(None, list(chosen)), folder)


def predictions(folder, run_folder, part="test"):
    predict_run(run_folder, out=folder, part=part)


def first():
    """A run called runs/first, and bags that came later."""
    bags("new.csv", "other.csv", "other_hospital.csv", "manifest.csv")
    run("runs/first")


def two_models(*places):
    """Predictions of ABMIL and SmAP, in folders of their names below each place (folder, part)."""
    bags()
    for model in ("abmil", "sm_ap"):
        run(f"runs/{model}", model)
        for folder, part in places:
            predictions(f"{folder}/{model}", f"runs/{model}", part)


def features():
    """The same cases as somebody else's features: id, label, part, features and cells of four patches."""
    cells = np.argwhere(np.ones((2, 2)))
    for i, row in enumerate(cases().itertuples()):
        yield row.id, row.label, row.split, foreign.features(len(cells), 6, seed=i), cells


def clam(folder):
    """CLAM's files, and its tables: dataset.csv, splits_0.csv."""
    parts, rows = {"train": [], "val": [], "test": []}, ["case_id,slide_id,label"]
    for id_, label, part, x, cells in features():
        foreign.clam_files(Path(folder), x, cells * 256, name=id_)
        rows.append(f"p_{id_},{id_},{('normal', 'tumor')[label]}")
        parts[part].append(id_)
    Path("dataset.csv").write_text("\n".join(rows) + "\n")
    pd.DataFrame({part: pd.Series(ids) for part, ids in parts.items()}).to_csv("splits_0.csv")


def stamp(folder):
    """STAMP's files, its tables clini.csv and slides.csv, and a manifest of another cohort."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    clini, table, other = ["PATIENT,MSI"], ["PATIENT,FILENAME"], ["id,path,label"]
    for id_, label, _, x, cells in features():
        path = foreign.stamp_file(Path("theirs"), x, cells * 256.0, name=id_, **foreign.STAMP)
        path = path.rename(Path(folder) / path.name)
        clini.append(f"p_{id_},{('MSS', 'MSI-H')[label]}")
        table.append(f"p_{id_},{path.name}")
        other.append(f"{id_},{path},{label}")
    for name, rows in (("clini", clini), ("slides", table), ("other", other)):
        Path(f"{name}.csv").write_text("\n".join(rows) + "\n")


def torchmil(folder):
    rows = ["bag_name,split"]
    for id_, label, part, x, cells in features():
        foreign.torchmil_files(Path(folder), x, cells, name=id_, label=label)
        rows.append(f"{id_},{part}")
    Path(folder, "splits.csv").write_text("\n".join(rows) + "\n")


def published():
    """The three sets of the paper's group, with a few bags."""
    encoders = {"Camelyon16_MIL": "resnet50_bt", "PANDA_MIL": "resnet18", "RSNA_ICH_MIL": "resnet18"}
    for name, encoder in encoders.items():
        published_bags(Path(name), name, (20, 10), (encoder,))


def masked():
    """Images and volumes with masks of the same names; every other case has a lesion."""
    rows = ["id,label"]
    for folder in ("images", "masks", "volumes", "volume_masks"):
        Path(folder).mkdir()
    for i in range(6):
        lesion = np.zeros((512, 512), np.uint8)
        lesion[:256, :256] = 255 * (i % 2)
        Image.fromarray(tissue(i, bool(i % 2))).save(f"images/c{i}.png")
        Image.fromarray(lesion).save(f"masks/c{i}.png")
        heads = np.random.default_rng(i).integers(-100, 100, (64, 64, 8)).astype(np.int16)
        for folder, array in (("volumes", heads), ("volume_masks", (heads > 0).astype(np.uint8) * (i % 2))):
            nibabel.save(nibabel.Nifti1Image(array, np.diag([-0.5, -0.5, 5, 1])), f"{folder}/c{i}.nii.gz")
        rows.append(f"c{i},{i % 2}")
    for table in ("image_labels.csv", "volume_labels.csv"):
        Path(table).write_text("\n".join(rows) + "\n")


def trident(folder):
    for id_, _, _, x, cells in features():
        foreign.trident_file(Path(folder), x, cells * 512, 512, name=id_)
    cases()[["id", "label"]].to_csv("labels.csv", index=False)


def lazyslide(folder):
    for id_, _, _, x, cells in features():
        foreign.lazyslide_store(Path(folder), x, cells * 512, name=id_)
    foreign.lazyslide_store(Path("."), x, cells * 512, name="slide")
    cases()[["id", "label"]].to_csv("labels.csv", index=False)


def sampled(folder):
    """Features of patches that lie apart."""
    for i in range(2):
        places = np.random.default_rng(i).integers(0, 40_000, (40, 2))
        foreign.trident_file(Path(folder), foreign.features(40, 3), places, 256, name=f"s{i}")


def scans(n=8, folder="."):
    """CT series below scans/, and labels.csv: id, label."""
    table = synthetic_ct_scans(folder, n, slices=(12, 13), size=64)
    table[["id", "label"]].to_csv(Path(folder, "labels.csv"), index=False)


def patch_files(folder="IDC_regular_ps50_idx5"):
    """IDC's layout, and a table of the same patches."""
    rows = ["path,x,y,patient,label"]
    for case in range(8):
        for x in range(1, 102, 50):
            for y in range(1, 102, 50):
                label = int(case % 2 and x == 1)
                file = Path(folder, str(case), str(label), f"{case}_idx5_x{x}_y{y}_class{label}.png")
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(tissue(case, label, 50)).save(file)
                rows.append(f"{file},{x},{y},p{case},{label}")
    Path("patches.csv").write_text("\n".join(rows) + "\n")


def camelyon16(folder):
    """All files of CAMELYON16 by name, empty."""
    for kind, count in EXPECTED.items():
        for number in range(1, count + 1):
            ends = [f"{kind}/{kind}_{number:03d}.tif"]
            ends += [f"xml/{kind}_{number:03d}.xml"] * (kind == "tumor" or (kind == "test" and number % 2))
            for end in ends:
                Path(folder, end).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, end).touch()
    lines = [f"test_{n:03d},{'Tumor' if n % 2 else 'Normal'},x,y" for n in range(1, 131)]
    Path(folder, "reference.csv").write_text("\n".join(lines))


def crchisto(folder="crchisto"):
    Path(folder, "png").mkdir(parents=True)
    rows = ["image,x,y,class"]
    for i in range(12):
        Image.fromarray(tissue(i, side=120)).save(Path(folder, "png", f"img{i}.png"))
        rows += [f"img{i},{x},{y},{'epithelial' if i % 2 else 'others'}" for x in (20, 60, 90) for y in (20, 80)]
    Path(folder, "nuclei.csv").write_text("\n".join(rows) + "\n")


def checkpoints():
    """Weights as the programs of CLAM and TransMIL save them, and bags of the right width."""
    torch.save(dict(programs.clam("single")[0]), "s_0_checkpoint.pt")
    torch.save(dict(programs.transmil()[0]), "weights.pt")
    write_synthetic("bags", synthetic_slides(6, seed=1, size=(20, 30), dim=programs.DIM))
    table = pd.read_csv("bags/manifest.csv")
    keep = {column: "bags/" + table[column] for column in ("path", "instance_labels")}
    table.assign(**keep).to_csv("bags.csv", index=False)


def exported():
    """A slide and a scan with predictions, and a table of both images."""
    scans(1)
    Path("scans/ct_0000").rename("scans/ct_3")
    makers.write_slide(Path("slide_7.svs"), tissue(7, True), tile=256, factors=(1, 4))
    coords = np.argwhere(np.ones((4, 4))) * 128
    frame = Frame((128, 128), (0.5, 0.5), "um")
    slide = Prediction("slide_7", [0.9], np.arange(16.0) / 4, coords=coords, frame=frame, y=1)
    n = len(list(Path("scans/ct_3").iterdir()))
    scan = Prediction("ct_3", [0.9], np.arange(float(n)), coords=np.arange(n)[:, None], frame=Frame((1,), (5.0,), "mm"))
    for case in (slide, scan):
        Path("predictions").mkdir(exist_ok=True)
        case.save(f"predictions/{case.id}.npz")
    replace(scan, uncertainty=np.ones(n)).save("case.npz")
    Path("scan").symlink_to("scans/ct_3")
    Path("slides.csv").write_text("id,slide\nslide_7,slide_7.svs\nct_3,scans/ct_3\n")
    Path("labels.csv").unlink()


def prepared(images, labels, out):
    """Bags of images, by the encoder that comes along."""
    assert not prepare_all(plan([images], out, load_recipe(None, {}), labels=labels), executor="serial").failures


def packaged():
    """A run on slides with its predictions, and a package of a model for scans."""
    slides()
    prepared("slides", "labels.csv", "study")
    run("runs/first", manifest="study/manifest.csv")
    predictions("predictions", "runs/first")
    scans(n=12, folder="ct")
    prepared("ct/scans", "ct/labels.csv", "ct/study")
    run("runs/head_ct", manifest="ct/study/manifest.csv")
    write_package("runs/head_ct", "packages/head_ct")
    Path("scans").symlink_to("ct/scans")


def seeds():
    """Bags, and trainings of the same split with three seeds and of CLAM."""
    bags("manifest.csv")
    for seed in range(3):
        run(f"runs/seed{seed}", seed=seed)
    run("runs/clam", "clam")


def everything():
    """One of each kind of files a newcomer may have; slides come last, and the tables are theirs."""
    patch_files("patches")
    clam("features")
    scans(12, "ct")
    Path("scans").symlink_to("ct/scans")
    Path("ct/labels.csv").rename("scans.csv")
    slides()


def expert():
    """Marks in the table that smmil suggest wrote: every other patch is a lesion."""
    table = pd.read_csv("marks_wanted/marks.csv", dtype={"label": object})
    table["label"] = [("lesion", "not lesion")[i % 2] for i in range(len(table))]
    table.to_csv("marks_wanted/marks.csv", index=False)
