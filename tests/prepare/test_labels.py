"""Where instance labels come from: an annotation, a list, or the knowledge that a case has no lesion."""

import numpy as np
import pytest
from PIL import Image
from support import prepare_makers as makers

from smmil.data import Manifest
from smmil.errors import ConfigError, DataError
from smmil.prepare import plan, run

BOX = "x,y,width,height,class\n0,0,96,96,1\n"


@pytest.fixture
def slides(tmp_path):
    for name in ("s0", "s1"):
        image = makers.painted(192, 192, background=makers.TISSUE)
        makers.write_slide(tmp_path / "slides" / f"{name}.svs", image, mpp=1.0)
    return tmp_path / "slides"


def prepared(slides, table, **options):
    """Labels by case, None where there are none; and the failures."""
    (slides.parent / "labels.csv").write_text(table)
    recipe = makers.recipe(32.0, tissue={"method": "none"})
    done = run(plan([slides], slides.parent / "out", recipe, labels=slides.parent / "labels.csv", **options))
    manifest = Manifest.read(done.manifest)
    labels = {id_: manifest.bag(id_).y_inst for id_ in manifest.ids}
    return {id_: None if y is None else y.tolist() for id_, y in labels.items()}, done.failures


def test_a_negative_case_beside_annotated_ones_has_no_positive_instance(slides):
    (slides.parent / "lesion.csv").write_text(BOX)
    labels, _ = prepared(slides, "id,label,annotation\ns0,1,lesion.csv\ns1,0,\n")
    assert sum(labels["s0"]) == 9
    assert labels["s1"] == [0] * 36


def test_without_any_annotation_nothing_is_known_about_instances(slides):
    labels, _ = prepared(slides, "id,label\ns0,1\ns1,0\n")
    assert labels == {"s0": None, "s1": None}


def test_of_an_incomplete_annotation_the_rest_is_unknown(slides):
    (slides.parent / "lesion.csv").write_text(BOX)
    table = "id,label,annotation,annotation_complete,annotation_kind\ns0,1,lesion.csv,no,boxes\ns1,0,,,\n"
    labels, _ = prepared(slides, table)
    assert sorted(set(labels["s0"])) == [-1, 1]


def test_an_unknown_kind_of_annotation_fails_its_case(slides):
    (slides.parent / "lesion.csv").write_text(BOX)
    _, failures = prepared(slides, "id,label,annotation,annotation_kind\ns0,1,lesion.csv,box\ns1,0,,\n")
    assert "did you mean boxes" in str(failures)


def test_completeness_is_yes_or_no(slides):
    (slides.parent / "lesion.csv").write_text(BOX)
    with pytest.raises(DataError, match="expected yes or no"):
        prepared(slides, "id,label,annotation,annotation_complete\ns0,1,lesion.csv,perhaps\ns1,0,,\n")


def test_labels_known_instance_by_instance_are_taken_over_in_order(slides):
    known = np.arange(36) % 2
    np.save(slides.parent / "known.npy", known)
    labels, _ = prepared(slides, "id,label,instance_labels\ns0,1,known.npy\ns1,0,\n")
    assert labels["s0"] == known.tolist()


def test_labels_of_another_number_are_refused(slides):
    np.save(slides.parent / "known.npy", np.zeros(35, dtype=int))
    _, failures = prepared(slides, "id,label,instance_labels\ns0,1,known.npy\ns1,0,\n")
    assert "35 labels, but s0 has 36 instances" in str(failures)


def test_a_smaller_look_of_the_encoder_is_another_recipe():
    assert makers.recipe().digest("e") != makers.recipe(encoder_pixels=64).digest("e")


def test_a_manifest_does_not_outlive_the_cases_it_names(slides):
    prepared(slides, "id,label\ns0,1\ns1,0\n")
    for path in slides.iterdir():
        path.write_bytes(b"damaged")
    recipe = makers.recipe(32.0, tissue={"method": "none"})
    done = run(plan([slides], slides.parent / "out", recipe, labels=slides.parent / "labels.csv"))
    assert done.manifest is None
    assert not (slides.parent / "out" / "manifest.csv").exists()


