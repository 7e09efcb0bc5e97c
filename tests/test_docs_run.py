"""Every command of README and docs runs as it is printed, page by page, on small files of the names it uses."""

import os
import shlex
import shutil
import threading
import urllib.request
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn
from support import docs_files as files
from support.docs_pages import PAGES, ROOT, commands, is_mention, sections
from support.roads import smmil

from smmil.demo import _next_steps


class Scene(NamedTuple):
    """Sections of a page that belong together: what the reader has before, and what is made anew each time.

    `again` names what several commands write in turn, since they are alternatives.
    """

    page: str
    titles: tuple[str, ...] = ("",)
    given: tuple = ()
    again: tuple[str, ...] = ()


def given(make, *names):
    """A maker with the names it writes."""
    return partial(make, *names)


COMING = "docs/coming-from.md"
BOTH = given(files.two_models, ("predictions", "test"), ("smmil-demo/predictions", "test"))
PARTS = given(
    files.two_models, ("test", "test"), ("val", "val"), ("train", "train"), ("smmil-demo/predictions", "test")
)
FIRST = given(files.predictions, "predictions", "runs/first")
OWN = given(files.predictions, "runs/first/predictions", "runs/first")
THEIRS = (
    given(files.camelyon16, "CAMELYON16"), given(files.clam, "features"), given(files.stamp, "features/ctranspath"),
    given(files.torchmil, "camelyon16"), given(files.trident, "trident"), files.crchisto,
)  # fmt: skip
FORMATS = (
    given(files.clam, "."), given(files.clam, "clam_features"), given(files.stamp, "stamp_features"),
    given(files.lazyslide, "."), given(files.sampled, "sampled"),
)  # fmt: skip
IMAGES = ("", "Stain normalisation", "Stopping, repeating, working in parallel")
SCENES = [
    Scene("README.md", ("From pixels to bags", "From bags to maps", "What is in it"),
          (files.slides, given(files.clam, "their_features"))),
    Scene("README.md", ("Where to begin",), (files.everything,), ("study",)),
    Scene("CONTRIBUTING.md", ("How to add", "Releasing")),
    Scene("docs/index.md", given=(files.everything,), again=("study",)),
    Scene("docs/calibrate.md", given=(files.first,)),
    Scene("docs/choose.md", ("Which encoder?",)),
    Scene(COMING, ("CLAM",), (files.checkpoints, given(files.slides, "SLIDES"), given(files.clam, "FEATURES")),
          ("study",)),
    Scene(COMING, ("TRIDENT",), (given(files.trident, "JOB"), files.native)),
    Scene(COMING, ("STAMP",), (given(files.slides, "SLIDES"), given(files.stamp, "FEATURES")), ("study",)),
    Scene(COMING, ("torchmil",), (given(files.torchmil, "FOLDER"), files.bags), ("FOLDER",)),
    Scene(COMING, ("LazySlide",), (given(files.lazyslide, "FOLDER"),)),
    Scene(COMING, ("QuPath",), (files.first, FIRST)),
    Scene("docs/corrections.md", ("The loop",), (files.first, files.slides)),
    Scene("docs/ct.md", ("Patches instead of slices",), (given(files.scans, 1),), ("study",)),
    Scene("docs/cross-validation.md"),
    Scene("docs/data.md", ("Try it",), (files.native,)),
    Scene("docs/drift.md", given=(files.first,)),
    Scene("docs/encoders.md", ("Try it", "Fetching weights")),
    Scene("docs/evaluate.md", given=(files.first, FIRST, PARTS)),
    Scene("docs/experiments.md"),
    Scene("docs/explain.md", given=(files.first,)),
    Scene("docs/exports.md", ("", "Formats"), (files.exported,)),
    Scene("docs/formats.md", ("Look first", "Convert"), FORMATS, ("bags",)),
    Scene("docs/gallery.md", ("The report", "The viewer", "In QuPath"), (BOTH, files.slides)),
    Scene("docs/models.md"),
    Scene("docs/own-loop.md", ("With the loop of smmil", "A map"), (files.first, FIRST)),
    Scene("docs/package.md", ("", "Using a package"), (files.packaged,), ("predictions",)),
    Scene("docs/patients.md", ("", "Aggregated", "Covariates", "Embeddings"), (files.patients,)),
    Scene("docs/prepare.md", IMAGES, (files.slides,), ("study",)),
    Scene("docs/prepare.md", ("Patches in files of their own",), (files.patch_files,)),
    Scene("docs/published.md", given=(files.checkpoints,)),
    Scene("docs/report.md", ("", "What to give it", "From Python"), (files.first, BOTH)),
    Scene("docs/reproduce.md", ("Manifests", "One command a table"), (files.published,)),
    Scene("docs/sources.md", ("", "CRCHistoPhenotypes"), THEIRS, ("study",)),
    Scene("docs/sources.md", ("Images or scans with masks",), (files.masked,)),
    Scene("docs/speed.md", ("What each kernel brings",)),
    Scene("docs/targets.md", given=(given(files.planted, "survival"),)),
    Scene("docs/targets.md", ("Several labels",), (given(files.planted, "multilabel"),)),
    Scene("docs/train.md", ("", "Settings", "Bags without end", "Predictions"), (files.seeds,), ("predictions",)),
    Scene("docs/view.md", ("", "What to give it"), (files.first, OWN, files.slides, BOTH)),
]  # fmt: skip
NETWORK = "fetches weights; fetching is tested against a server on loopback in tests/encoders"
NOT_RUN = {
    "smmil demo --out /tmp/demo": "takes minutes; it runs at toy size in tests/flows/test_demo.py",
    "smmil demo": "takes minutes; it runs at toy size in tests/flows/test_demo.py",
    "smmil encoders fetch phikon": NETWORK,
    "smmil prepare slides --labels labels.csv --encoder phikon --fetch --tile-um 112 --out study": NETWORK,
    "smmil prepare SLIDES --labels labels.csv --encoder uni --fetch --tile-um 128 --out study": NETWORK,
    "smmil prepare /data/slides --labels labels.csv --out /data/study --dask tcp://host:8786": (
        "needs a cluster; Dask on this machine is tested in tests/executors"
    ),
    "smmil prepare '~/CAMELYON16' --labels c16/labels.csv --out c16/study": "needs 400 slides; files are empty here",
    "smmil experiment": "a group of verbs, not a verb",
}
BEFORE = {  # what a person does between two commands
    "smmil train --manifest bags/manifest.csv --model sm_ap --out runs/second --set data.corrections=marks_wanted "
    "--set training.instance_loss=0.3": files.expert,
}
MORE = {  # what a command gets here beside its own words
    "view": ("--port", "0"),  # tests run beside each other
    "experiment": ("--toy",),  # a study takes hours
}


