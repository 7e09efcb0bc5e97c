"""FROC on drawn maps and against a slow reference written from the definition."""

import networkx as nx
import numpy as np
import pytest
from support.metric_cases import chain, drawing, random_cases

from smmil.errors import ConfigError
from smmil.evaluate import froc
from smmil.evaluate.instances import _components, _peaks
from smmil.prediction import Prediction

SLIDE = drawing(
    "slide",
    """1811.4
       1111.1
       115111
       111131""",
    """##---#
       #-----
       ----##
       ------""".replace(" ", ""),
)  # fmt: skip
NORMAL = drawing("normal", "12\n11", "--\n--", y=0)


def test_lesions_of_the_drawing_are_pieces_that_touch():
    found = _components(SLIDE.edges, SLIDE.y_inst > 0)
    # the gap in the tissue above does not join anything: (0,0) (1,0) (0,1) are one, (5,0) is one, (4,2) (5,2) are one
    assert found.max() + 1 == 3
    assert sorted(np.bincount(found[found >= 0]).tolist()) == [1, 2, 3]


def test_peaks_of_the_drawing_are_its_local_maxima():
    heights = sorted(SLIDE.scores[_peaks(SLIDE.scores[:, 0], SLIDE.edges) >= 0, 0].tolist())
    assert heights == [3, 4, 5, 8]


def test_the_drawing_by_hand():
    # marks: 8 finds the first lesion, 5 is an alarm, 4 finds the second, 3 lies below the third and is an alarm;
    # the normal slide adds an alarm at 2. Two bags: >= 8: 1/3 at 0; >= 4: 2/3 at 1/2; at most 3 alarms = 1.5 per bag.
    found = froc([SLIDE, NORMAL])
    assert found["n_lesions"] == 3
    assert (found["n_bags"], found["n_marks"]) == (2, 5)
    assert found["curve"]["threshold"] == [8, 5, 4, 3, 2]
    assert found["curve"]["false_alarms_per_bag"] == [0, 0.5, 0.5, 1, 1.5]
    assert found["curve"]["sensitivity"] == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3])
    assert found["sensitivities"] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 2 / 3, 2 / 3, 2 / 3])
    assert found["froc"] == pytest.approx((1 / 3 + 5 * 2 / 3) / 6)


def test_straight_lines_between_thresholds_as_the_challenge_draws_them():
    # from (0, 1/3) straight to (1/2, 2/3): at 1/4 half way
    found = froc([SLIDE, NORMAL], interpolate=True)
    assert found["sensitivities"] == pytest.approx([0.5, 2 / 3, 2 / 3, 2 / 3, 2 / 3, 2 / 3])


def test_positive_bags_alone_have_more_alarms_per_bag():
    found = froc([SLIDE, NORMAL], pool="positive_bags")
    assert found["n_bags"] == 1
    assert found["sensitivities"] == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3, 2 / 3])


def test_a_map_that_knows_nothing_gains_nothing():
    flat = Prediction("flat", [0.5], np.zeros(10), edges=chain(10), y=1, y_inst=[1, 1] + [0] * 8)
    found = froc([flat])
    # one peak of ten equal instances points into the lesion with chance 2/10 and beside it with 8/10
    assert found["curve"]["sensitivity"] == pytest.approx([0.2])
    assert found["curve"]["false_alarms_per_bag"] == pytest.approx([0.8])


def test_a_perfect_map_finds_everything_without_an_alarm():
    truth = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 1])
    perfect = Prediction("a", [0.5], truth - 0.01 * np.arange(10), edges=chain(10), y=1, y_inst=truth)
    assert froc([perfect], rates=[0])["froc"] == 1


def test_a_lesion_found_twice_counts_once_and_costs_nothing():
    found = froc([Prediction("a", [0.5], [5.0, 1, 4, 1, 0], edges=chain(5), y=1, y_inst=[1, 1, 1, 0, 0])])
    assert found["curve"]["sensitivity"][-1] == 1
    assert found["curve"]["false_alarms_per_bag"][-1] == 0


