"""The diagram of mean ranks: names at their ranks, bars over the groups, the same bytes every time."""

import numpy as np
import pytest

from smmil.evaluate import friedman_nemenyi
from smmil.maps import canvas
from smmil.maps.charts import critical_difference, friedman_verdict

pytestmark = pytest.mark.filterwarnings("error")

TABLE = dict(
    zip("abcde", (np.arange(5)[:, None] + np.random.default_rng(0).normal(size=(5, 12))).tolist(), strict=True)
)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    kept = []
    write = canvas.write_png
    monkeypatch.setattr(canvas, "write_png", lambda figure, path: (kept.append(figure), write(figure, path))[1])
    critical_difference(TABLE, tmp_path / "cd.png")
    return kept[0].axes[0]


def test_bars_span_the_groups_and_the_ruler_is_the_critical_difference(drawn):
    found = friedman_nemenyi(TABLE)
    bars = [line.get_xdata() for line in drawn.lines if line.get_gid() == "group"]
    ranks = found["mean_ranks"]
    assert len(bars) == len(found["groups"]) > 0
    for bar, group in zip(bars, found["groups"], strict=True):
        assert bar == pytest.approx([ranks[group[0]] - 0.04, ranks[group[-1]] + 0.04])
    (ruler,) = (line.get_xdata() for line in drawn.lines if line.get_gid() == "ruler")
    assert ruler[1] - ruler[0] == pytest.approx(found["critical_difference"])


def test_every_model_is_named_with_its_rank_and_joined_to_it(drawn):
    ranks = friedman_nemenyi(TABLE)["mean_ranks"]
    words = [text.get_text() for text in drawn.texts]
    starts = [line.get_xdata()[0] for line in drawn.lines if len(line.get_xdata()) == 3]
    assert sorted(starts) == pytest.approx(sorted(ranks.values()))
    assert all(f"{name}  {rank:.2f}" in words for name, rank in ranks.items())


def test_a_large_p_shows_no_difference_and_proves_no_equality():
    alike = {name: [0.5, 0.6, 0.7][shift:] + [0.5, 0.6, 0.7][:shift] for shift, name in enumerate("abc")}
    assert friedman_verdict(friedman_nemenyi(alike)) == "Friedman p = 1 over 3 columns: no difference shown at 0.05"
    assert friedman_verdict(friedman_nemenyi(TABLE)).endswith("over 12 columns: the models differ at 0.05")


def test_the_same_table_gives_the_same_bytes(tmp_path):
    one, two = critical_difference(TABLE, tmp_path / "a.png"), critical_difference(TABLE, tmp_path / "b.png")
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size > 5000
