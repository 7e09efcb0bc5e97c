"""Cases for the viewer's browser tests: synthetic slides and a synthetic scan, served on this machine."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from PIL import Image

from smmil.prediction import Prediction
from smmil.synthetic import write_pyramid
from smmil.synthetic.ct import synthetic_ct_scans
from smmil.viewer.lifecycle import _bind
from support.lesion_cases import META, save_all, scan_case, slide_case, write_slide_picture
from support.screens import EVIL

PLACE = (14, 8)
CORNER = np.array([1024, 640])  # the scanned area of s1 lies at an offset in its slide
MODELS = {"first": {"noise": 0.4}, "second": {"noise": 0.4, "smooth": True}, "third": {"noise": 0.9}}


def viewed_slide(name, model, **how):
    """A slide as one of the models sees it; the same call gives the same numbers."""
    case = slide_case(name, 1, p=0.2, place=PLACE, meta={**META, "model": model}, **MODELS[model], **how)
    return replace(case, coords=case.coords + CORNER)


def write_study(folder):
    """Predictions of three models, pictures of one slide and one scan, features of one bag; gives what to serve."""
    scan = synthetic_ct_scans(folder / "ct", 2, seed=3, slices=(24, 24), size=96, positive=1.0).iloc[1]
    truth = np.load(folder / "ct" / scan["instance_labels"])
    for model, how in MODELS.items():
        (folder / model).mkdir()
        cases = [viewed_slide("s1", model), slide_case("s2", 2, y=0, p=0.7, **how), slide_case("s3", 3, p=0.95, **how),
                 slide_case(EVIL, 4, y=0, p=0.1, **how), viewed_scan(scan["id"], truth, model),
                 scan_case("bare scan"), points_case(), loose_case()]  # fmt: skip
        save_all(folder / model, cases)
    write_slide_picture(folder / "s1.png", 1, place=PLACE)
    pixels = np.asarray(Image.open(folder / "s1.png").convert("RGB"))
    write_pyramid(folder / "s1.scn", pixels, mpp=0.5, flavour="leica", bounds_offset=tuple(CORNER.tolist()))
    (folder / "images.csv").write_text(f"id,slide\ns1,s1.scn\n{scan['id']},ct/{scan['path']}\n", encoding="utf-8")
    np.save(folder / "s1.npy", features_of(viewed_slide("s1", "first")), allow_pickle=False)
    (folder / "manifest.csv").write_text("id,path\ns1,s1.npy\n", encoding="utf-8")
    return {
        "places": [folder / model for model in MODELS],
        "slides": folder / "images.csv",
        "bags": folder / "manifest.csv",
    }


def features_of(case):
    """Lesion and healthy tissue point in different directions, with a little of their own each."""
    rng = np.random.default_rng(5)
    towards = np.where(case.y_inst[:, None] == 1, [1.0, 0, 0, 0], [0, 1.0, 0, 0])
    return (towards + 0.1 * rng.normal(size=towards.shape)).astype(np.float32)


def viewed_scan(name, truth, model):
    case = scan_case(name, n=len(truth), p=0.8)
    rng = np.random.default_rng(list(MODELS).index(model))
    scores = 3.0 * truth + rng.normal(size=len(truth)) * 0.3
    return Prediction(name, case.probs, scores, coords=case.coords, frame=case.frame, edges=case.edges, y=1,
                      y_inst=truth, meta=META)  # fmt: skip


def points_case():
    """Instances at places of their own, without size or lattice."""
    rng = np.random.default_rng(9)
    return Prediction("points", [0.6], rng.normal(size=60), coords=rng.uniform(0, 4000, size=(60, 2)), y=1, meta=META)


def loose_case():
    """Instances that lie nowhere."""
    return Prediction("loose", [0.4], np.random.default_rng(8).normal(size=30), y=0, meta=META)


@contextmanager
def served(study, port=0, around=lambda app: app, **options):
    """The address of a running viewer, and the server; it is stopped at the end, and its port is free again.

    around  gives an application that stands before the viewer's own
    """
    import uvicorn

    from smmil.viewer.server import _create_app

    listening = _bind("127.0.0.1", port)
    app = around(_create_app(study, **options))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