def test_two_names_of_a_patient_must_agree(slides):
    with pytest.raises(DataError, match="keep one of the two"):
        prepared(slides, "id,label,patient,group\ns0,1,p,q\ns1,0,r,r\n")


@pytest.mark.parametrize("wrong", [{"mpp": 0.0}, {"mpp": float("nan")}, {"coverage": 1.0}, {"coverage": float("nan")}])
def test_numbers_that_cannot_be_meant_are_refused_before_anything_starts(slides, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        plan([slides], slides.parent / "out", makers.recipe(), **wrong)


def test_a_function_that_gives_no_encoder_is_told(slides):
    with pytest.raises(ConfigError, match=r"so it is not called; expected a smmil\.encoders\.Encoder"):
        plan([slides], slides.parent / "out", makers.recipe(encoder="os:getcwd"))


def test_a_folder_without_bags_is_free_for_another_recipe(slides):
    (slides.parent / "labels.csv").write_text("id,label\ns0,1\ns1,0\n")
    for path in slides.iterdir():
        path.write_bytes(b"damaged")
    for tile in (32.0, 64.0):
        done = run(plan([slides], slides.parent / "out", makers.recipe(tile), labels=slides.parent / "labels.csv"))
        assert len(done.failures) == 2


def test_points_of_unknown_images_and_outside_the_image_are_told(slides):
    points = slides.parent / "points.csv"
    points.write_text("image,x,y\ns0,50,50\ns0,60,60\ns1,9999,5\nother,1,1\n")
    recipe = makers.recipe(kind="points", crop_px=9, neighbours=1)
    done = run(plan([slides], slides.parent / "out", recipe, points=points))
    reasons = {id_: reason for id_, _, reason in done.failures}
    assert "not among the cases" in reasons["other"]
    assert "1 points lie outside the image, such as x=9999, y=5" in reasons["s1"]
    assert "s0" not in reasons


def test_a_negative_case_written_as_a_decimal_is_negative_too(slides):
    (slides.parent / "lesion.csv").write_text(BOX)
    labels, _ = prepared(slides, "id,label,annotation\ns0,1.0,lesion.csv\ns1,0.0,\n")
    assert labels["s1"] == [0] * 36


def test_the_user_says_which_classes_of_an_annotation_are_lesions(slides):
    (slides.parent / "lesion.csv").write_text(BOX + "96,96,32,32,necrosis\n")
    table = "id,label,annotation\ns0,1,lesion.csv\ns1,0,\n"
    labels, _ = prepared(slides, table, positive=["Necrosis"])
    assert (sum(labels["s0"]), labels["s0"][21]) == (1, 1)
    labels, _ = prepared(slides, table, positive=["positive", "necrosis"])
    assert sum(labels["s0"]) == 10


def test_the_user_says_which_codes_of_a_mask_are_lesions(slides):
    mask = np.zeros((192, 192), np.uint8)
    mask[:32, :32], mask[:32, 32:64] = 3, 4
    Image.fromarray(mask).save(slides.parent / "mask.png")
    table = "id,label,annotation\ns0,1,mask.png\ns1,0,\n"
    labels, _ = prepared(slides, table, positive=["4"])
    assert np.flatnonzero(labels["s0"]).tolist() == [1]
    _, failures = prepared(slides, table, positive=["tumour"])
    assert "--positive tumour: masks hold codes, not names" in str(failures)


@pytest.mark.parametrize(("options", "words"), [({"coverage": 0.3}, "--coverage"), ({"positive": ["a"]}, "--positive")])
def test_options_for_annotations_are_refused_where_there_are_none(slides, options, words):
    with pytest.raises(ConfigError, match=f"{words}: no case has an annotation"):
        plan([slides], slides.parent / "out", makers.recipe(), **options)
