"""The paper's tables as shipped: complete, and its ranks follow from its own numbers."""

import pytest

from smmil.errors import ConfigError
from smmil.evaluate import mean_ranks
from smmil.experiments.paper import PAPER_TABLES, paper_table


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_every_table_has_the_same_columns_and_a_number_in_every_row(name):
    table = paper_table(name)
    assert list(table.columns) == ["dataset", "extractor", "group", "model", "metric", "mean", "std"]
    assert table["mean"].notna().all()
    assert not table.duplicated(["dataset", "extractor", "group", "model", "metric"]).any()


@pytest.mark.parametrize("name", ["table_localization", "table_classification"])
@pytest.mark.parametrize("group", ["no_global", "global"])
def test_ranks_of_the_main_tables_follow_from_their_numbers_exactly(name, group):
    table = paper_table(name).query("group == @group")
    printed = table[table.dataset == "ALL"].set_index("model")
    scores = table[table.dataset != "ALL"].pivot(index="model", columns=["dataset", "metric"], values="mean")
    assert scores.shape == (5, 6)
    for model, (mean, std) in mean_ranks(scores).items():
        assert (round(mean, 3), round(std, 3)) == (printed["mean"][model], printed["std"][model])


def test_an_unknown_table_is_refused_with_its_neighbours():
    with pytest.raises(ConfigError, match="did you mean table_ablation"):
        paper_table("table_ablations")
