"""From a raw slide or scan to a Prediction with nothing but a package: the same bits as by hand."""

import shutil
from dataclasses import replace

import pytest
import typer
from support import prepare_makers as makers
from support.ct_makers import series
from support.package_makers import QUICK, same_files, slide
from typer.testing import CliRunner

from smmil.cli.package import package as package_command
from smmil.cli.predict import predict as predict_command
from smmil.config import load_config
from smmil.errors import ConfigError, DataError
from smmil.packaging import Images, load_package, loading, predict_package, write_package
from smmil.predict import predict_run
from smmil.prediction import Prediction, load_predictions
from smmil.prepare import load_recipe, plan, run
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train import train

app = typer.Typer()
app.command("package")(package_command)
app.command("predict")(predict_command)


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def loaded(package):
    return load_package(package, trust_code=True)


@pytest.fixture
def unseen(tmp_path):
    """Two slides the run never saw."""
    return [slide(tmp_path / "new" / f"new_{seed}.svs", 100 + seed, bool(seed)) for seed in range(2)]


def by_hand(road, slides, out):
    """smmil prepare with the recipe of the study, then smmil predict with the run."""
    manifest = run(plan(slides, out / "bags", makers.recipe(16.0), device="cpu")).manifest
    predict_run(road.run, manifest=manifest, out=out / "predictions", device="cpu")
    return out / "predictions"


def test_a_raw_slide_gives_the_bits_of_preparing_and_predicting_by_hand(road, loaded, unseen, tmp_path):
    done = predict_package(loaded, unseen, out=tmp_path / "p", device="cpu")
    assert [path.name for path in done.written] == ["new_0.npz", "new_1.npz"]
    assert same_files(by_hand(road, unseen, tmp_path / "hand"), tmp_path / "p")
    one, other = load_predictions(tmp_path / "p")
    assert one.probs != other.probs


def test_a_repeated_call_keeps_bags_and_predictions(loaded, unseen, tmp_path):
    predict_package(loaded, unseen[:1], out=tmp_path / "p")
    before = (tmp_path / "p" / "prepared" / "bags" / "new_0.h5").stat().st_mtime_ns
    again = predict_package(loaded, [tmp_path / "new"], out=tmp_path / "p")
    assert ([p.name for p in again.kept], [p.name for p in again.written]) == (["new_0.npz"], ["new_1.npz"])
    assert (tmp_path / "p" / "prepared" / "bags" / "new_0.h5").stat().st_mtime_ns == before


def test_a_damaged_slide_is_listed_and_the_others_go_on(loaded, unseen, tmp_path):
    unseen[0].write_bytes(b"II*\0 broken")
    done = predict_package(loaded, unseen, out=tmp_path / "p")
    assert [p.name for p in done.written] == ["new_1.npz"]
    assert list(done.failed) == ["new_0"]
    assert "new_0" in (tmp_path / "p" / "failures.csv").read_text()
    alone = predict_package(loaded, unseen[:1], out=tmp_path / "q")
    assert (alone.paths, list(alone.failed)) == ([], ["new_0"])