def run_here(line):
    """Run a command of smmil in this process."""
    words = [os.path.expanduser(word) for word in shlex.split(line)[1:]]
    more = MORE.get(words[0], ())
    smmil(*words, *(() if more and more[0] in words else more))


def to_run(scene):
    text = "\n".join(sections(ROOT / scene.page)[title] for title in scene.titles)
    return [line for line in commands(text) if not is_mention(line) and line not in NOT_RUN]


def output_of(line):
    words = shlex.split(line)
    return words[words.index("--out") + 1] if "--out" in words else None


@pytest.fixture
def visited(monkeypatch):
    """The viewer starts, is visited once, and stops."""

    class Visited(uvicorn.Server):
        def run(self, sockets):
            def visit():
                host, port = sockets[0].getsockname()[:2]
                answers.append(urllib.request.urlopen(f"http://{host}:{port}/", timeout=30).status)
                self.should_exit = True

            threading.Thread(target=visit, daemon=True).start()
            super().run(sockets=sockets)

    answers = []
    monkeypatch.setattr(uvicorn, "Server", Visited)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # no worker processes
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("scene", [pytest.param(s, id=f"{s.page}#{s.titles[0]}".rstrip("#")) for s in SCENES])
def test_the_commands_of_a_page_run_in_their_order(scene, tmp_path, monkeypatch, visited):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("configs").symlink_to(ROOT / "configs")
    for make in scene.given:
        make()
    done = to_run(scene)
    for line in done:
        if (out := output_of(line)) in scene.again:
            shutil.rmtree(out, ignore_errors=True)
        BEFORE.get(line, lambda: None)()
        run_here(line)
    assert visited == [200] * sum(line.startswith("smmil view") for line in done)


def test_every_command_of_every_page_runs_or_is_left_out_for_a_reason():
    ours = {(scene.page, line) for scene in SCENES for line in to_run(scene)}
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        found = {(name, line) for line in commands(page.read_text(encoding="utf-8")) if not is_mention(line)}
        assert {line for _, line in found - ours} <= set(NOT_RUN), name
    everywhere = {line for page in PAGES for line in commands(page.read_text(encoding="utf-8"))}
    assert set(NOT_RUN) | set(BEFORE) <= everywhere  # no reason outlives its command
    assert len(ours) > 100


@pytest.mark.slow
def test_the_commands_that_the_demo_proposes_run_on_files_of_ones_own(tmp_path, monkeypatch, visited):
    monkeypatch.chdir(tmp_path)
    files.slides("images")
    for line in commands("\n".join(_next_steps().items)):
        if not line.startswith("smmil view"):  # of the demo's own folder
            run_here(line)
    assert "slide_0021" in Path("mine.html").read_text()