def test_a_peak_of_unknown_label_neither_finds_nor_alarms():
    known = froc([Prediction("a", [0.5], [1.0, 0, 3, 0, 2], edges=chain(5), y=1, y_inst=[1, 0, -1, 0, 0])])
    assert known["curve"]["threshold"] == [2, 1]
    assert known["curve"]["false_alarms_per_bag"] == [1, 1]


def slow_froc(predictions, rate):
    """Straight from the words: every threshold, every mark, every lesion, for maps without ties."""
    best = 0.0
    cuts = sorted({float(s) for p in predictions for s in p.scores[:, 0]})
    for cut in cuts:
        found = total = alarms = 0
        for p in predictions:
            graph = nx.Graph(p.edges.T.tolist())
            graph.add_nodes_from(range(p.n))
            score = p.scores[:, 0]
            marked = {i for i in graph if score[i] >= cut and all(score[j] < score[i] for j in graph[i])}
            pieces = list(nx.connected_components(graph.subgraph(np.flatnonzero(p.y_inst > 0).tolist())))
            total += len(pieces)
            found += sum(bool(piece & marked) for piece in pieces)
            alarms += sum(p.y_inst[i] == 0 for i in marked)
        if alarms <= rate * len(predictions):
            best = max(best, found / total)
    return best


@pytest.mark.parametrize("seed", range(8))
def test_random_maps_agree_with_the_slow_reference(seed):
    rng = np.random.default_rng(seed)
    some = []
    for i in range(5):
        near = np.argwhere(np.triu(rng.random((14, 14)) < 0.15, 1)).T
        labels = rng.choice([-1, 0, 1], 14, p=[0.1, 0.5, 0.4])
        some.append(Prediction(str(i), [0.5], rng.permutation(14) + 0.1 * i, edges=near, y=1, y_inst=labels))
    expected = [slow_froc(some, rate) for rate in (0.25, 0.5, 1, 2, 4, 8)]
    assert froc(some)["sensitivities"] == pytest.approx(expected)


def test_edges_may_be_listed_once_or_twice_and_instances_in_any_order():
    rng = np.random.default_rng(0)
    order = rng.permutation(SLIDE.n)
    place = np.argsort(order)
    half = SLIDE.edges[:, SLIDE.edges[0] < SLIDE.edges[1]]
    turned = Prediction("slide", [0.5], SLIDE.scores[order], edges=place[half], y=1, y_inst=SLIDE.y_inst[order])
    assert froc([turned, NORMAL]) == froc([SLIDE, NORMAL])


def test_ties_of_many_bags_in_any_order_give_the_same_bits():
    some = [p for p in random_cases(40, levels=1) if p.y_inst is not None]
    assert froc(some) == froc(some[::-1])


def test_bags_without_edges_or_labels_are_left_out_and_counted():
    bare = Prediction("bare", [0.5], [1.0, 2.0], y=1, y_inst=[1, 0])
    unknown = Prediction("unknown", [0.5], [1.0, 2.0], edges=chain(2), y=1, y_inst=[-1, -1])
    found = froc([SLIDE, NORMAL, bare, unknown])
    assert found["froc"] == froc([SLIDE, NORMAL])["froc"]
    assert found["notes"] == ["2 of 4 bags have no edges or no known instance label and are left out"]


@pytest.mark.parametrize("nothing", [[], [NORMAL], [Prediction("x", [0.5], [1.0])]])
def test_without_a_lesion_it_is_undefined_with_a_reason(nothing):
    found = froc(nothing)
    assert np.isnan(found["froc"])
    assert "no lesion is known: froc is undefined" in found["notes"]


def test_one_instance_alone_is_a_lesion_and_a_mark():
    assert froc([Prediction("a", [0.5], [1.0], edges=np.zeros((2, 0), int), y=1, y_inst=[1])])["froc"] == 1


def test_averaging_over_bags_is_refused_because_alarms_are_counted_per_bag():
    with pytest.raises(ConfigError, match="pool of froc"):
        froc([SLIDE], pool="per_bag")
    with pytest.raises(ConfigError, match="rates"):
        froc([SLIDE], rates=[])