def test_other_weights_of_the_encoder_are_refused_before_a_pixel_is_read(loaded, unseen, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "plan", lambda *a, **o: replace(plan(*a, **o), encoder="mean@2"))
    with pytest.raises(ConfigError, match="its weights here give mean@2, but the model was trained on mean@1"):
        predict_package(loaded, unseen, out=tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_labels_of_a_table_travel_with_the_predictions(loaded, unseen, tmp_path):
    (tmp_path / "labels.csv").write_text("id,label\nnew_0,0\nnew_1,1\n")
    predict_package(loaded, unseen, out=tmp_path / "p", images=Images(labels=tmp_path / "labels.csv"))
    assert [p.y for p in load_predictions(tmp_path / "p")] == [0, 1]


def test_manifests_bags_and_folders_of_bags_give_the_same(road, loaded, tmp_path):
    bags = sorted((road.root / "study" / "bags").glob("*.h5"))
    for name, sources in {"table": [road.manifest], "files": bags, "folder": [bags[0].parent]}.items():
        assert len(predict_package(loaded, sources, out=tmp_path / name).written) == 12
    for path in (tmp_path / "files").glob("*.npz"):
        told, folder = Prediction.load(tmp_path / "table" / path.name), (tmp_path / "folder" / path.name).read_bytes()
        assert path.read_bytes() == folder
        assert (Prediction.load(path).probs, Prediction.load(path).y) == (told.probs, None)
        assert told.y is not None


def test_what_does_not_belong_together_is_refused(road, loaded, unseen, tmp_path):
    bag = next((road.root / "study" / "bags").glob("*.h5"))
    for sources, words in (
        ([road.manifest, unseen[0]], "a manifest stands alone"),
        ([bag, unseen[0]], "predict bags and images in two steps"),
    ):
        with pytest.raises(ConfigError, match=words):
            predict_package(loaded, sources, out=tmp_path / "p")
    with pytest.raises(DataError, match="no such file or folder"):
        predict_package(loaded, [tmp_path / "absent.svs"], out=tmp_path / "p")
    with pytest.raises(ConfigError, match="--mpp: is for raw images, but these are bags"):
        predict_package(loaded, [bag], out=tmp_path / "p", images=Images(mpp=0.5))


def test_a_package_without_recipe_refuses_raw_slides_and_takes_bags(tmp_path, unseen):
    manifest = write_synthetic(tmp_path / "study", synthetic_slides(12, seed=3, size=(12, 20), dim=5))
    train(load_config(None, [f"data.manifest={manifest}", *QUICK]), tmp_path / "run")
    done = write_package(tmp_path / "run", tmp_path / "package")
    assert ("recipe.json" in done.files, done.kind) == (False, None)
    assert [note.partition(":")[0] for note in done.notes] == ["no drift.safetensors"]
    loaded = load_package(tmp_path / "package")
    with pytest.raises(ConfigError, match="cannot read raw images, since the recipe of its features is not part of it"):
        predict_package(loaded, unseen, out=tmp_path / "p")
    assert len(predict_package(loaded, [manifest], out=tmp_path / "p").written) == 12


def test_features_of_another_recipe_are_refused(loaded, unseen, tmp_path):
    manifest = run(plan(unseen, tmp_path / "bags", makers.recipe(32.0), device="cpu")).manifest
    with pytest.raises(ConfigError, match="trained on recipe"):
        predict_package(loaded, [manifest], out=tmp_path / "p")


class TestWordsForTheUserOfAPackage:
    """`smmil prepare` settles these things by options that `smmil predict` does not have."""

    @staticmethod
    def refused(package, sources, out, **images):
        with pytest.raises(ConfigError) as problem:
            predict_package(package, sources, out=out, images=Images(**images), device="cpu")
        assert "--kind" not in str(problem.value)
        assert "--overwrite" not in str(problem.value)
        assert "\n" not in str(problem.value)
        return str(problem.value)

    def test_scans_for_a_model_of_slides(self, loaded, tmp_path):
        series(tmp_path / "scan")
        told = self.refused(loaded, [tmp_path / "scan"], tmp_path / "p")
        assert told.endswith("scan: holds scans, but this package was trained on slides; give those")
        assert not (tmp_path / "p").exists()

    def test_slides_for_a_model_of_scans(self, loaded, unseen, tmp_path):
        scans = replace(loaded, recipe=load_recipe(None, {"kind": "ct", "encoder": makers.ENCODER}))
        told = self.refused(scans, unseen, tmp_path / "p")
        assert "holds slides, but this package was trained on CT scans; give those" in told

    def test_points_where_there_are_none_to_be_and_the_other_way_round(self, loaded, unseen, tmp_path):
        (tmp_path / "points.csv").write_text("image,x,y\nnew_0,1,1\n")
        told = self.refused(loaded, unseen, tmp_path / "p", points=tmp_path / "points.csv")
        assert told == "--points: this package was trained on slides; leave the option out"
        crops = replace(loaded, recipe=load_recipe(None, {"kind": "points", "encoder": makers.ENCODER}))
        assert "crops around points of slides; give their table with --points" in self.refused(crops, unseen, tmp_path)

    def test_a_place_with_bags_of_another_package(self, loaded, unseen, tmp_path):
        predict_package(loaded, unseen[:1], out=tmp_path / "p", device="cpu")
        other = replace(loaded, recipe=makers.recipe(32.0))
        told = self.refused(other, unseen, tmp_path / "p")
        assert "prepared for a package with another recipe; choose another --out" in told

    def test_a_slide_with_too_many_damaged_tiles(self, loaded, unseen, tmp_path, monkeypatch):
        from smmil.images.slide import DamagedTile, Slide

        def torn(slide, x, y, *_size):
            raise DamagedTile(str(slide.path), x, y, "torn")

        monkeypatch.setattr(Slide, "read", torn)
        (reason,) = predict_package(loaded, unseen[:1], out=tmp_path / "p", device="cpu").failed.values()
        assert "copy or scan the slide again" in reason
        assert "raise" not in reason


def test_scans_are_prepared_by_the_recipe_of_the_package(tmp_path):
    for number in range(8):
        series(tmp_path / "scans" / f"s{number}")
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"s{n},{n % 2}\n" for n in range(8)))
    recipe = load_recipe(None, {"kind": "ct", "encoder": makers.ENCODER, "windows": ("brain",), "triplets": True})
    todo = plan([tmp_path / "scans"], tmp_path / "study", recipe, labels=tmp_path / "labels.csv", device="cpu")
    train(load_config(None, [f"data.manifest={run(todo).manifest}", *QUICK]), tmp_path / "run")
    told = command("package", tmp_path / "run", "--out", tmp_path / "package")
    assert f"next: smmil predict --model {tmp_path / 'package'} scans/ --out predictions" in told.output
    series(tmp_path / "new")
    loaded = load_package(tmp_path / "package", trust_code=True)
    predict_package(loaded, [tmp_path / "new"], out=tmp_path / "p", device="cpu")
    manifest = run(plan([tmp_path / "new"], tmp_path / "bags", recipe, device="cpu")).manifest
    predict_run(tmp_path / "run", manifest=manifest, out=tmp_path / "hand", device="cpu")
    assert same_files(tmp_path / "hand", tmp_path / "p")
    assert "ct" in (tmp_path / "package" / "README.md").read_text().split("---")[1]


