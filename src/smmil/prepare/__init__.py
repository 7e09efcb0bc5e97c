"""From images to bag files: find cases, choose instances, encode them, and write what `smmil train` takes."""

from smmil.prepare.case import prepare_case
from smmil.prepare.pipeline import PreparePlan, Summary, failure_reason, plan, run
from smmil.prepare.recipe import Recipe, TissueRecipe, load_recipe, refuse_unused
from smmil.prepare.table import PrepareCase, PreparedCase, PrepareJob

__all__ = [
    "PrepareCase",
    "PrepareJob",
    "PreparePlan",
    "PreparedCase",
    "Recipe",
    "Summary",
    "TissueRecipe",
    "load_recipe",
    "plan",
    "prepare_case",
    "refuse_unused",
    "run",
    "failure_reason",
]
