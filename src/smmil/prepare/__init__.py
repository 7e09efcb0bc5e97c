"""From images to bag files: find cases, choose instances, encode them, and write what `smmil train` takes."""

from smmil.prepare.case import prepare_case
from smmil.prepare.job import Case, Job, Prepared
from smmil.prepare.pipeline import Plan, plan, run
from smmil.prepare.recipe import Recipe, TissueRecipe, load_recipe, refuse_idle
from smmil.prepare.record import Summary, why_not

__all__ = [
    "Case",
    "Job",
    "Plan",
    "Prepared",
    "Recipe",
    "Summary",
    "TissueRecipe",
    "load_recipe",
    "plan",
    "prepare_case",
    "refuse_idle",
    "run",
    "why_not",
]
