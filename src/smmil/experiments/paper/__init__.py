"""The numbers printed in the paper (arXiv:2410.03276)."""

from importlib.resources import files
from typing import TYPE_CHECKING

from smmil.errors import check_choice

if TYPE_CHECKING:
    from pandas import DataFrame

# file of each table, by its number in the paper; 6 to 10 are about feature extractors
PAPER_TABLES = {
    "table_localization": 1,
    "table_classification": 2,
    "table_ablation": 3,
    "table_sm_on_others": 4,
    "table_penalty": 5,
    "feat_ext_ranks": 6,
    "feat_ext_inst_auroc": 7,
    "feat_ext_inst_f1": 8,
    "feat_ext_bag_auroc": 9,
    "feat_ext_bag_f1": 10,
}


def paper_table(name: str) -> "DataFrame":
    """One table of the paper, a row per printed number: dataset, extractor, group, model, metric, mean, std.

    name  one of PAPER_TABLES. Rows of dataset "ALL" hold mean ranks; extractor "main" is the mixed setting of the main
    text; std is nan where the paper prints none.
    """
    from pandas import read_csv

    check_choice(name, PAPER_TABLES, "paper table")
    with files(__package__).joinpath(f"{name}.csv").open(encoding="utf-8") as stream:
        return read_csv(stream)
