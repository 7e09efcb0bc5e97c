"""Every verb that writes, killed at any write or moment, alone or beside a second process in the same folder.

The next run ends with the content of an undisturbed one and leaves nothing behind. (`demo` is made of these verbs.)
"""

import random
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from support import prepare_makers as makers
from support.foreign_files import cells, clam_files, features
from support.foreign_programs import clam
from support.kills import PROCESSES, ask, content, finish, leftovers, start

from smmil.cli import VERBS, experiment
from smmil.synthetic import synthetic_slides, write_synthetic

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to tell living processes")

STUDY = {
    "name": "tiny",
    "datasets": [{
        "name": "tiny", "folds": 2, "val_share": 0.5, "test_share": 0.3,
        "synthetic": {"kind": "slides", "bags": 12, "options": {"size": [10, 16], "dim": 4, "lesion": [0.1, 0.3]}},
    }],
    "variants": [{"name": "ABMIL", "model": "abmil", "options": {"dim": 6, "att_dim": 3}}],
    "learning_rates": [0.01],
    "folds": [0],
    "training": {"epochs": 2, "warmup_epochs": 0},
    "tables": [{"name": "localization", "metrics": ["inst_auroc"]}],
    "figures": [{"name": "histograms", "kind": "histograms"}],
}  # fmt: skip


ANSWERS = ("tables", "figures", "trust")  # of an experiment that was run


def training(*changes):
    return [word for change in changes for word in ("--set", change)]


class Workshop:
    """The input of every verb, and what each makes of it undisturbed: content, seconds, steps of writing."""

    def __init__(self, folder):
        self.folder, self.truth = folder, {}
        for seed in range(3):
            makers.write_slide(folder / "slides" / f"s{seed}.svs", makers.speckled(seed, 512))
        (folder / "labels.csv").write_text("id,label\ns0,0\ns1,1\ns2,0\n")
        write_synthetic(folder / "bags", synthetic_slides(8, seed=5, size=(12, 20), dim=6))
        write_synthetic(folder / "many", synthetic_slides(44, seed=6, size=(5, 6), dim=4))
        for seed, places in enumerate([cells()] * 4):
            clam_files(folder / "foreign", features(len(places), seed=seed), places * 512, name=f"f{seed}")
        torch.save(dict(clam("single")[0]), folder / "clam.pt")
        (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
        (folder / "search.yaml").write_text(yaml.safe_dump({**STUDY, "search": {"training.lr": [0.01, 0.02]}}))
        small = training("training.epochs=3", "training.threads=1", "model.options.dim=8", "data.folds=2")
        at = {name: str(folder / name) for name in ("slides", "labels.csv", "bags", "foreign", "clam.pt", "study.yaml")}
        run, predictions = str(folder / "train" / "out"), str(folder / "predict" / "out")
        bags, many = f"{at['bags']}/manifest.csv", str(folder / "many" / "manifest.csv")
        quick = training("training.epochs=1", "training.threads=1", "model.options.dim=4", "data.folds=2")
        methods = ["--method", "attention", "--method", "drop", "--part", "all"]
        prepare = ["--encoder", makers.ENCODER, "--tile-um", "32", "--executor", "serial"]
        self.words = {
            "train": ["train", "--manifest", bags, "--model", "sm_ap", *small, "--out", "out"],
            "predict": ["predict", run, "--part", "all", "--manifest", bags, "--out", "out"],
            "explain": ["explain", run, *methods, "--faithfulness", "--repeats", "1", "--out", "out"],
            "calibrate": ["calibrate", predictions, "--force", "--target", "0.5", "--out", "out/calibration.json"],
            "train many": ["train", "--manifest", many, "--model", "abmil", *quick, "--out", "out"],
            "drift": ["drift", str(folder / "train many" / "out"), "--out", "out/drift.safetensors"],
            "suggest": ["suggest", predictions, "--out", "out"],
            "source": ["source", "folder", at["slides"], "--table", at["labels.csv"], "--out", "out"],
            "prepare": ["prepare", at["slides"], "--labels", at["labels.csv"], "--out", "out", *prepare],
            "evaluate": ["evaluate", predictions, "--json", "out/a.json", "--csv", "out/a.csv"],
            "report": ["report", predictions, "--resamples", "0", "--out", "out/report.html"],
            "export": ["export", predictions, "--to", "csv", "--out", "out"],
            "export png": ["export", predictions, "--to", "png", "--size", "64", "--out", "out"],
            "package": ["package", run, "--out", "out/package", "--force"],
            "convert": ["convert", at["foreign"], "--to", "native", "--out", "out"],
            "convert-weights": ["convert-weights", at["clam.pt"], "--from", "clam", "--out", "out"],
            "experiment": ["experiment", "run", at["study.yaml"], "--out", "out"],
            "experiment search": [
                *("experiment", "search", str(folder / "search.yaml"), "--trials", "2", "--out", "out"),
            ],
            **{f"experiment {what}": ["experiment", what, at["study.yaml"], "--out", "out"] for what in ANSWERS},
        }
        self.quiet = {  # they write nothing
            "models": ["models"],
            "inspect": ["inspect", bags, at["foreign"]],
            "doctor": ["doctor"],
            "encoders": ["encoders"],
            "experiment status": [
                "experiment",
                "status",
                at["study.yaml"],
                "--out",
                str(folder / "experiment" / "out"),
            ],
        }

    def undisturbed(self, verb):
        """Content, seconds and steps of an undisturbed run; made when first asked for."""
        if verb not in self.truth:
            for needed in ("train", "train many", "predict"):
                if needed != verb and str(self.folder / needed / "out") in self.words[verb]:
                    self.undisturbed(needed)
            folder = self.begin(verb)
            seconds, steps = finish(self.words[verb], folder)
            self.truth[verb] = content(folder / "out"), seconds, steps
        return self.truth[verb]

    def begin(self, verb, chance=None):
        """The folder of a run; answers to an experiment begin with it, in one place, since it keeps whole paths."""
        if not verb.startswith("experiment "):
            return self.folder / (verb if chance is None else f"{verb}_{chance.getrandbits(64):016x}")
        self.undisturbed("experiment")
        shutil.rmtree(self.folder / verb, ignore_errors=True)
        shutil.copytree(self.folder / "experiment" / "out", self.folder / verb / "out")
        return self.folder / verb

    def kill(self, verb, chance, *, paired):
        """Kill a run of the verb, let a second one beside it end, repeat, compare. False if it was not hit."""
        expected, seconds, steps = self.undisturbed(verb)
        folder = self.begin(verb, chance)
        by_clock = chance.random() < 0.3
        victim = start(self.words[verb], folder, None if by_clock else chance.randint(1, steps))
        other = start(self.words[verb], folder) if paired else None
        if by_clock:
            victim.join(chance.uniform(0.1, 1) * seconds)
            victim.kill()
        victim.join()
        if other is not None:
            other.join()
            assert other.exitcode == 0, (verb, (folder / "log").read_text())
        assert victim.exitcode in (0, -9), (verb, (folder / "log").read_text())
        finish(self.words[verb], folder)
        found = content(folder / "out")
        assert found.keys() == expected.keys(), (verb, found.keys() ^ expected.keys())
        assert [name for name in expected if found[name] != expected[name]] == [], verb
        assert leftovers(folder) == [], verb
        return victim.exitcode == -9


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("kills"))


