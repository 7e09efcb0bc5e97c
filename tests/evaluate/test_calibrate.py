"""smmil calibrate: what is promised, what is refused, the file, and what is applied to predictions."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from typer.testing import CliRunner

from smmil.cli import app
from smmil.errors import ConfigError, DataError, SmmilError
from smmil.evaluate import summary
from smmil.evaluate.calibration import Calibration, _not_above, calibrate
from smmil.evaluate.conformal import _MissedShares, _patient_values, applied_calibration, area_to_read
from smmil.evaluate.probability import ProbabilityMap, calibrated_probability
from smmil.prediction import Prediction

META = {
    "model": "sm_ap", "score_kind": "attention logit", "weights": "f" * 64, "config": "c" * 64,
    "features": {"encoder": "e@1", "recipe": "r1"}, "split": {"part": "test", "fold": 0, "digest": "d" * 64},
}  # fmt: skip
CHAIN = np.stack([np.arange(11), np.arange(1, 12)])


def case(name, rng, y=1, patient=None, meta=META, fitted=0.0):
    """A scan with two lesions; `fitted` is how much higher the model that trained on it scores them."""
    truth = np.isin(np.arange(12), (2, 3, 4, 8)) & bool(y)
    hard = rng.normal()
    scores = rng.normal(0, 1, 12) + (1 + hard + fitted) * truth
    p = expit((2 * y - 1) * (2 + rng.normal()))
    facts = {**meta, "group": patient or name}
    return Prediction(name, [p], scores, edges=CHAIN, y=y, y_inst=truth.astype(int), meta=facts)


def study(seed=0, positive=20, negative=12, **options):
    rng = np.random.default_rng(seed)
    cases = [case(f"p{i:02}", rng, **options) for i in range(positive)]
    return cases + [case(f"n{i:02}", rng, y=0, **options) for i in range(negative)]


def in_part(part):
    return {**META, "split": {"part": part}}


def test_the_promise_in_words_and_numbers():
    cases = study()
    made = calibrate(cases, target=0.1)
    assert made.threshold == _MissedShares(list(_patient_values(cases).values())).controlled(0.1)
    assert (made.patients, made.cases, made.promise) == (20, 32, True)
    shown = _not_above(made.threshold)
    assert made.sentence == (
        f"Flagging every instance with a score of at least {shown} misses, on average over patients with lesions, "
        "at most 10 % of a patient's lesion instances. Set by conformal risk control on 20 patients with "
        "lesions that the model had not seen."
    )
    assert "same population, scanner, staining" in made.conditions
    assert "supposed" not in made.conditions
    sure = calibrate(study(positive=60), kind="lesions", target=0.2, delta=0.05)
    assert sure.sentence.startswith("With a confidence of 95 %, flagging every instance with a score of at least ")
    assert "at most 20 % of a patient's lesions" in sure.sentence
    assert "learn-then-test" in sure.sentence
    assert sure.threshold == _MissedShares(list(_patient_values(study(positive=60), "lesions").values())).tested(
        0.2, 0.05
    )


def test_the_threshold_in_words_is_never_above_the_one_that_is_meant():
    cuts = [0.0, 1.0, -1.0, 2.60205, 2.60195, -0.0451814, -0.0451854, 12345.6, -12345.6, 9.9999, -9.9999, 1e-9, -3e12]
    for cut in [*cuts, *np.random.default_rng(0).normal(0, 10, 200)]:
        assert cut - 2e-3 * abs(cut) <= float(_not_above(cut)) <= cut
    assert [_not_above(c) for c in cuts[3:7]] == ["2.602", "2.601", "-0.04519", "-0.04519"]


def test_the_exact_test_is_used_where_losses_are_zero_or_one_by_meaning_only():
    cases = study(3, positive=80)
    found = calibrate(cases, kind="patients", target=0.2, delta=0.1)
    missed = _MissedShares(list(_patient_values(cases, "patients").values()))
    assert found.threshold == missed.tested(0.2, 0.1, binary=True) > missed.tested(0.2, 0.1)


def test_the_order_of_the_cases_changes_no_byte(tmp_path):
    cases = study()
    for name, order in (("a", range(32)), ("b", np.random.default_rng(1).permutation(32))):
        calibrate([cases[i] for i in order]).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("part", ["train", "val"])
def test_cases_that_the_model_has_seen_are_refused(part):
    rng = np.random.default_rng(0)
    cases = [*study(), case("leak", rng, meta=in_part(part))]
    with pytest.raises(DataError, match="leak: this case trained the model or selected its weights, as 1 of 33 did"):
        calibrate(cases)
    forced = calibrate(cases, force=True)
    assert not forced.promise
    assert forced.sentence.startswith("No promise: 1 of the 33 calibration cases trained the model or selected")
    assert forced.conditions == ""
    with pytest.raises(DataError, match="p03: this case trained"):
        calibrate(study(), seen={"p03"})


@pytest.mark.parametrize("key", ["ensemble", "mc_dropout", "explained"])
def test_scores_that_no_later_prediction_has_are_refused(key):
    cases = [replace(p, meta={**p.meta, key: {"method": "lrp"}}) for p in study()]
    with pytest.raises(DataError, match="calibrate those of one run itself"):
        calibrate(cases)


def test_a_forced_leak_breaks_what_would_have_been_promised():
    """The model scores lesions of cases that trained it two higher than those of new cases."""
    rng, target = np.random.default_rng(5), 0.1
    fresh = _MissedShares(list(_patient_values([case(f"new{i}", rng) for i in range(300)]).values()))
    leaked, honest = [], []
    for _ in range(30):
        seen = [case(f"p{i}", rng, meta=in_part("train"), fitted=2.0) for i in range(20)]
        leaked.append(fresh.losses(calibrate(seen, target=target, force=True, probabilities="none").threshold).mean())
        held = [case(f"p{i}", rng) for i in range(20)]
        honest.append(fresh.losses(calibrate(held, target=target, probabilities="none").threshold).mean())
    assert np.mean(leaked) > 2 * target
    assert np.mean(honest) <= target + 3 * np.std(honest) / math.sqrt(30)


def test_what_is_not_recorded_is_said():
    unknown = study(meta={**META, "split": {"part": None}})
    assert calibrate(unknown).conditions.endswith("is not recorded with them; it is supposed.")


@pytest.mark.parametrize(
    ("target", "delta", "words"),
    [
        (
            0.1,
            None,
            "8 patients .* 0.1 missed: at least 9 are needed; annotate 1 more, or promise --target 0.12",
        ),
        (0.05, None, "at least 19 are needed; annotate 11 more"),
        (0.1, 0.05, "with a confidence of 0.95: at least 29 are needed; annotate 21 more, or promise --target 0.32"),
    ],
)
def test_too_few_patients_are_told_how_many_are_needed(target, delta, words):
    with pytest.raises(DataError, match=words):
        calibrate(study(positive=8), target=target, delta=delta)
    calibrate(study(positive=8), target=float(words.split()[-1]) if "promise" in words else 0.2, delta=delta)


def test_patients_are_the_unit_not_cases():
    rng = np.random.default_rng(0)
    two_each = [case(f"c{i:02}", rng, patient=f"x{i // 2}") for i in range(16)]
    with pytest.raises(DataError, match="8 patients with marked lesions are too few"):
        calibrate(two_each)


def test_cases_without_labels_and_mixed_models_are_refused():
    cases = study()
    with pytest.raises(DataError, match="no case has instance labels"):
        calibrate([replace(c, y_inst=None) for c in cases])
    other = {**META, "weights": "0" * 64}
    with pytest.raises(DataError, match="p00: its weights is '000000000000…', that of n00 'ffffffffffff…'"):
        calibrate([replace(c, meta={**other, "group": c.id}) if c.id == "p00" else c for c in cases])
    with pytest.raises(DataError, match="no predictions given"):
        calibrate([])
    again = calibrate(cases).applied(cases[0], probs=True)
    with pytest.raises(DataError, match="p00: its probabilities were calibrated before"):
        calibrate([again, *cases[1:]])


def test_positive_cases_without_a_marked_lesion_are_counted_in_a_note():
    cases = study()
    cases[0] = replace(cases[0], y_inst=np.zeros(12))
    cases[1] = replace(cases[1], y_inst=np.where(np.arange(12) > 9, -1, cases[1].y_inst))
    made = calibrate(cases)
    assert made.patients == 19
    assert "1 of 20 positive cases have no marked lesion and take no part" in made.notes
    assert "1 of 20 positive cases are marked in part; the rest is left out" in made.notes


def test_the_file_comes_back_as_it_was(tmp_path):
    for number, options in enumerate(({}, {"probabilities": "isotonic", "kind": "lesions"}, {"delta": 0.5})):
        made = calibrate(study(), **options)
        made.save(tmp_path / f"{number}.json")
        assert Calibration.load(tmp_path / f"{number}.json") == made
        text = (tmp_path / f"{number}.json").read_text()
        assert not any(name in text for name in ("p00", "n00"))  # no case, no patient


def damaged(content, **changes):
    return json.dumps({**content, **changes})


def test_damaged_changed_and_other_files_are_refused(tmp_path):
    path = tmp_path / "c.json"
    calibrate(study()).save(path)
    content = json.loads(path.read_text())
    for text, words in (
        (damaged(content, threshold=-9.0), "does not match its checksum; calibrate again"),
        (path.read_text()[:-40], "not readable as JSON"),
        (json.dumps({"a": 1}), "not a calibration; give a file written by smmil calibrate"),
        ("[]", "expected a JSON dict"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words) as found:
            Calibration.load(path)
        assert str(path) in str(found.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("format", 2), ("threshold", "1"), ("kind", "all"), ("more", 1), ("patients", 0), ("target", 2.0)],
)
def test_a_sealed_file_of_another_shape_is_refused(tmp_path, key, value):
    from smmil.evaluate.calibration import _checksum

    content = {**calibrate(study()).model_dump(), key: value}
    (tmp_path / "c.json").write_text(json.dumps({**content, "sha256": _checksum(content)}))
    with pytest.raises(DataError, match=f"c.json: .*{'format 2' if key == 'format' else key}"):
        Calibration.load(tmp_path / "c.json")


OTHERS = {"model": "abmil", "weights": "0" * 64, "config": "9" * 64, "score_kind": "instance logit",
          "features": {"encoder": "e@2", "recipe": "r1"}}  # fmt: skip


@pytest.mark.parametrize("key", [*OTHERS, "recipe"])
def test_another_model_recipe_or_kind_of_score_is_refused(key):
    made, one = calibrate(study()), study()[0]
    changed = {"features": {"encoder": "e@1", "recipe": "r2"}} if key == "recipe" else {key: OTHERS[key]}
    with pytest.raises(
        ConfigError, match=r"p00: calibrated for .* but here it is .*: calibrate with predictions of this"
    ):
        made.applied(replace(one, meta={**one.meta, **changed}))
    assert made.applied(one).meta["calibration"]["threshold"] == made.threshold


def test_what_is_applied_and_what_stays():
    cases = study()
    made = calibrate(cases)
    one = made.applied(cases[0])
    facts = one.meta["calibration"]
    assert np.array_equal(one.scores, cases[0].scores)
    assert np.array_equal(one.probs, cases[0].probs)
    assert (facts["sentence"], facts["conditions"]) == (made.sentence, made.conditions)
    p = cases[0].positive_prob
    assert facts["probability"] == pytest.approx(float(made.bag(np.log(p / (1 - p)))))
    inside = [made.sets.thresholds[0] is None or 1 - p >= made.sets.thresholds[0], p >= made.sets.thresholds[1]]
    assert facts["set"] == [c for c in (0, 1) if inside[c]]
    replaced = made.applied(cases[0], probs=True)
    assert replaced.probs.tolist() == [facts["probability"]]
    two = replace(cases[0], probs=np.array([1 - p, p]))
    assert made.applied(two, probs=True).probs == pytest.approx([1 - facts["probability"], facts["probability"]])
    expected = made.instance(cases[0].scores[:, 0].astype(float))
    assert calibrated_probability(one) == pytest.approx(expected)
    assert calibrated_probability(cases[0]) is None
    with pytest.raises(ConfigError, match="holds no probabilities of cases"):
        calibrate(cases, probabilities="none").applied(cases[0], probs=True)


def test_a_prediction_keeps_its_calibration_in_its_file(tmp_path):
    made = calibrate(study())
    made.applied(study()[0]).save(tmp_path / "p.npz")
    stated = applied_calibration(Prediction.load(tmp_path / "p.npz"))
    assert (stated.threshold, stated.digest, stated.text) == (
        made.threshold,
        made.digest,
        f"{made.sentence} {made.conditions}",
    )


STRANGE = [(key, value) for key in ("threshold", "kind", "target", "delta", "column", "promise", "sentence", "digest")
           for value in ([1], {"a": 1}, 10**400, "1")]  # fmt: skip
STRANGE = [(k, v) for k, v in STRANGE if not (k in ("kind", "sentence", "digest") and v == "1") and k != "column"]


@pytest.mark.parametrize(
    ("key", "value"), [*STRANGE, ("threshold", float("inf")), ("threshold", True), ("column", True), ("column", [0])]
)
def test_strange_facts_in_a_prediction_are_no_calibration(key, value):
    one = calibrate(study()).applied(study()[0])
    facts = {**one.meta["calibration"], key: value}
    assert applied_calibration(replace(one, meta={**one.meta, "calibration": facts})) is None
    assert applied_calibration(replace(one, meta={**one.meta, "calibration": value})) is None


def test_a_sentence_commands_no_terminal():
    one = calibrate(study()).applied(study()[0])
    facts = {**one.meta["calibration"], "sentence": "a\x1b[2Jb\nc", "conditions": ""}
    assert applied_calibration(replace(one, meta={**one.meta, "calibration": facts})).text == "a [2Jb c"


def test_cases_that_set_the_threshold_are_no_check_of_it():
    held, new = study(0), study(1)
    made = calibrate(held)
    own, other = [made.applied(p) for p in held], [made.applied(p) for p in new]
    no_check = (
        "The lesions here are those that the threshold was set on: they are no check of what is missed in others."
    )
    assert summary(own)["notes"][2] == no_check
    assert "Measured" not in " ".join(summary(own)["notes"])
    alone, mixed = (
        summary(other)["notes"][2],
        summary([*(replace(p, id=f"own {p.id}") for p in own), *other])["notes"][2],
    )
    assert mixed == f"{alone} 20 that the threshold was set on are left out."
    assert not any(p.meta["calibration"]["own_case"] for p in other)


def test_the_file_tells_its_cases_again_without_naming_them(tmp_path):
    held = study(0)
    calibrate(held).save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    assert not any(p.id in text for p in held)
    made = Calibration.load(tmp_path / "c.json")
    renamed = replace(held[0], id="another name", meta={**held[0].meta, "group": "another patient"})
    assert made.applied(renamed).meta["calibration"]["own_case"] is True
    assert made.applied(replace(held[0], scores=held[0].scores + 1)).meta["calibration"]["own_case"] is False


def test_numbers_are_taken_at_the_calibrated_threshold_and_repeat_the_sentence():
    held, new = study(0), study(1)
    made = calibrate(held)
    found = summary([made.applied(p) for p in new])
    assert found["threshold"] == {"value": made.threshold, "source": "calibrated"}
    missed = np.mean([np.mean(p.scores[p.y_inst > 0, 0] < made.threshold) for p in new if p.y])
    measured = f"Measured on the 20 patients with lesions here: {100 * missed:.1f} % missed."
    assert found["notes"][:-1] == [made.sentence, made.conditions, measured]
    assert found["notes"][-1].startswith("Of 32 cases ")  # sets of classes
    assert summary([made.applied(new[-1])])["notes"][:-1] == [made.sentence, made.conditions]  # a negative case
    assert summary([made.applied(new[0])])["notes"][2].startswith("Measured on one patient with lesions here: ")
    flagged = [np.mean(p.scores[:, 0].astype(float) >= made.threshold) for p in new if p.y]
    assert found["bag"]["area_to_read_positive"] == pytest.approx(np.mean(flagged))
    assert found["instance"]["all"]["threshold"] == made.threshold
    given = summary([made.applied(p) for p in new], threshold=0.5)
    assert given["threshold"]["value"] == 0.5
    assert "notes" not in given
    mixed = summary([made.applied(new[0]), *new[1:]])
    assert mixed["threshold"]["value"] is None
    assert mixed["bag"]["area_to_read_positive"] == area_to_read(new, positive=True)
    forced = calibrate([replace(p, meta={**in_part("val"), "group": p.id}) for p in held], force=True)
    assert summary([forced.applied(p) for p in new])["threshold"]["source"] == "calibrated, without a promise"
    assert area_to_read([forced.applied(p) for p in new], positive=True) == area_to_read(new, positive=True)


def literal_platt(scores, truth):
    """Platt (1999): cross-entropy of softened targets, by a general optimiser."""
    high, low = (truth.sum() + 1) / (truth.sum() + 2), 1 / ((~truth).sum() + 2)
    t = np.where(truth, high, low)

    def loss(ab):
        z = ab[0] * scores + ab[1]
        return np.sum(np.logaddexp(0, z) - t * z)

    return minimize(loss, [0.0, 0.0], method="BFGS", options={"gtol": 1e-10}).x


def test_platt_is_the_curve_of_its_definition_also_where_classes_are_apart():
    rng = np.random.default_rng(0)
    for scale, gap in ((1.0, 1.0), (50.0, 10.0), (1.0, 20.0)):
        truth = rng.random(80) < 0.4
        scores = scale * (rng.normal(0, 1, 80) + gap * truth) + 7
        fitted = ProbabilityMap.fit("platt", scores, truth)
        # the reference works on scores of size 1 and is carried back
        a, b = literal_platt((scores - 7) / scale, truth)
        assert fitted(scores) == pytest.approx(expit(a * (scores - 7) / scale + b), abs=1e-4)


def literal_isotonic(scores, truth):
    """Pool adjacent violators, one block at a time."""
    order = np.argsort(scores)
    blocks = [[float(truth[i]), 1] for i in order]
    i = 0
    while i < len(blocks) - 1:
        if blocks[i][0] / blocks[i][1] >= blocks[i + 1][0] / blocks[i + 1][1]:
            first = blocks.pop(i)
            blocks[i] = [blocks[i][0] + first[0], blocks[i][1] + first[1]]
            i = max(i - 1, 0)
        else:
            i += 1
    fitted = np.empty(len(scores))
    fitted[order] = np.concatenate([np.full(n, s / n) for s, n in blocks])
    return fitted


def test_isotonic_is_the_pooling_of_neighbours():
    rng = np.random.default_rng(1)
    truth = rng.random(200) < 0.5
    scores = rng.normal(0, 1, 200) + truth
    fitted = ProbabilityMap.fit("isotonic", scores, truth)
    assert fitted(scores) == pytest.approx(literal_isotonic(scores, truth), abs=1e-12)
    assert fitted(np.array([-99.0, 99.0])) == pytest.approx([fitted.y[0], fitted.y[-1]])


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibrated_probabilities_of_new_cases_are_better(method):
    made = calibrate(study(0, 60, 60), probabilities=method)
    new = study(1, 60, 60)
    truth = np.concatenate([p.y_inst > 0 for p in new])
    said = np.concatenate([made.instance(p.scores[:, 0]) for p in new])
    assert np.mean((said - truth) ** 2) < np.mean((truth.mean() - truth) ** 2)
    assert abs(said.mean() - truth.mean()) < 0.03


@pytest.mark.parametrize(
    "content",
    [
        {"method": "platt", "x": [1.0, 2.0], "y": [0.0, 0.0]},
        {"method": "isotonic", "x": [1.0, 0.0], "y": [0.0, 1.0]},
        {"method": "isotonic", "x": [0.0, 1.0], "y": [0.0, 2.0]},
        {"method": "isotonic", "x": [0.0, 1.0], "y": [1.0, 0.5]},
        {"method": "isotonic", "x": [], "y": []},
    ],
)
def test_maps_that_make_no_sense_are_refused(content):
    with pytest.raises(ValueError, match=r"platt|isotonic|at least 1"):
        ProbabilityMap(**content)


def command(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def test_the_command_writes_the_file_and_says_what_is_promised(tmp_path):
    for p in study():
        p.save(tmp_path / "test" / f"{p.id}.npz")
    found = command("calibrate", tmp_path / "test", "--out", tmp_path / "c.json")
    assert found.exit_code == 0, found.output
    made = Calibration.load(tmp_path / "c.json")
    assert made == calibrate(study())
    assert made.sentence in found.output
    area = area_to_read(study(), positive=False)
    assert f"to read in negative cases: {area:.1%} of the instances" in found.output
    few = command("calibrate", tmp_path / "test", "--out", tmp_path / "d.json", "--target", "0.01")
    assert isinstance(few.exception, SmmilError)
    assert "at least 99 are needed" in str(few.exception)
    assert not (tmp_path / "d.json").exists()
    assert command("calibrate", tmp_path / "test", "--kind", "area").exit_code == 2


def test_the_split_of_a_run_is_asked(tmp_path):
    for p in study(meta={**META, "split": {}}):
        p.save(tmp_path / "test" / f"{p.id}.npz")
    split = {"train": ["p00"], "val": ["n00"], "test": ["x"]}
    (tmp_path / "run").mkdir()
    (tmp_path / "run/split.json").write_text(json.dumps(split))
    refused = command("calibrate", tmp_path / "test", "--run", tmp_path / "run", "--out", tmp_path / "c.json")
    assert "n00: this case trained the model or selected its weights, as 2 of 32 did" in str(refused.exception)
    forced = command("calibrate", tmp_path / "test", "--run", tmp_path / "run", "--out", tmp_path / "c.json", "--force")
    assert "No promise: 2 of the 32 calibration cases" in forced.output