class TestTheCommands:
    def test_package_then_predict_from_a_slide(self, road, unseen, tmp_path):
        told = command("package", road.run, "--out", tmp_path / "pack", "--name", "Lymph nodes", "--licence", "MIT")
        assert told.exit_code == 0, told.output
        assert "SHA256SUMS" in told.output
        assert f"next: smmil predict --model {tmp_path / 'pack'} slide.svs --out predictions" in told.output
        assert "license: mit" in (tmp_path / "pack" / "README.md").read_text()
        words = ("predict", "--model", tmp_path / "pack", *unseen, "--out", tmp_path / "p", "--trust-code")
        told = command(*words)
        assert told.exit_code == 0, told.output
        assert "2 written, 0 there already, 0 failed" in told.output
        assert "0 written, 2 there already, 0 failed" in command(*words).output

    def test_a_partly_failed_prediction_exits_with_3(self, package, unseen, tmp_path):
        unseen[1].write_bytes(b"nothing")
        told = command("predict", "--model", package, *unseen, "--out", tmp_path / "p", "--trust-code")
        assert told.exit_code == 3
        assert "1 written, 0 there already, 1 failed" in told.output

    def test_a_run_is_predicted_as_before(self, road, tmp_path):
        told = command("predict", road.run, "--out", tmp_path / "p", "--part", "test")
        assert told.exit_code == 0, told.output
        assert same_files(road.test, tmp_path / "p")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--model", "PACKAGE", "x.svs", "--part", "test"), "--part: is for runs, not for --model"),
            (("--model", "PACKAGE", "x.svs", "--manifest", "m.csv"), "--manifest: is for runs, not for --model"),
            (("RUN", "--mpp", "0.5"), "--mpp: needs --model"),
            (("RUN", "x.svs"), "give one run, or a package with --model"),
        ],
    )
    def test_options_that_would_do_nothing_are_refused(self, road, package, tmp_path, words, message):
        places = {"PACKAGE": package, "RUN": road.run}
        told = command("predict", *(places.get(word, word) for word in words), "--out", tmp_path / "p")
        assert isinstance(told.exception, ConfigError)
        assert message in str(told.exception)


def test_a_package_works_where_the_run_and_its_bags_are_gone(road, package, unseen, tmp_path):
    here = tmp_path / "elsewhere"
    shutil.copytree(package, here)
    loaded = load_package(here, trust_code=True)
    done = predict_package(loaded, unseen, out=tmp_path / "p")
    assert len(done.written) == 2
    assert str(road.root) not in str(load_predictions(tmp_path / "p")[0].meta)