def spread(workshop, verbs, kills, seed):
    """So many kills over the verbs in turn, every third with a second process in the folder."""
    chance, hits, tries = random.Random(seed), 0, 0
    while hits < kills:
        assert tries < 3 * kills, "most runs ended before they were killed"
        verb = verbs[hits % len(verbs)]
        paired = (hits + hits // len(verbs)) % 3 == 0  # in each round other verbs
        hits += workshop.kill(verb, chance, paired=paired)
        tries += 1


@pytest.mark.parametrize("verb", ["convert", "package", "prepare"])
def test_a_killed_verb_repeated_gives_the_same(workshop, verb):
    spread(workshop, [verb], kills=2, seed=1)


@pytest.mark.slow
def test_fifty_kills_over_all_verbs(workshop):
    spread(workshop, list(workshop.words), kills=50, seed=1813)


@pytest.mark.slow
def test_what_a_killed_process_left_in_a_finished_folder_goes_with_the_next_run(workshop):
    """Also where there is nothing left to write."""
    words = [sys.executable, "-c", "from smmil.files import temporary_path as t, Path; print(t(Path('a.csv')).name)"]
    name = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()  # of a process that ended
    kept = {}
    for verb in workshop.words:
        folder, there = workshop.folder / verb, workshop.undisturbed(verb)[0]
        if verb.startswith("experiment"):  # a run is under a lock, and its result is the last that is written there
            others = workshop.undisturbed("experiment")[0] if " " in verb else ()
            there = {file for file in there if file not in others and not file.startswith("runs/")}
        for place in {(folder / "out" / file).parent for file in there}:
            (place / name).touch()
        finish(workshop.words[verb], folder)
        kept[verb] = leftovers(folder)
    assert {verb: files for verb, files in kept.items() if files} == {}


@pytest.mark.slow
def test_no_verb_uses_the_network(workshop):
    for verb in workshop.words:
        workshop.undisturbed(verb)  # asks for it at the end
    for verb, words in workshop.quiet.items():
        finish(words, workshop.folder / verb.replace(" ", "_"))


def test_no_verb_that_writes_is_forgotten(workshop):
    apart = {"view", "demo"}  # a server, with tests of its own; made of the others
    verbs, quiet = ({words[0] for words in made.values()} for made in (workshop.words, workshop.quiet))
    assert verbs | quiet == {*VERBS, "experiment"} - apart
    assert verbs & quiet == {"experiment"}
    every = [*workshop.words.values(), *workshop.quiet.values()]
    spoken = {words[1] for words in every if words[0] == "experiment"}
    assert spoken == {command.name for command in experiment.app.registered_commands}


def test_the_watch_for_the_network_sees_it(tmp_path):
    asking = PROCESSES.Process(target=ask, args=(tmp_path,))
    asking.start()
    asking.join()
    assert (tmp_path / "network").read_text().startswith("socket.getaddrinfo ('localhost'")


def test_the_watch_for_leftovers_sees_them(workshop, tmp_path):
    """Without a next run there are some: the kills land where they should."""
    victim = start(workshop.words["convert"], tmp_path, 1)
    victim.join()
    assert victim.exitcode == -9
    assert leftovers(tmp_path)
