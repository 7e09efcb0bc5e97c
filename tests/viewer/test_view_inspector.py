"""The inspector against brute force: rank, share, neighbours, and the hot patches that look alike."""

import numpy as np
import pytest
from support.export_makers import META, slide_case
from support.viewer_cases import client_of, renamed, save, write_bags

from smmil.frame import Frame
from smmil.graph import grid_graph
from smmil.prediction import Prediction
from smmil.viewer.data import ViewerData


def lattice_case(id_="x", n=15, seed=0, gaps=True, **changes):
    """A ragged piece of tissue of tiles at a step of 20 and a width of 32, scores with many ties."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:n, :n]
    there = rng.random((n, n)) < (0.7 if gaps else 1)
    coords = np.stack([x[there], y[there]], 1) * 20 + 7
    scores = np.rint(rng.normal(size=(len(coords), 1)) * 3).astype(np.float32)
    given = {"coords": coords, "frame": Frame((32, 32), stride=(20, 20)), "meta": META, **changes}
    return Prediction(id_, [0.7], **{"scores": scores, **given})


def asked(tmp_path, *models, bags=None):
    for number, prediction in enumerate(models):
        save(tmp_path / "p" / f"m{number}", prediction)
    client = client_of(ViewerData.read([tmp_path / "p"], bags=bags))
    return lambda index, more="": client.get(f"/api/case/0/instance/{index}{more}").json()


def test_rank_and_share_equal_those_counted_by_hand(tmp_path):
    first = lattice_case()
    second = renamed(first, "x", scores=np.random.default_rng(5).normal(size=(first.n, 1)))
    ask = asked(tmp_path, first, second)
    for index in range(0, first.n, 7):
        told = ask(index)
        assert (told["index"], told["coords"]) == (index, first.coords[index].tolist())
        for said, prediction in zip(told["models"], (first, second), strict=True):
            scores = prediction.scores[:, 0].astype(float)
            assert said["score"] == scores[index]
            assert said["rank"] == 1 + sum(s > scores[index] for s in scores)
            assert said["of"] == first.n
            assert said["probability_kind"] == "attention share"
            assert said["probability"] == pytest.approx(np.exp(scores[index]) / np.exp(scores).sum())


@pytest.mark.parametrize(
    ("kind", "scores", "name", "share"),
    [
        ("instance logit", [0.0, 2.0, -50.0], "probability", [0.5, 1 / (1 + np.exp(-2.0)), np.exp(-50.0)]),
        ("instance probability", [0.25, 1.0, 0.0], "probability", [0.25, 1.0, 0.0]),
        ("class activation", [3.0, 9.0, 3.0], "rank share", [2 / 3, 1.0, 2 / 3]),
    ],
)
def test_a_share_is_named_after_what_it_is(tmp_path, kind, scores, name, share):
    prediction = Prediction("x", [0.5], np.array(scores)[:, None], meta={"score_kind": kind})
    ask = asked(tmp_path, prediction)
    for index in range(3):
        (said,) = ask(index)["models"]
        assert said["probability_kind"] == name
        assert said["probability"] == pytest.approx(share[index], rel=1e-6)


def test_neighbours_are_those_of_the_lattice_nearest_first(tmp_path):
    prediction = lattice_case()
    graph = grid_graph(prediction.coords, 20)
    ask = asked(tmp_path, prediction)
    for index in range(0, prediction.n, 5):
        told = [n["index"] for n in ask(index)["neighbours"]]
        row = graph.indices[graph.indptr[index] : graph.indptr[index + 1]].tolist()
        assert sorted(told) == sorted(row)
        apart = [np.linalg.norm(prediction.coords[i] - prediction.coords[index]) for i in told]
        assert apart == sorted(apart)
        scores = [n["score"] for n in ask(index)["neighbours"]]
        assert scores == [[prediction.scores[i, 0]] for i in told]


def test_stored_edges_win_over_places_and_count_in_both_directions(tmp_path):
    prediction = lattice_case(edges=np.array([[0, 5, 9], [30, 0, 9]]))
    ask = asked(tmp_path, prediction)
    assert sorted(n["index"] for n in ask(0)["neighbours"]) == [5, 30]
    assert [n["index"] for n in ask(30)["neighbours"]] == [0]
    assert ask(9)["neighbours"] == []


def test_at_most_eight_neighbours_are_told_and_slices_have_two(tmp_path):
    star = np.stack([np.zeros(40, int), np.arange(1, 41)])
    assert len(asked(tmp_path / "a", lattice_case(edges=star))(0)["neighbours"]) == 8
    scan = Prediction("s", [0.5], np.zeros((9, 1)), coords=np.arange(9)[:, None], frame=Frame((1,), (5.0,), "mm"))
    ask = asked(tmp_path / "b", scan)
    assert [n["index"] for n in ask(4)["neighbours"]] == [3, 5]
    assert [n["index"] for n in ask(8)["neighbours"]] == [7]


def brute_force(features, scores, index, count=6):
    """Sort everything by hand: the hottest tenth (16 at least), then cosines one by one."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    hot = order[: min(512, max(16, len(scores) // 10))]
    x = features.astype(np.float64)

    def cosine(i):
        return x[i] @ x[index] / (np.linalg.norm(x[i]) * np.linalg.norm(x[index]))

    found = sorted((-cosine(i), i) for i in hot if i != index)[:count]
    return [(i, -c) for c, i in found]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_most_similar_hot_patches_equal_brute_force(tmp_path, dtype):
    first = lattice_case(n=20)
    second = renamed(first, "x", scores=np.random.default_rng(5).normal(size=(first.n, 1)))
    features = np.random.default_rng(1).normal(size=(first.n, 12)).astype(dtype)
    ask = asked(tmp_path, first, second, bags=write_bags(tmp_path / "bags", first, features))
    hottest = int(first.scores[:, 0].argmax())
    for index in (0, 11, hottest, first.n - 1):
        for model, prediction in enumerate((first, second)):
            told = ask(index, f"?model={model}")["similar"]
            expected = brute_force(features, prediction.scores[:, 0], index)
            assert [t["index"] for t in told] == [i for i, _ in expected]
            assert [t["similarity"] for t in told] == pytest.approx([c for _, c in expected])
            assert [t["score"] for t in told] == [
                [float(first.scores[i, 0]), float(second.scores[i, 0])] for i, _ in expected
            ]
        assert ask(index)["similar"] == ask(index, "?model=0")["similar"]


def test_features_in_other_layouts_are_read_too(tmp_path):
    import h5py

    prediction = lattice_case()
    features = np.random.default_rng(1).normal(size=(prediction.n, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", features)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["feats"], file["coords"] = features, prediction.coords
    for number, name in enumerate(("x.npy", "x.h5")):
        (tmp_path / "manifest.csv").write_text(f"id,path\nx,{name}\n")
        told = asked(tmp_path / str(number), prediction, bags=tmp_path / "manifest.csv")(3)["similar"]
        assert [t["index"] for t in told] == [i for i, _ in brute_force(features, prediction.scores[:, 0], 3)]


def test_features_that_are_not_the_cases_own_are_refused_with_a_reason(tmp_path):
    prediction = lattice_case()
    moved = renamed(prediction, "x", coords=prediction.coords[::-1].copy())
    fewer = renamed(prediction, "x", coords=prediction.coords[:9], scores=prediction.scores[:9])
    rng = np.random.default_rng(0)
    for number, (other, word) in enumerate(((moved, "other coordinates"), (fewer, "9 rows"))):
        bags = write_bags(tmp_path / f"bags{number}", other, rng.normal(size=(other.n, 3)).astype(np.float32))
        told = asked(tmp_path / str(number), prediction, bags=bags)(0)
        assert told["similar"] is None
        assert word in told["similar_reason"]
        assert str(tmp_path) not in told["similar_reason"]


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("x.pt", b"PK\x03\x04", "convert"),
        ("x.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * 50, "not readable"),
        ("x.npy", b"no", "not readable"),
        ("absent.h5", None, "no such file"),
    ],
)
def test_features_that_cannot_be_read_cost_only_themselves(tmp_path, name, content, word):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "manifest.csv").write_text(f"id,path\nx,{name}\n")
    told = asked(tmp_path, lattice_case(), bags=tmp_path / "manifest.csv")(0)
    assert told["similar"] is None
    assert word in told["similar_reason"]
    assert told["models"][0]["of"] > 0


def test_a_patch_without_features_of_its_own_is_like_nothing(tmp_path):
    prediction = lattice_case()
    features = np.random.default_rng(1).normal(size=(prediction.n, 5)).astype(np.float32)
    features[3] = 0
    told = asked(tmp_path, prediction, bags=write_bags(tmp_path / "bags", prediction, features))(3)["similar"]
    assert [t["similarity"] for t in told] == [0.0] * 6


def test_a_case_with_more_models_says_nothing_for_those_that_do_not_know_it(tmp_path):
    _, prediction = slide_case(tmp_path / "s")
    save(tmp_path / "p" / "a", prediction)
    save(tmp_path / "p" / "b", renamed(prediction, "another"))
    client = client_of(ViewerData.read([tmp_path / "p"]))
    first, second = (client.get(f"/api/case/{case}/instance/0").json() for case in (0, 1))
    assert [m is None for m in first["models"]] == [True, False]
    assert [m is None for m in second["models"]] == [False, True]
